#include "src/cli/command_line.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace prism::cli {
namespace {

// What the last run of the verb saw.
struct Seen {
  int runs = 0;
  std::string target;
  std::vector<std::string> command;
  bool json = false;
};

class ProbeVerb final : public Verb {
 public:
  ProbeVerb(const char* name, bool takes_command, absl::StatusOr<int> result, Seen* seen)
      : name_(name), takes_command_(takes_command), result_(std::move(result)), seen_(seen) {}
  const char* name() const override { return name_; }
  const char* summary() const override { return "Probe"; }
  bool takes_command() const override { return takes_command_; }
  void AddOptions(CLI::App& app) override {
    app.add_option("--target", target_, "What to emulate");
  }
  absl::StatusOr<int> Run(const Invocation& invocation) override {
    *seen_ = {seen_->runs + 1, target_, invocation.command, invocation.json};
    return result_;
  }

 private:
  const char* name_;
  bool takes_command_;
  absl::StatusOr<int> result_;
  Seen* seen_;
  std::string target_;
};

class CommandLineTest : public testing::Test {
 protected:
  int Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "prism");
    std::vector<std::unique_ptr<Verb>> verbs;
    verbs.push_back(std::make_unique<ProbeVerb>("capture", true, 7, &capture_));
    verbs.push_back(std::make_unique<ProbeVerb>(
        "inspect", false, WithHint(absl::NotFoundError("no job in /x"), "make one"), &inspect_));
    verbs.push_back(
        std::make_unique<ProbeVerb>("fail", true, absl::InternalError("broken"), &inspect_));
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = RunCommandLine(verbs, arguments);
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return code;
  }
  Seen capture_, inspect_;
  std::string out_, err_;
};

TEST_F(CommandLineTest, CommandIsWhatFollowsTheSeparatorAndItsCodeIsReturned) {
  EXPECT_EQ(Run({"capture", "--target", "h200x8:2", "--json", "--", "torchrun", "--target", "x.py",
                 "--"}),
            7);
  EXPECT_EQ(capture_.target, "h200x8:2");
  EXPECT_TRUE(capture_.json);
  EXPECT_EQ(capture_.command, (std::vector<std::string>{"torchrun", "--target", "x.py", "--"}));
}

TEST_F(CommandLineTest, UnknownVerbSuggestsTheNearest) {
  EXPECT_EQ(Run({"captrue"}), kExitUser);
  EXPECT_NE(err_.find("there is no verb 'captrue'"), std::string::npos);
  EXPECT_NE(err_.find("hint: did you mean 'capture'?"), std::string::npos);
  EXPECT_EQ(out_, "");
}

TEST_F(CommandLineTest, UnknownFlagSuggestsTheNearest) {
  EXPECT_EQ(Run({"inspect", "--taget=3"}), kExitUser);
  EXPECT_NE(err_.find("'prism inspect' has no flag '--taget'"), std::string::npos);
  EXPECT_NE(err_.find("did you mean '--target'?"), std::string::npos);
  EXPECT_EQ(Run({"capture", "--taget", "--", "true"}), kExitOwnFailure);
  EXPECT_EQ(capture_.runs, 0);
}

TEST_F(CommandLineTest, MissingSeparatorIsExplained) {
  EXPECT_EQ(Run({"capture", "torchrun", "x.py"}), kExitOwnFailure);
  EXPECT_NE(err_.find("put '--' before the command: prism capture [flags] -- torchrun"),
            std::string::npos);
}

TEST_F(CommandLineTest, MissingCommandIsExplained) {
  EXPECT_EQ(Run({"capture", "--"}), kExitOwnFailure);
  EXPECT_NE(err_.find("'prism capture' needs a command"), std::string::npos);
  EXPECT_EQ(Run({"inspect", "--", "x"}), kExitUser);
  EXPECT_NE(err_.find("takes no command"), std::string::npos);
}

TEST_F(CommandLineTest, ErrorShowsItsHintAndBecomesItsExitCode) {
  EXPECT_EQ(Run({"inspect"}), kExitUser);
  EXPECT_EQ(err_, "prism: error: no job in /x\nhint: make one\n");
  EXPECT_EQ(Run({"fail", "--", "x"}), kExitOwnFailure);
}

TEST_F(CommandLineTest, JsonErrorCarriesSchemaAndHint) {
  EXPECT_EQ(Run({"inspect", "--json"}), kExitUser);
  const auto object = nlohmann::json::parse(out_);
  EXPECT_EQ(object["schema"], "prism.error");
  EXPECT_EQ(object["schema_version"], 1);
  EXPECT_EQ(object["hint"], "make one");
}

TEST_F(CommandLineTest, FlagWinsOverEnvironment) {
  setenv("PRISM_TARGET", "h100x8", 1);
  Run({"capture", "--", "x"});
  EXPECT_EQ(capture_.target, "h100x8");
  Run({"capture", "--target", "h200x8", "--", "x"});
  EXPECT_EQ(capture_.target, "h200x8");
  unsetenv("PRISM_TARGET");
}

TEST_F(CommandLineTest, HelpGoesToStdoutAndNamesTheVariable) {
  EXPECT_EQ(Run({"capture", "--help"}), kExitOk);
  EXPECT_NE(out_.find("PRISM_TARGET"), std::string::npos);
  EXPECT_EQ(Run({"--help"}), kExitOk);
  EXPECT_NE(out_.find("inspect"), std::string::npos);
  EXPECT_EQ(Run({}), kExitUser);
  EXPECT_EQ(out_, "");
}

TEST_F(CommandLineTest, CompletionListsVerbsAndFlags) {
  EXPECT_EQ(Run({"completion", "bash"}), kExitOk);
  EXPECT_NE(out_.find("capture inspect"), std::string::npos);
  EXPECT_NE(out_.find("--target"), std::string::npos);
}

}  // namespace
}  // namespace prism::cli
