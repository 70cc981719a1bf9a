#include "src/cli/command_line.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <exception>
#include <iostream>
#include <set>

#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "fmt/format.h"
#include "src/base/log.h"
#include "src/base/suggest.h"
#include "src/base/version.h"

namespace prism::cli {
namespace {

constexpr size_t kNameColumn = 12;

// Variables of the contract between controller and ranks; a flag never takes its value from them.
const std::set<std::string>& ReservedVariables() {
  static const auto* const kReserved = new std::set<std::string>{
      "PRISM_SOCKET", "PRISM_RANK", "PRISM_MODE", "PRISM_TRACE_DIR", "PRISM_JSON", "PRISM_HELP"};
  return *kReserved;
}

std::string VariableOf(const std::string& long_name) {
  std::string variable = "PRISM_";
  for (const char c : long_name) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

void PrintProblem(const std::string& what, const std::string& hint) {
  const bool color = ColorWanted(STDERR_FILENO);
  fmt::print(stderr, "prism: {}error:{} {}\n", color ? "\033[1;31m" : "", color ? "\033[0m" : "",
             what);
  if (!hint.empty()) {
    fmt::print(stderr, "{}hint:{} {}\n", color ? "\033[1m" : "", color ? "\033[0m" : "", hint);
  }
}

std::string DidYouMean(const std::string& word, const std::vector<std::string>& known,
                       const std::string& otherwise) {
  const std::string nearest = Nearest(word, known);
  return nearest.empty() ? otherwise : fmt::format("did you mean '{}'?", nearest);
}

void PrintOverview(const std::vector<std::unique_ptr<Verb>>& verbs, std::FILE* to) {
  fmt::print(
      to,
      "prism emulates a training job of many GPUs on few or none, without changing the program.\n\n"
      "Usage: prism VERB [flags] [-- command]\n\n");
  for (const auto& verb : verbs) {
    fmt::print(to, "  {:<{}} {}\n", verb->name(), kNameColumn, verb->summary());
  }
  fmt::print(to,
             "\n'prism VERB --help' shows the flags of a verb; 'prism --version' the version;\n"
             "'prism completion bash' a completion script.\n");
}

struct SharedFlags {
  bool json = false;
  int verbose = 0;
  bool quiet = false;
};

std::unique_ptr<CLI::App> MakeApp(Verb& verb, SharedFlags& shared) {
  auto app = std::make_unique<CLI::App>(verb.summary(), fmt::format("prism {}", verb.name()));
  verb.AddOptions(*app);
  app->add_flag("--json", shared.json, "Print one JSON object on stdout");
  app->add_flag("-v,--verbose", shared.verbose, "Say more on stderr; twice: everything");
  app->add_flag("-q,--quiet", shared.quiet, "Say only warnings and errors on stderr");
  app->allow_extras();
  for (CLI::Option* option : app->get_options()) {
    if (option->get_lnames().empty() || !option->get_envname().empty()) continue;
    const std::string variable = VariableOf(option->get_lnames().front());
    if (ReservedVariables().count(variable) == 0) option->envname(variable);
  }
  const std::string examples = verb.examples();
  if (!examples.empty()) app->footer("\nExamples:\n" + examples);
  return app;
}

std::vector<std::string> FlagsOf(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    for (const std::string& name : option->get_snames()) flags.push_back("-" + name);
  }
  return flags;
}

int PrintCompletion(const std::vector<std::unique_ptr<Verb>>& verbs) {
  std::string names, cases;
  for (const auto& verb : verbs) {
    SharedFlags shared;
    const auto app = MakeApp(*verb, shared);
    names += std::string(names.empty() ? "" : " ") + verb->name();
    std::string flags;
    for (const std::string& flag : FlagsOf(*app)) flags += (flags.empty() ? "" : " ") + flag;
    cases += fmt::format("    {}) words=\"{}\" ;;\n", verb->name(), flags);
  }
  fmt::print(
      "# bash completion of prism: eval \"$(prism completion bash)\"\n"
      "_prism() {{\n"
      "  local word=\"${{COMP_WORDS[COMP_CWORD]}}\" words=\"\" i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    if [[ ${{COMP_WORDS[i]}} == -- ]]; then COMPREPLY=($(compgen -c -f -- \"$word\")); "
      "return; fi\n"
      "  done\n"
      "  if ((COMP_CWORD == 1)); then words=\"{}\"; else case \"${{COMP_WORDS[1]}}\" in\n{}"
      "  esac; fi\n"
      "  if [[ $word == -* || $COMP_CWORD == 1 ]]; then COMPREPLY=($(compgen -W \"$words\" -- "
      "\"$word\"))\n"
      "  else COMPREPLY=($(compgen -f -- \"$word\")); fi\n"
      "}}\n"
      "complete -o filenames -F _prism prism\n",
      names, cases);
  return kExitOk;
}

int RunVerb(Verb& verb, const std::vector<std::string>& flags, Invocation invocation,
            bool separator) {
  SharedFlags shared;
  const auto app = MakeApp(verb, shared);
  const bool runs_program = verb.takes_command() && (separator || !verb.command_optional());
  const int user_failure = runs_program ? kExitOwnFailure : kExitUser;
  const auto fail = [&](const absl::Status& status, int code) {
    PrintProblem(std::string(status.message()), HintOf(status));
    if (shared.json) {
      PrintJson("prism.error", 1,
                {{"verb", verb.name()},
                 {"exit_code", code},
                 {"error", std::string(status.message())},
                 {"hint", HintOf(status)}});
    }
    return code;
  };
  try {
    app->parse(std::vector<std::string>(flags.rbegin(), flags.rend()));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app->help());
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    // CLI11 stops at a missing value before it looks at what is unknown; the unknown flag is the
    // better news.
    return fail(WithHint(absl::InvalidArgumentError(error.what()),
                         fmt::format("'prism {} --help' shows the flags", verb.name())),
                user_failure);
  }
  for (const std::string& extra : app->remaining()) {
    const std::string see_help = fmt::format("'prism {} --help' shows the flags", verb.name());
    if (extra.size() > 1 && extra[0] == '-') {
      const std::string name = extra.substr(0, extra.find('='));
      return fail(WithHint(absl::InvalidArgumentError(
                               fmt::format("'prism {}' has no flag '{}'", verb.name(), name)),
                           DidYouMean(name, FlagsOf(*app), see_help)),
                  user_failure);
    }
    return fail(
        WithHint(absl::InvalidArgumentError(fmt::format("unexpected argument '{}'", extra)),
                 verb.takes_command() && !separator
                     ? fmt::format("put '--' before the command: prism {} [flags] -- {} ...",
                                   verb.name(), extra)
                     : see_help),
        user_failure);
  }
  if (separator && !verb.takes_command()) {
    return fail(WithHint(absl::InvalidArgumentError(
                             fmt::format("'prism {}' takes no command", verb.name())),
                         "leave out '--' and what follows"),
                user_failure);
  }
  if (verb.takes_command() && invocation.command.empty() &&
      (separator || !verb.command_optional())) {
    return fail(
        WithHint(
            absl::InvalidArgumentError(fmt::format("'prism {}' needs a command", verb.name())),
            fmt::format("prism {} [flags] -- torchrun --nproc-per-node 8 train.py", verb.name())),
        user_failure);
  }
  InitLog({.verbosity = shared.quiet ? -1 : shared.verbose});
  invocation.json = shared.json;
  absl::StatusOr<int> code = kExitInternal;
  try {
    code = verb.Run(invocation);
  } catch (const std::exception& error) {
    code = absl::InternalError(fmt::format("prism {}: {}", verb.name(), error.what()));
  }
  if (!code.ok()) {
    return fail(code.status(), runs_program ? kExitOwnFailure : ExitCodeOf(code.status()));
  }
  // A full disk or a closed pipe must not look like success.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    PrintProblem("standard output could not be written", "");
    return *code == kExitOk ? kExitInternal : *code;
  }
  return *code;
}

}  // namespace

