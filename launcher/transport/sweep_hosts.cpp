#include "launcher/transport/sweep_hosts.h"

#include <fmt/format.h>

#include <memory>

#include "launcher/protocol/protocol.h"

namespace dstrain::launcher {
namespace {

class Sweeper final : public HostVisit {
 public:
  Sweeper(HostSweep& result, const std::string& run_directory)
      : result_(result), run_directory_(run_directory) {}

  void greeted(Channel& channel) override { channel.send(SweepRun{run_directory_}); }

  [[nodiscard]] bool take(Channel& /*channel*/, const Frame& frame) override {
    if (frame.type != FrameType::done) return false;
    result_.num_killed = unpack<AgentDone>(frame).num_leftovers;
    return true;
  }

  void fail(HostProblem problem) override {
    result_.problem = fmt::format("{}: {}", kind_name(problem.kind), problem.text);
  }

 private:
  HostSweep& result_;
  const std::string& run_directory_;
};

}  // namespace

std::vector<HostSweep> sweep_hosts(std::size_t num_hosts, Transport& transport,
                                   const SweepOptions& options) {
  std::vector<HostSweep> results(num_hosts);
  std::vector<std::unique_ptr<HostVisit>> sweepers;
  std::vector<HostVisit*> visits;
  for (HostSweep& result : results) {
    sweepers.push_back(std::make_unique<Sweeper>(result, options.run_directory));
    visits.push_back(sweepers.back().get());
  }
  visit_hosts(transport, visits,
              {.build = options.build,
               .answer_limit = options.limit,
               .deadline = HostVisit::Clock::now() + options.limit});
  return results;
}

}  // namespace dstrain::launcher
