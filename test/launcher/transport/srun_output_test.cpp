#include "launcher/transport/srun_output.h"

#include <csignal>

#include "test/support/catch.h"

using namespace dstrain::launcher;
using Kind = HostProblem::Kind;

TEST_CASE("srun's words name the node that has no program") {
  SrunOutput words;
  words.add("srun: cluster configuration lacks support for cpu binding");
  words.add(" 8: slurmstepd-h3: error: execve(): /none/dstrain: No such file or directory");
  words.add("srun: error: h3: task 8: Exited with exit code 2");
  REQUIRE(words.problem("h3"));
  CHECK(words.problem("h3")->kind == Kind::no_binary);
  CHECK(words.problem("h3")->text == "error: execve(): /none/dstrain: No such file or directory");
  CHECK_FALSE(words.problem("h1"));
  CHECK_FALSE(words.aborted());
}

TEST_CASE("srun's words about several nodes at once are read as a node list") {
  SrunOutput words;
  words.add("0: error: cannot reach the controller: 10.0.0.1:4711 does not answer");
  words.add("srun: error: n[1-2,07]: tasks 0-2: Exited with exit code 69");
  words.add("srun: error: n9: task 3: Killed");
  for (const char* node : {"n1", "n2", "n07"}) {
    CHECK(parse_srun_ending(words.ending(node)).exit_code == 69);
  }
  CHECK(parse_srun_ending(words.ending("n9")).signal == SIGKILL);
  CHECK(words.ending("n3").empty());
}

TEST_CASE("an agent's own last words are part of its node's problem") {
  SrunOutput words;
  words.add("1: error: cannot reach the controller: 10.0.0.1:4711 does not answer");
  words.add("srun: error: h2: task 1: Exited with exit code 69");
  REQUIRE(words.problem("h2"));
  CHECK(words.problem("h2")->kind == Kind::timeout);
  CHECK(words.problem("h2")->text ==
        "its agent ended (Exited with exit code 69): error: cannot reach the controller: "
        "10.0.0.1:4711 does not answer");
}

TEST_CASE("a node whose slurmd is dead is told from those that srun then ends") {
  SrunOutput words;
  words.add(
      "srun: error: Task launch for StepId=2.0 failed on node h3: Communication connection "
      "failure");
  words.add("srun: error: Application launch failed: Communication connection failure");
  CHECK(words.aborted());
  words.add("srun: Job step aborted: Waiting up to 7 seconds for job step to finish.");
  words.add("0: slurmstepd-h1: error: *** STEP 2.0 ON h1 CANCELLED AT 2026-11-22T01:29:14 ***");
  words.add("srun: error: h[1-2]: tasks 0-1: Killed");
  REQUIRE(words.problem("h3"));
  CHECK(words.problem("h3")->kind == Kind::connection);
  CHECK_FALSE(words.problem("h1"));
  CHECK_FALSE(words.problem("h2"));
  CHECK(words.own_line() == "Job step aborted: Waiting up to 7 seconds for job step to finish.");
}

TEST_CASE("endings in srun's words become exit codes and signals") {
  CHECK(parse_srun_ending("Exited with exit code 3").exit_code == 3);
  CHECK(parse_srun_ending("Terminated").signal == SIGTERM);
  CHECK(parse_srun_ending("Segmentation fault (core dumped)").signal == SIGSEGV);
  CHECK(parse_srun_ending("").signal == 0);
  CHECK(parse_srun_ending("Out Of Memory").signal == 0);
}

TEST_CASE("lines that only look like srun's change nothing") {
  SrunOutput words;
  for (const char* line :
       {"", ":", "srun:", "srun: error: ", "srun: error: : tasks : ", "7:", "slurmstepd-",
        "srun: error: h[1-: tasks 0: Killed", "srun: error: x: task",
        "srun: error: failed on node ", "slurmstepd-h1", "99999999999999: x"}) {
    words.add(line);
  }
  CHECK(words.ending("h1").empty());
  CHECK_FALSE(words.problem("h1"));
}
