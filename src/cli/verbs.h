// The verbs of `prism`, one function a verb; the order of AllVerbs is the order of the help.
#ifndef PRISM_CLI_VERBS_H_
#define PRISM_CLI_VERBS_H_

#include <memory>
#include <vector>

#include "src/cli/verb.h"

namespace prism::cli {

std::unique_ptr<Verb> MakeRunVerb();
std::unique_ptr<Verb> MakeCaptureVerb();
std::unique_ptr<Verb> MakeRecordVerb();
std::unique_ptr<Verb> MakeCalibrateVerb();
std::unique_ptr<Verb> MakeEmulateVerb();
std::unique_ptr<Verb> MakeNetprofileVerb();
std::unique_ptr<Verb> MakeCheckVerb();
std::unique_ptr<Verb> MakeSimulateVerb();
std::unique_ptr<Verb> MakeReportVerb();
std::unique_ptr<Verb> MakeInspectVerb();
std::unique_ptr<Verb> MakeDoctorVerb();

/// Every verb, in the order of `prism --help`.
std::vector<std::unique_ptr<Verb>> AllVerbs();

}  // namespace prism::cli

#endif  // PRISM_CLI_VERBS_H_
