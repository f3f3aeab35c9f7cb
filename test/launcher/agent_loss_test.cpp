#include <csignal>
#include <thread>

#include "test/launcher/job.h"
#include "test/support/catch.h"

using namespace dstrain::launcher::test;
using dstrain::test::TempDir;
using std::chrono::milliseconds;

namespace {

const std::vector<std::string> kStubborn = {"ignore-term", "child", "daemon", "print",
                                            "ready",       "sleep", "30000"};

void wait_for_all(const Job& job) {
  REQUIRE(job.prints("[rank 0] ready"));
  while (job.log(1).find("ready") == std::string::npos)
    std::this_thread::sleep_for(milliseconds(2));
  // The agent, and of each rank itself, its child and its daemonised grandchild.
  while (job.alive().size() < 7) std::this_thread::sleep_for(milliseconds(2));
}

}  // namespace

TEST_CASE("kill -9 of the controller leaves nothing", "[launcher][loss]") {
  TempDir directory;
  Job job(directory, kStubborn);
  wait_for_all(job);
  job.signal(SIGKILL);
  REQUIRE(job.wait() == 137);
  CHECK(job.is_gone(milliseconds(2000)));
}

TEST_CASE("kill -9 of the agent leaves nothing and is reported", "[launcher][loss]") {
  TempDir directory;
  Job job(directory, kStubborn);
  wait_for_all(job);
  ::kill(job.agent(), SIGKILL);
  REQUIRE(job.wait() == 75);
  CHECK(job.is_gone(milliseconds(0)));
  CHECK(job.failure()["root"]["kind"] == "agent");
  CHECK(job.output().find("was lost (SIGKILL); its ranks were ended") != std::string::npos);
}

TEST_CASE("a controller killed at any moment of the start leaves nothing", "[launcher][loss]") {
  const int delay_ms = GENERATE(0, 1, 2, 3, 5, 8, 13, 21, 34);
  TempDir directory;
  Job job(directory, kStubborn);
  std::this_thread::sleep_for(milliseconds(delay_ms));
  job.signal(SIGKILL);
  REQUIRE(job.wait() == 137);
  CHECK(job.is_gone(milliseconds(2000)));
}

TEST_CASE("a stopped agent does not keep Ctrl-C from ending the job", "[launcher][loss]") {
  TempDir directory;
  Job job(directory, kStubborn);
  wait_for_all(job);
  ::kill(job.agent(), SIGSTOP);
  job.signal(SIGINT);
  REQUIRE(job.prints("finishing this step"));
  job.signal(SIGINT);
  REQUIRE(job.prints("again: ending now"));
  job.signal(SIGINT);
  REQUIRE(job.wait() == 130);
  CHECK(job.is_gone(milliseconds(2000)));
}
