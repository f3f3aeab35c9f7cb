#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

#include "engine/base/index.h"
#include "engine/base/replica_words.h"
#include "engine/base/words.h"
#include "engine/device/device.h"
#include "engine/train/session/session.h"

/// What a session says of ranks that should hold the same and do not.
namespace dstrain {
namespace {

/// "rank 3 on n2, rank 9 on n5", of many the first.
std::string named(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  constexpr std::size_t kMax = 8;
  std::vector<std::string> list;
  for (const int rank : ranks) {
    if (list.size() == kMax) break;
    list.push_back(fmt::format("rank {} on {}", rank, hosts.at(to_index(rank))));
  }
  const std::size_t more = ranks.size() - list.size();
  return fmt::format("{}{}", fmt::join(list, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace

void Session::open_replicas(const World& world) {
  flipped_ = FlippedBit::of_environment(groups_);
  if (flipped_) notes_.push_back(flipped_->note());
  // Ranks that exchange nothing drift apart, and are to.
  if (world.size == 1 || recipe_.run.compare_replicas == 0 || !skipped_.note().empty()) return;
  if (recipe_.optimizer.name == OptimizerName::muon && device_.is_cuda()) {
    // Each rank multiplies matrices by the algorithm that was fastest there.
    notes_.push_back(
        "run.compare_replicas has no effect: updates by muon may differ in bits between GPUs");
    return;
  }
  const auto open = [&](std::optional<Replicas>& replicas, Replicas::Kind kind) {
    replicas.emplace(kind, strategy_->layout, strategy_->mesh, world.rank, *states_,
                     device_.device);
  };
  open(parameter_replicas_, Replicas::Kind::parameters);
  open(state_replicas_, Replicas::Kind::states);
  if (const int groups = parameter_replicas_->num_left_out(); groups > 0)
    notes_.push_back(
        fmt::format("run.compare_replicas: {} group{} of parameters rest on the host "
                    "and are not compared",
                    groups, plural(groups)));
}

Session::WrongReplica Session::describe_replicas(const Replicas& replicas,
                                                 const Replicas::Hashes& hashes,
                                                 const std::string& what, std::int64_t steps) {
  const int own = communicators_.at(kWorldChannel).rank();
  const ReplicaVerdict found = replicas.find(hashes, communicators_.at(kWorldChannel));
  const bool known = !found.wrong.empty();
  const std::vector<int>& ranks = known ? found.wrong : found.suspects;
  const std::string who = named(ranks, found.hosts);
  std::string where = cost_.groups.at(to_index(found.groups.front())).name;
  if (const std::size_t more = found.groups.size() - 1; more > 0)
    where += fmt::format(" and {} more group{}", more, plural(more));
  const std::string text =
      known ? fmt::format(
                  "{}: {} {} other {} than most ranks that should hold the same, after "
                  "step {}, in {}",
                  kWrongReplica, who, ranks.size() == 1 ? "holds" : "hold", what, steps, where)
            : fmt::format(
                  "{}: {} should hold the same {} and do not, after step {}, in {}; no "
                  "majority says which is wrong",
                  kReplicasDiffer, who, what, steps, where);
  return {.own = std::ranges::find(ranks, own) != ranks.end(), .ranks = who, .text = text};
}

std::optional<Session::WrongReplica> Session::look_at_replicas(const StepOutcome& outcome) {
  if (!outcome.replicas || Replicas::equal(*outcome.replicas)) return std::nullopt;
  synchronize(device_.device);  // a step may be under way
  return describe_replicas(*parameter_replicas_, *outcome.replicas, "weights", outcome.step + 1);
}

std::optional<Session::WrongReplica> Session::compare_states() {
  if (!compares_states()) return std::nullopt;
  const Replicas::Hashes hashes = state_replicas_->compare(communicators_.at(kWorldChannel));
  synchronize(device_.device);
  if (Replicas::equal(hashes)) return std::nullopt;
  return describe_replicas(*state_replicas_, hashes, "states", next_step_);
}

}  // namespace dstrain
