#include <csignal>
#include <thread>

#include "launcher/transport/transport.h"
#include "test/launcher/job.h"
#include "test/support/catch.h"

using namespace dstrain::launcher;
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

TEST_CASE("kill -9 of the controller leaves nothing", "[launcher][loss][alone][not_emulated]") {
  TempDir directory;
  Job job(directory, kStubborn);
  wait_for_all(job);
  job.signal(SIGKILL);
  REQUIRE(job.wait() == 137);
  CHECK(job.is_gone(milliseconds(2000)));
}

TEST_CASE("kill -9 of the agent leaves nothing and is reported",
          "[launcher][loss][alone][not_emulated]") {
  TempDir directory;
  Job job(directory, kStubborn);
  wait_for_all(job);
  ::kill(job.agent(), SIGKILL);
  REQUIRE(job.wait() == 75);
  CHECK(job.is_gone(milliseconds(0)));
  CHECK(job.failure()["root"]["kind"] == "agent");
  CHECK(job.output().find("was lost (SIGKILL); its ranks were ended") != std::string::npos);
}

TEST_CASE("a controller killed at any moment of the start leaves nothing",
          "[launcher][loss][alone]") {
  const int delay_ms = GENERATE(0, 1, 2, 3, 5, 8, 13, 21, 34);
  TempDir directory;
  Job job(directory, kStubborn);
  std::this_thread::sleep_for(milliseconds(delay_ms));
  job.signal(SIGKILL);
  REQUIRE(job.wait() == 137);
  CHECK(job.is_gone(milliseconds(2000)));
}

TEST_CASE("a stopped agent does not keep Ctrl-C from ending the job",
          "[launcher][loss][alone][not_emulated]") {
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

TEST_CASE("combined local transports end the agent of the named node alone",
          "[launcher][loss][alone]") {
  std::vector<std::unique_ptr<Transport>> parts;
  parts.push_back(make_local_transport(0, {"/bin/cat"}));
  parts.push_back(make_local_transport(1, {"/bin/cat"}));
  const std::unique_ptr<Transport> both = combine(std::move(parts));
  std::vector<AgentLink> links(3);
  both->advance(links, std::chrono::steady_clock::now());
  REQUIRE(links[0].channel);
  REQUIRE(links[1].channel);

  both->kill(2);
  CHECK(both->end(2, milliseconds(0)).signal == 0);
  both->kill(1);
  CHECK(both->end(1, milliseconds(5000)).signal == SIGKILL);
  links[0].channel.reset();
  const AgentEnding last = both->end(0, milliseconds(5000));
  CHECK(last.signal == 0);
  CHECK(last.exit_code == 0);
}
