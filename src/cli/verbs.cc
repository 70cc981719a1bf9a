#include "src/cli/verbs.h"

namespace prism::cli {

std::vector<std::unique_ptr<Verb>> AllVerbs() {
  std::vector<std::unique_ptr<Verb>> verbs;
  verbs.push_back(MakeRunVerb());
  verbs.push_back(MakeCaptureVerb());
  verbs.push_back(MakeRecordVerb());
  verbs.push_back(MakeNetprofileVerb());
  verbs.push_back(MakeSimulateVerb());
  verbs.push_back(MakeReportVerb());
  verbs.push_back(MakeInspectVerb());
  verbs.push_back(MakeCalibrateVerb());
  verbs.push_back(MakeEmulateVerb());
  verbs.push_back(MakeCheckVerb());
  verbs.push_back(MakeDoctorVerb());
  return verbs;
}

}  // namespace prism::cli
