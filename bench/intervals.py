"""Confidence intervals of a few measurements."""

import math
import statistics

# Student's t, 97.5 %, by degrees of freedom from 1.
STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
           2.110, 2.101, 2.093, 2.086]  # fmt: skip


def interval(values: list[float]) -> tuple[float, float, float]:
    """Returns the lower end of the mean's 95 % interval, the mean, and the upper end. At least two values."""
    mean = statistics.mean(values)
    half = STUDENT[min(len(values) - 1, len(STUDENT)) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean, mean + half