void PrintJson(std::string_view schema, int version, const nlohmann::ordered_json& object) {
  nlohmann::ordered_json whole;
  whole["schema"] = schema;
  whole["schema_version"] = version;
  whole.update(object);
  // Program output may hold any bytes: they must not turn into an exception.
  fmt::print("{}\n", whole.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

std::string OwnPath(const std::string& fallback) {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : fallback;
}

int RunCommandLine(const std::vector<std::unique_ptr<Verb>>& verbs,
                   const std::vector<std::string>& arguments) {
  InitLog({});
  std::vector<std::string> names{"completion", "help"};
  for (const auto& verb : verbs) names.emplace_back(verb->name());
  const auto find = [&](const std::string& name) -> Verb* {
    const auto found =
        std::find_if(verbs.begin(), verbs.end(), [&](const auto& v) { return v->name() == name; });
    return found == verbs.end() ? nullptr : found->get();
  };
  const auto unknown = [&](const std::string& name) {
    PrintProblem(fmt::format("there is no verb '{}'", name),
                 DidYouMean(name, names, "'prism --help' lists them"));
    return kExitUser;
  };

  if (arguments.size() < 2) {
    PrintOverview(verbs, stderr);
    return kExitUser;
  }
  const std::string& first = arguments[1];
  if (first == "--version" || first == "-V") {
    fmt::print("prism {}\n", kVersion);
    return kExitOk;
  }
  if (first == "--help" || first == "-h" || first == "help") {
    if (arguments.size() > 2 && first == "help") {
      Verb* verb = find(arguments[2]);
      return verb != nullptr ? RunVerb(*verb, {"--help"}, {}, false) : unknown(arguments[2]);
    }
    PrintOverview(verbs, stdout);
    return kExitOk;
  }
  if (first == "completion") {
    if (arguments.size() == 3 && arguments[2] == "bash") return PrintCompletion(verbs);
    PrintProblem("'prism completion' knows one shell", "prism completion bash");
    return kExitUser;
  }
  Verb* verb = find(first);
  if (verb == nullptr) return unknown(first);

  const auto separator = std::find(arguments.begin() + 2, arguments.end(), "--");
  Invocation invocation;
  invocation.program = OwnPath(arguments[0]);
  invocation.color = ColorWanted(STDOUT_FILENO);
  if (separator != arguments.end()) invocation.command.assign(separator + 1, arguments.end());
  return RunVerb(*verb, std::vector<std::string>(arguments.begin() + 2, separator),
                 std::move(invocation), separator != arguments.end());
}

}  // namespace prism::cli
