#include "src/cli/python_stacks.h"

#include "gtest/gtest.h"

namespace prism::cli {
namespace {

TEST(PythonStacksTest, TheUsersOwnFramesAreKept) {
  const std::string stack =
      "Current thread 0x00007f1 (most recent call first):\n"
      "  File \"/usr/lib/python3.11/threading.py\", line 327 in wait\n"
      "  File \"/home/x/my \"odd\" dir/train.py\", line 12 in step\n"
      "  File \"/e/lib/python3.11/site-packages/torch/_ops.py\", line 1 in call\n"
      "  File \"<string>\", line 40 in main\n"
      "  File \"/home/x/a.py\", line 1 in a\n"
      "  File \"/home/x/b.py\", line 2 in b\n"
      "  File \"/prism/python/prism/program.py\", line 3 in run\n"
      "  File \"<frozen runpy>\", line 88 in _run_code\n";
  EXPECT_EQ(UserFrames(stack, "/prism/python/prism"),
            "train.py:12 in step < <string>:40 in main < a.py:1 in a");
  EXPECT_EQ(UserFrames("", "/prism/python/prism"), "");
  EXPECT_EQ(UserFrames("  File \"/prism/python/prism/program.py\", line 3 in run\n",
                       "/prism/python/prism"),
            "");
}

}  // namespace
}  // namespace prism::cli
