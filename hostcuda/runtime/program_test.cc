// Unmodified programs, compiled as their users compile them, on hostcuda's libraries.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace {

struct Outcome {
  int code;
  std::string text;
};

Outcome Shell(const std::string& command) {
  Outcome outcome{-1, {}};
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) outcome.text.append(buffer, n);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/hostcuda-program-test-XXXXXX";
    directory_ = mkdtemp(name);
    setenv("HOSTCUDA_SESSION", std::filesystem::path(directory_).filename().c_str(), 1);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

const std::string kSource = HOSTCUDA_SOURCE_DIR;
const std::string kLibraries = HOSTCUDA_LIB_DIR;
const std::string kRun = "LD_LIBRARY_PATH=" + kLibraries + " timeout 60 ";

TEST_F(ProgramTest, CompiledByNvccItComputesWithRegisteredBodies) {
  std::string nvcc = "nvcc";
  if (Shell("command -v nvcc").code != 0) nvcc = "/usr/local/cuda/bin/nvcc";
  if (Shell(nvcc + " --version").code != 0)
    GTEST_SKIP() << "there is no nvcc (looked on PATH and in /usr/local/cuda/bin)";
  const std::string program = directory_ + "/program";
  const Outcome built =
      Shell(nvcc + " -cudart shared -std=c++17 -arch=sm_90 -I" + kSource + "/hostcuda/include -o " +
            program + " " + kSource + "/hostcuda/runtime/testing/program.cu -ldl");
  ASSERT_EQ(built.code, 0) << built.text;
  const Outcome ran = Shell(kRun + program);
  EXPECT_EQ(ran.code, 0) << ran.text;
  EXPECT_EQ(ran.text, "ok 8 x NVIDIA H200\n");
}

TEST_F(ProgramTest, OfTheDriverApiComputesWithRegisteredBodies) {
  if (Shell("command -v g++").code != 0) GTEST_SKIP() << "there is no g++ on PATH";
  const std::string program = directory_ + "/driver_program";
  const Outcome built =
      Shell("g++ -std=c++17 -isystem " CUDA_INCLUDE " -I" + kSource + "/hostcuda/include -o " +
            program + " " + kSource + "/hostcuda/runtime/testing/driver_program.cc -L" +
            kLibraries + " -l:libcuda.so.1");
  ASSERT_EQ(built.code, 0) << built.text;
  const Outcome ran = Shell(kRun + program);
  EXPECT_EQ(ran.code, 0) << ran.text;
  EXPECT_EQ(ran.text, "1 4 9 16\n");
}

TEST_F(ProgramTest, ExportsAreTheRealLibrarys) {
  // Name and version node of every symbol, as the checked-in lists say.
  const Outcome runtime =
      Shell("nm -D --defined-only " + kLibraries +
            "/libcudart.so.13 | awk '$2==\"T\"{print $3}' | sort > " + directory_ +
            "/has; sed '/^#/d; s/$/@@libcudart.so.13/' " + kSource +
            "/hostcuda/runtime/entry_points.txt | sort | diff - " + directory_ + "/has");
  EXPECT_EQ(runtime.code, 0) << runtime.text;
  const Outcome driver =
      Shell("nm -D --defined-only " + kLibraries +
            "/libcuda.so.1 | awk '$2==\"T\"{print $3}' | grep -v ^hostcuda | sort > " + directory_ +
            "/has; sed '/^#/d; s/ .*//' " + kSource +
            "/hostcuda/driver/entry_points.txt | sort | diff - " + directory_ + "/has");
  EXPECT_EQ(driver.code, 0) << driver.text;
}

TEST_F(ProgramTest, LibrariesNeedNothingButTheCLibrary) {
  for (const char* library : {"/libcuda.so.1", "/libcudart.so.13"}) {
    const Outcome needed = Shell("readelf -d " + kLibraries + library +
                                 " | grep NEEDED | grep -v -e libc.so.6 -e libm.so.6 -e ld-linux");
    EXPECT_NE(needed.code, 0) << needed.text;
  }
}

}  // namespace
