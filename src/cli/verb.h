// Verb: one subcommand of `prism`. A verb owns its flags, its help and its run; main.cc owns
// everything they share.
//
// To add a verb: write src/cli/<name>_verb.cc with a class derived from Verb and
// `std::unique_ptr<Verb> Make<Name>Verb()`, declare it in verbs.h, add it to AllVerbs() in verbs.cc
// and the file to CMakeLists.txt.
//
//   class SimulateVerb final : public Verb {
//    public:
//     const char* name() const override { return "simulate"; }
//     const char* summary() const override { return "Predict the step time of a captured job"; }
//     void AddOptions(CLI::App& app) override { app.add_option("DIR", dir_, "job
//     directory")->required(); } absl::StatusOr<int> Run(const Invocation& invocation) override;
//   };
//
// Manners (checked by cli_test): data on stdout, logs and progress on stderr; --json prints one
// object that begins with its schema and version (PrintJson); an error is a Status whose remedy is
// attached by WithHint; nothing is overwritten without
// --force. Every long flag can be set by the environment (--job-dir: PRISM_JOB_DIR); main.cc sees
// to that, to
// --json, --verbose and --quiet, and to "did you mean". Single-threaded.
#ifndef PRISM_CLI_VERB_H_
#define PRISM_CLI_VERB_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "CLI/App.hpp"
#include "nlohmann/json.hpp"
#include "src/base/status.h"

namespace prism::cli {

/// What main.cc hands to a verb beside its own flags.
struct Invocation {
  bool json = false;                 // --json: one object on stdout instead of text
  bool color = false;                // stdout is a terminal that wants colour
  std::vector<std::string> command;  // what followed `--`; empty unless takes_command()
  std::string program;  // absolute path of this executable: installed files are found beside it
};

/// Exit codes of verbs; a verb that runs a program returns the program's, or kExitOwnFailure.
inline constexpr int kExitOk = 0;
inline constexpr int kExitUser = 1;
inline constexpr int kExitInternal = 2;
inline constexpr int kExitAccuracy = 3;      // an accuracy gate was missed
inline constexpr int kExitOwnFailure = 125;  // run, capture: prism's failure, not the program's

class Verb {
 public:
  virtual ~Verb() = default;
  virtual const char* name() const = 0;
  virtual const char* summary() const = 0;  // one line, imperative, no full stop
  /// Examples for the end of --help, one command a line; "" for none.
  virtual const char* examples() const { return ""; }
  /// True for `prism verb [flags] -- command`.
  virtual bool takes_command() const { return false; }
  /// True where the command may be left out (prism check DIR, prism check -- command).
  virtual bool command_optional() const { return false; }
  virtual void AddOptions(CLI::App& app) = 0;
  /// Returns the exit code. An error is printed by main and becomes the exit code that fits it.
  virtual absl::StatusOr<int> Run(const Invocation& invocation) = 0;
};

/// Prints {"schema": schema, "schema_version": version, ...object} and a newline on stdout.
void PrintJson(std::string_view schema, int version, const nlohmann::ordered_json& object);

}  // namespace prism::cli

#endif  // PRISM_CLI_VERB_H_
