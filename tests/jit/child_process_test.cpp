// Child processes: input, output, endings, the time limit.
#include "jit/child_process.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <string>

namespace tilewise::jit {
namespace {

constexpr double kLong = 60;

ChildResult shell(const std::string& script, std::string_view input = {}, double limit = kLong) {
  return run_child({"/bin/sh", "-c", script}, input, {}, limit);
}

TEST(ChildProcess, CarriesInputAndBothOutputs) {
  const std::string input(3'000'000, 'x');  // more than any pipe holds
  const ChildResult result = shell("cat; echo told >&2", input);
  EXPECT_TRUE(result.succeeded()) << result.ending();
  EXPECT_EQ(result.output, input);
  EXPECT_EQ(result.errors, "told\n");
}

TEST(ChildProcess, SurvivesAReaderThatStops) {
  const ChildResult result = shell("exec 0<&-; exit 3", std::string(3'000'000, 'x'));
  EXPECT_EQ(result.exit_status, 3);
  EXPECT_EQ(result.ending(), "exit status 3");
}

TEST(ChildProcess, RunsInItsFolderInEnglish) {
  const ChildResult result = run_child({"sh", "-c", "pwd; echo $LC_ALL"}, {}, "/usr", kLong);
  EXPECT_EQ(result.output, "/usr\nC\n");
}

TEST(ChildProcess, RunsInAFolderWhereTheSystemOnlyStartsProgramsHere) {
  const ChildResult result =
      run_child(command_in("/usr", {"sh", "-c", "pwd; echo \"$1\"", "a b", "c  'd'"}), {}, {}, kLong);
  EXPECT_EQ(result.output, "/usr\nc  'd'\n");
  EXPECT_FALSE(run_child(command_in("/no/such/folder", {"true"}), {}, {}, kLong).succeeded());
}

TEST(ChildProcess, TellsASignal) {
  const ChildResult result = shell("kill -ABRT $$");
  EXPECT_FALSE(result.succeeded());
  EXPECT_EQ(result.signal, SIGABRT);
  EXPECT_EQ(result.ending(), "ended by signal 6 (Aborted)");
}

TEST(ChildProcess, StopsWhatTakesTooLongWithItsChildren) {
  const ChildResult result = shell("echo begun; sleep 1000 & sleep 1000", {}, 0.2);
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.output, "begun\n");
  EXPECT_LT(result.seconds, 900);
}

TEST(ChildProcess, DoesNotWaitForWhatItLeavesBehind) {
  // The grandchild keeps the pipe open; it is ended with its group.
  const ChildResult result = shell("sleep 1000 & echo done");
  EXPECT_TRUE(result.succeeded()) << result.ending();
  EXPECT_EQ(result.output, "done\n");
  EXPECT_LT(result.seconds, 900);
}

TEST(ChildProcess, TellsWhatCannotStart) {
  const ChildResult result = run_child({"/no/such/program"}, {}, {}, kLong);
  EXPECT_FALSE(result.succeeded());
  EXPECT_EQ(result.ending(), "/no/such/program: No such file or directory");
}

TEST(ChildProcess, ManagesWhereItsEndIsNotTold) {
  // A caller may ignore SIGCHLD; the system then reaps children by itself.
  const auto former = signal(SIGCHLD, SIG_IGN);
  const ChildResult result = shell("echo done");
  signal(SIGCHLD, former);
  EXPECT_EQ(result.output, "done\n");
  EXPECT_TRUE(result.succeeded());
}

}  // namespace
}  // namespace tilewise::jit
