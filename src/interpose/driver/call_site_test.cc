#include "src/interpose/driver/call_site.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "src/interpose/driver/native_frames.h"

namespace prism::interpose {
namespace {

std::string Summarize(std::string_view traceback) {
  return SummarizeFrames(ParseTraceback(traceback));
}

TEST(CallSiteTest, UserFramesAreKeptInnermostFirst) {
  EXPECT_EQ(Summarize("Stack (most recent call first):\n"
                      "  File \"/env/lib/python3.11/site-packages/torch/distributed/c10d.py\", "
                      "line 2501 in all_reduce\n"
                      "  File \"/home/u/train.py\", line 12 in step\n"
                      "  File \"/home/u/train.py\", line 40 in main\n"
                      "  File \"/home/u/train.py\", line 44 in <module>\n"
                      "  File \"/home/u/run.py\", line 3 in <module>\n"),
            "train.py:12 in step < train.py:40 in main < train.py:44 in <module>");
}

TEST(CallSiteTest, WithoutUserFramesTheInnermostOnesAreKept) {
  EXPECT_EQ(Summarize("  File \"/usr/lib/python3/dist-packages/a/b.py\", line 1 in f\n"
                      "  File \"/usr/lib/python3.11/threading.py\", line 975 in run\n"),
            "b.py:1 in f < threading.py:975 in run");
}

TEST(CallSiteTest, FrozenModulesAreNotTheUsers) {
  EXPECT_EQ(Summarize("  File \"<frozen runpy>\", line 88 in _run_code\n"
                      "  File \"x.py\", line 2 in g\n"),
            "x.py:2 in g");
}

TEST(CallSiteTest, OtherTextIsEmpty) {
  EXPECT_EQ(Summarize(""), "");
  EXPECT_EQ(Summarize("  <no Python frame>\n"), "");
  EXPECT_EQ(Summarize("  File \"torn"), "");
}

TEST(CallSiteTest, WithoutInterpreterTheProgramIsNamed) {
  char text[512];
  ASSERT_GT(DescribeCaller(text, sizeof text), 0u);
  EXPECT_NE(std::string(text).find("interpose_test"), std::string::npos) << text;
}

// Two frames that neither inlining nor a tail call removes.
[[gnu::noinline]] void InnerCaller(std::string* text) {
  *text = NativeFrames(4);
  asm volatile("" : : "r"(text) : "memory");
}
[[gnu::noinline]] void OuterCaller(std::string* text) {
  InnerCaller(text);
  asm volatile("" : : "r"(text) : "memory");
}

TEST(CallSiteTest, FunctionsThatAreNotExportedAreNamedInnermostFirst) {
  std::string text;
  OuterCaller(&text);
  const size_t inner = text.find(" in prism::interpose::InnerCaller < interpose_test+0x");
  const size_t outer = text.find(" in prism::interpose::OuterCaller < interpose_test+0x");
  ASSERT_NE(inner, std::string::npos) << text;
  ASSERT_NE(outer, std::string::npos) << text;
  EXPECT_LT(inner, outer);
}

TEST(CallSiteTest, NamesAreShownWithoutParametersAndAnonymousNamespaces) {
  EXPECT_EQ(ShortName("main"), "main");
  EXPECT_EQ(ShortName("_ZN12_GLOBAL__N_17Trainer7AverageEm14ncclDataType_t"), "Trainer::Average");
  EXPECT_EQ(ShortName("_ZNK11moe_trainer7Channel4SendERKNS_3GpuEPKfmi"),
            "moe_trainer::Channel::Send");
  EXPECT_EQ(ShortName("_ZN3foo3barEv.cold"), "foo::bar");
}

TEST(CallSiteTest, LongTextIsCutToTheBuffer) {
  char text[8];
  EXPECT_EQ(DescribeCaller(text, sizeof text), 7u);
  EXPECT_EQ(text[7], 0);
}

}  // namespace
}  // namespace prism::interpose
