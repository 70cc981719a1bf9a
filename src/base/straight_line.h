// StraightLine: the straight line that weighted points are nearest to (least squares in y).
//
// Sums are about the mean, so points far from the origin lose nothing. A value; not thread-safe.
//
//   StraightLine line;
//   line.Add(1, 10);
//   line.Add(2, 12, /*weight=*/0.5);
//   double y = line.At(3);
#ifndef PRISM_BASE_STRAIGHT_LINE_H_
#define PRISM_BASE_STRAIGHT_LINE_H_

namespace prism {

class StraightLine {
 public:
  /// `weight` is above 0: where it is 1 / variance of y, variances below are those of the result.
  void Add(double x, double y, double weight = 1) {
    weights_ += weight;
    const double from_mean = x - mean_x_;
    mean_x_ += from_mean * weight / weights_;
    along_ += weight * (x - mean_x_) * (y - mean_y_);
    mean_y_ += (y - mean_y_) * weight / weights_;
    across_ += weight * from_mean * (x - mean_x_);
  }
  /// Whether there are two x that differ by more than rounding; else the line is flat.
  bool has_slope() const { return across_ > 1e-9 * weights_ * mean_x_ * mean_x_; }
  double slope() const { return has_slope() ? along_ / across_ : 0; }
  double mean_x() const { return mean_x_; }
  double At(double x) const { return mean_y_ + slope() * (x - mean_x_); }
  /// Of what At() says.
  double VarianceAt(double x) const {
    return 1 / weights_ + (has_slope() ? (x - mean_x_) * (x - mean_x_) / across_ : 0);
  }

 private:
  double weights_ = 0, mean_x_ = 0, mean_y_ = 0;
  double across_ = 0, along_ = 0;  // sums of squares of x, of products, about the means
};

}  // namespace prism

#endif  // PRISM_BASE_STRAIGHT_LINE_H_
