// The report at exit: per operation how often it was computed, filled with noise or kept.
//
// Owner of: the path of HOSTCUDA_VALUES_REPORT. Threading: ScheduleReport once; the report is
// written by atexit.
#ifndef HOSTCUDA_VALUES_REPORT_H_
#define HOSTCUDA_VALUES_REPORT_H_

#include <string>

namespace hostcuda::values {

// Writes the report to `path` when the process exits; %p in it becomes the process id (a forked
// child writes its own).
void ScheduleReport(const std::string& path);

// The report as JSON:
// {"schema":1,"mode":...,"threads":...,"totals":{...},"operations":[{"name":...,...}]}.
std::string ReportJson();

}  // namespace hostcuda::values

#endif  // HOSTCUDA_VALUES_REPORT_H_
