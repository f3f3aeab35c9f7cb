#include "cmd/fit_proposals.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "cmd/memory_planner.h"
#include "engine/base/units.h"

namespace dstrain {
namespace {

class FitSearch {
 public:
  FitSearch(const std::string& recipe, const std::vector<std::string>& overrides, int ranks,
            Machine machine)
      : planner_(recipe, overrides, ranks),
        recipe_(planner_.recipe()),
        ranks_(ranks),
        machine_(std::move(machine)) {
    const int data_ranks = planner_.data_ranks();
    // With fillers.
    const auto samples = [&](int micro) {
      const int each = micro * data_ranks;
      return (recipe_.batch.global + each - 1) / each * each;
    };
    for (int micro = 1; data_ranks > 0 && micro < recipe_.batch.micro; ++micro) {
      if (samples(micro) <= samples(recipe_.batch.micro)) smaller_.push_back(micro);
    }
  }

  [[nodiscard]] PlannedMemory plan(const std::vector<std::string>& settings) const {
    return planner_.plan(settings, machine_, "--fit");
  }

  [[nodiscard]] std::vector<FitProposal> proposals() const {
    std::vector<FitProposal> found;
    const auto add = [&found](std::optional<FitProposal> proposal) {
      if (proposal) found.push_back(*std::move(proposal));
      return proposal.has_value();
    };
    if (recipe_.batch.concurrent > 1) add(fitting({"batch.concurrent=1"}));
    add(smaller_batch({}));
    if (recipe_.precision.states == StateType::fp32) add(fitting({kSplit}));
    if (recipe_.memory.recompute != Recompute::none || !add(fitting({kRecompute}))) add(in_tiles());
    for (int stage = recipe_.parallel.zero.stage + 1; ranks_ > 1 && stage <= kMaxStage; ++stage) {
      if (add(at_least({fmt::format("parallel.zero.stage={}", stage)}))) break;
    }
    if (recipe_.memory.offload.optimizer == OffloadPlace::device)
      add(at_least({"memory.offload.optimizer=pinned"}));
    // By themselves too little, all of them together may do.
    if (found.empty() && ranks_ > 1)
      add(at_least({"parallel.zero.stage=3", "memory.offload.optimizer=pinned"}));
    std::ranges::stable_sort(found, {}, &FitProposal::step_s);
    return found;
  }

 private:
  static constexpr const char* kSplit = "precision.states=fp32_split";
  static constexpr const char* kRecompute = "memory.recompute=auto";
  static constexpr const char* kTiles = "memory.tiles=4096";
  static constexpr const char* kInputs = "memory.offload.activations=pinned";
  static constexpr const char* kWeights = "memory.offload.parameters=pinned";
  static constexpr int kMaxStage = 3;

  /// Nothing: it does not fit, or is no recipe for these ranks.
  [[nodiscard]] std::optional<FitProposal> fitting(std::vector<std::string> settings) const {
    try {
      const PlannedMemory made = plan(settings);
      if (!made.fits()) return std::nullopt;
      return FitProposal{std::move(settings), made.memory, made.step_s};
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  /// The largest micro-batch below the recipe's that fits beside `settings`.
  [[nodiscard]] std::optional<FitProposal> smaller_batch(
      const std::vector<std::string>& settings) const {
    std::optional<FitProposal> best;
    // Larger ones take more memory.
    std::size_t low = 0, high = smaller_.size();
    while (low < high) {
      const std::size_t middle = best ? low + (high - low) / 2 : low;
      std::vector<std::string> smaller = settings;
      smaller.push_back(fmt::format("batch.micro={}", smaller_[middle]));
      auto found = fitting(std::move(smaller));
      if (!found && !best) return std::nullopt;
      (found ? low : high) = found ? middle + 1 : middle;
      if (found) best = std::move(found);
    }
    return best;
  }

  /// MLPs in tiles, with inputs of blocks and then weights on the host where that is not enough.
  [[nodiscard]] std::optional<FitProposal> in_tiles() const {
    if (recipe_.memory.tiles > 0) return std::nullopt;
    std::vector<std::string> settings = {kRecompute, kTiles};
    if (auto alone = fitting(settings)) return alone;
    for (const char* more : {kInputs, kWeights}) {
      settings.emplace_back(more);
      if (auto found = fitting(settings)) return found;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<FitProposal> at_least(std::vector<std::string> settings) const {
    if (auto alone = fitting(settings)) return alone;
    if (recipe_.memory.recompute == Recompute::none) {
      settings.emplace_back(kRecompute);
      if (auto recomputed = fitting(settings)) return recomputed;
    }
    return smaller_batch(settings);
  }

  MemoryPlanner planner_;
  const Recipe& recipe_;
  int ranks_;
  Machine machine_;
  std::vector<int> smaller_;  ///< batch.micro below the recipe's, without more fillers
};

std::string fit_gib(Bytes bytes) {
  return fmt::format("{:.2f} GiB", std::ldexp(static_cast<double>(bytes), -30));
}

}  // namespace

FitReport look_for_fit(const std::string& recipe, const std::vector<std::string>& overrides,
                       int ranks, const Machine& machine) {
  const FitSearch search(recipe, overrides, ranks, machine);
  const PlannedMemory made = search.plan({});
  FitReport report{
      .machine = machine.name, .needed = made.memory, .limit = made.limit, .proposals = {}};
  if (!report.fits()) report.proposals = search.proposals();
  return report;
}

std::string misfit_text(const FitReport& report) {
  return fmt::format("a rank needs {}, and has {} on {}", fit_gib(report.needed),
                     fit_gib(report.limit), report.machine);
}

std::string proposals_text(const FitReport& report) {
  if (report.proposals.empty())
    return "neither a smaller batch.micro nor recomputation, tiles, ZeRO or states, inputs and "
           "weights on the host make it fit; take more ranks";
  std::string text = "what fits, with memory of a rank and planned step:";
  for (const FitProposal& proposal : report.proposals) {
    text += fmt::format("\n    {:<64} {:>11} {:>9.1f} ms",
                        fmt::format("--set {}", fmt::join(proposal.settings, " --set ")),
                        fit_gib(proposal.memory), proposal.step_s * 1e3);
  }
  return text;
}

}  // namespace dstrain
