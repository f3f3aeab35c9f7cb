#include "engine/program/auto/auto_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/program/auto/estimate.h"
#include "engine/program/recompute_choice.h"
#include "engine/recipe/axes.h"
#include "engine/recipe/families.h"

namespace dstrain {
namespace {

/// A choice with what is known of it so far.
struct Candidate {
  PlanChoice choice;
  Bound bound;
  std::optional<Estimate> estimate = {};
  std::string refusal = {};
};

/// Steps that differ by less than this factor are equal, as predictions are no better.
constexpr double kEqual = 1.01;

/// In the order of kAxisKeys.
std::array<int, kAxisKeys.size()> degrees_of(const PlanChoice& choice) {
  std::array<int, kAxisKeys.size()> degrees{};
  std::ranges::transform(kAxisKeys, degrees.begin(),
                         [&](const AxisKey& key) { return choice.degrees[key.axis]; });
  return degrees;
}

auto split_axes(const PlanChoice& choice) {
  return std::ranges::count_if(degrees_of(choice), [](int degree) { return degree > 1; });
}

/// By step; of those that are equal to the shortest, the ones with the fewest axes come first.
template <class Items, class Step, class Choice>
void sort_by_step(Items& items, Step step, Choice choice) {
  if (items.empty()) return;
  std::ranges::stable_sort(items, {}, step);
  const double equal = kEqual * step(items.front());
  const auto end = std::ranges::find_if(items, [&](const auto& i) { return step(i) > equal; });
  std::ranges::stable_sort(items.begin(), end, {},
                           [&](const auto& i) { return split_axes(choice(i)); });
}

/// Choices that the report speaks of by one name.
struct Family {
  std::string name;
  std::function<bool(const PlanChoice&)> has;
};

std::vector<Family> families(int ranks) {
  std::vector<Family> list = {
      {"data alone", [ranks](const PlanChoice& c) { return c.data_ranks(ranks) == ranks; }}};
  for (const AxisKey& key : kAxisKeys) {
    list.push_back({axis_name(key.axis),
                    [axis = key.axis](const PlanChoice& c) { return c.degrees[axis] > 1; }});
  }
  for (int stage = 0; stage <= 3; ++stage) {
    list.push_back({fmt::format("ZeRO stage {}", stage), [ranks, stage](const PlanChoice& c) {
                      return c.zero_stage == stage && c.data_ranks(ranks) > 1;
                    }});
  }
  return list;
}

class Search {
 public:
  Search(const Recipe& recipe, const PlanSource& source, const Machine& machine,
         const AutoOptions& options)
      : recipe_(recipe),
        machine_(machine),
        options_(options),
        tables_(source, machine, options.ranks) {}
  AutoPlan run();

 private:
  [[nodiscard]] std::vector<PlanChoice> space();
  void bound_all(const std::vector<PlanChoice>& choices);
  void estimate_all();
  bool estimate(Candidate& candidate);
  std::optional<AutoRow> build(Candidate& candidate);
  void build_best();
  [[nodiscard]] std::optional<AutoRow> best_of(const std::function<bool(const PlanChoice&)>& has);
  void add_families(const std::vector<PlanChoice>& choices);
  void rank_rows();
  [[nodiscard]] Error no_layout() const;
  [[nodiscard]] std::string why_not(const Family& family, const std::vector<PlanChoice>& choices);
  [[nodiscard]] BatchPlan batch(const PlanChoice& choice) const;
  [[nodiscard]] bool too_large(Bytes memory) const;
  [[nodiscard]] Bytes memory() const;

  const Recipe& recipe_;
  const Machine& machine_;
  const AutoOptions& options_;
  CostTables tables_;
  std::vector<Candidate> candidates_;  ///< by bound
  std::vector<Candidate> excluded_;    ///< larger than the memory
  std::vector<AutoRow> rows_;          ///< built
  AutoPlan plan_;
};

BatchPlan Search::batch(const PlanChoice& choice) const {
  return plan_batch({.global = recipe_.batch.global, .micro = choice.micro},
                    choice.data_ranks(options_.ranks));
}

/// What a rank may hold; 0: not known.
Bytes Search::memory() const { return memory_limit(recipe_, {}, {}, {}, machine_).bytes; }

bool Search::too_large(Bytes bytes) const { return memory() > 0 && bytes > memory(); }

std::vector<PlanChoice> Search::space() {
  SearchSpace space{.ranks = options_.ranks,
                    .ranks_per_node = machine_.ranks_per_node,
                    .blocks = std::numeric_limits<int>::max(),
                    .global = recipe_.batch.global};
  const ModelFamily* family = family_of(recipe_.model.name);
  space.text = family == nullptr || family->modality == Modality::text;
  space.experts = recipe_.model.experts;
  const PublishedModel* published = published_model(recipe_.model.name);
  if (space.experts == 0 && published != nullptr)
    space.experts = static_cast<int>(published->sizes.experts);
  space.lanes = !machine_.shares_memory;
  const auto global = static_cast<unsigned>(recipe_.batch.global);
  const PlanChoice largest{.micro = static_cast<int>(std::bit_floor(global))};
  const BlockTable* whole = tables_.blocks(largest);
  if (whole == nullptr) throw Error(ErrorKind::usage, tables_.refusal(largest), "");
  const std::vector<BlockCost>& blocks = whole->cost.blocks;
  space.blocks = static_cast<int>(blocks.size());
  space.kernels = std::ranges::any_of(
      blocks, [](const BlockCost& block) { return !block.forward_kernels.empty(); });
  return all_choices(space);
}

/// The largest micro-batches come first: the tables are made of them.
void Search::bound_all(const std::vector<PlanChoice>& choices) {
  std::vector<PlanChoice> ordered = choices;
  std::ranges::stable_sort(ordered, std::ranges::greater(), &PlanChoice::micro);
  for (const PlanChoice& choice : ordered) {
    const BlockTable* blocks = tables_.blocks(choice);
    const LayoutTable* layout = blocks == nullptr ? nullptr : tables_.layout(choice);
    if (layout == nullptr) continue;
    const Bound bound =
        lower_bound(choice, *blocks, *layout, batch(choice).micro_batches, machine_);
    (too_large(bound.memory) ? excluded_ : candidates_).push_back({choice, bound});
  }
  // The simplest of equal ones comes first.
  std::ranges::stable_sort(candidates_, {}, [](const Candidate& c) {
    return std::tuple(c.bound.step_s, degrees_of(c.choice), c.choice.concurrent,
                      c.choice.zero_stage);
  });
}

/// False where it cannot run.
bool Search::estimate(Candidate& candidate) {
  if (candidate.estimate) return candidate.estimate->fits();
  if (!candidate.refusal.empty()) return false;
  try {
    const Recipe recipe = tables_.recipe(candidate.choice);
    candidate.estimate = estimate_step(
        candidate.choice, recipe, tables_.cost(candidate.choice, recipe),
        *tables_.layout(candidate.choice), batch(candidate.choice).micro_batches, machine_);
    ++plan_.simulated;
    candidate.choice.schedule = candidate.estimate->schedule;
    candidate.choice.chunks = candidate.estimate->chunks;
    return candidate.estimate->fits();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    candidate.refusal = reason_of(error);
    return false;
  }
}

void Search::estimate_all() {
  std::vector<double> times;  // of those that fit, ascending
  const std::size_t wanted = to_index(options_.top);
  for (Candidate& candidate : candidates_) {
    if (times.size() >= wanted &&
        candidate.bound.step_s > std::max(times[wanted - 1], kEqual * times.front()))
      return;
    if (!estimate(candidate)) continue;
    const double time = candidate.estimate->step_s;
    times.insert(std::ranges::upper_bound(times, time), time);
  }
}

/// Nothing where it cannot run or does not fit.
std::optional<AutoRow> Search::build(Candidate& candidate) {
  const PlanChoice& choice = candidate.choice;
  ++plan_.built;
  try {
    const Recipe recipe = tables_.recipe(choice);
    const ModelCost& cost = tables_.cost(choice, recipe);
    AutoRow row = simulated_row(choice, recipe, cost,
                                make_strategy(recipe, cost, options_.ranks, machine_), machine_);
    if (!row.fits()) {
      candidate.estimate->memory = row.memory;
      return {};
    }
    rows_.push_back(row);
    return row;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    candidate.refusal = reason_of(error);
    return {};
  }
}

/// The best by their estimates.
void Search::build_best() {
  std::vector<Candidate*> order;
  for (Candidate& candidate : candidates_) {
    if (candidate.estimate && candidate.estimate->fits()) order.push_back(&candidate);
  }
  sort_by_step(
      order, [](const Candidate* c) { return c->estimate->step_s; },
      [](const Candidate* c) { return c->choice; });
  for (Candidate* candidate : order) {
    if (rows_.size() == to_index(options_.top)) break;
    build(*candidate);
  }
}

/// The shortest built step of `has`. The one with the best estimate is built where that is shorter.
std::optional<AutoRow> Search::best_of(const std::function<bool(const PlanChoice&)>& has) {
  constexpr std::size_t kMaxTried = 32;
  std::vector<Candidate*> tried;
  double best = std::numeric_limits<double>::max();
  for (Candidate& candidate : candidates_) {
    if (tried.size() == kMaxTried || candidate.bound.step_s > best) break;
    if (!has(candidate.choice) || !estimate(candidate)) continue;
    tried.push_back(&candidate);
    best = std::min(best, candidate.estimate->step_s);
  }
  std::ranges::stable_sort(tried, {}, [](const Candidate* c) { return c->estimate->step_s; });
  std::optional<AutoRow> row;
  for (const AutoRow& built : rows_) {
    if (has(built.choice) && (!row || built.step_s < row->step_s)) row = built;
  }
  for (Candidate* candidate : tried) {
    if (row && candidate->estimate->step_s >= row->step_s) break;
    const bool known = std::ranges::find(rows_, candidate->choice, &AutoRow::choice) != rows_.end();
    const auto built = known ? std::nullopt : build(*candidate);
    if (!built) continue;
    if (!row || built->step_s < row->step_s) row = built;
    break;
  }
  return row;
}

/// The rules, else the memory that the smallest needs.
std::string Search::why_not(const Family& family, const std::vector<PlanChoice>& choices) {
  Bytes min = std::numeric_limits<Bytes>::max();
  for (const Candidate& candidate : excluded_) {
    if (family.has(candidate.choice)) min = std::min(min, candidate.bound.memory);
  }
  for (const Candidate& candidate : candidates_) {
    if (!family.has(candidate.choice)) continue;
    if (!candidate.refusal.empty()) return candidate.refusal;
    if (candidate.estimate) min = std::min(min, candidate.estimate->memory);
  }
  if (min < std::numeric_limits<Bytes>::max())
    return fmt::format("needs {} of {}", format_bytes(min), format_bytes(memory()));
  for (const PlanChoice& choice : choices) {
    if (!family.has(choice)) continue;
    return tables_.blocks(choice) == nullptr ? tables_.refusal(choice)
                                             : tables_.layout_refusal(choice);
  }
  return "";
}

void Search::add_families(const std::vector<PlanChoice>& choices) {
  for (const Family& family : families(options_.ranks)) {
    if (!std::ranges::any_of(choices, family.has)) continue;
    AutoFamily named{.name = family.name, .best = best_of(family.has), .reason = {}};
    if (!named.best) named.reason = why_not(family, choices);
    plan_.families.push_back(std::move(named));
  }
}

/// The first of all that were built; families of the first are none that lost.
void Search::rank_rows() {
  sort_by_step(
      rows_, [](const AutoRow& row) { return row.step_s; },
      [](const AutoRow& row) { return row.choice; });
  const std::size_t top = std::min(rows_.size(), to_index(options_.top));
  plan_.rows.assign(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(top));
  const PlanChoice first = rows_.front().choice;
  const std::vector<Family> all = families(options_.ranks);
  std::erase_if(plan_.families, [&](const AutoFamily& family) {
    return std::ranges::find(all, family.name, &Family::name)->has(first);
  });
  std::erase_if(plan_.defaults, [&](const AutoRow& row) {
    return std::ranges::find(plan_.rows, row.choice, &AutoRow::choice) != plan_.rows.end();
  });
}

Error Search::no_layout() const {
  std::vector<std::string> reasons;
  for (const AutoFamily& family : plan_.families) {
    if (std::ranges::find(reasons, family.reason) == reasons.end())
      reasons.push_back(family.reason);
  }
  if (reasons.empty())
    reasons.push_back(
        fmt::format("batch.global: {} leaves ranks without a sample", recipe_.batch.global));
  return {ErrorKind::usage,
          fmt::format("no layout of {} ranks can run this recipe: {}", options_.ranks,
                      fmt::join(reasons, "; ")),
          "with too few samples for the ranks raise batch.global; with too little memory use more "
          "ranks, a shorter data.sequence or memory.offload"};
}

AutoPlan Search::run() {
  const std::vector<PlanChoice> choices = space();
  plan_.ranks = options_.ranks;
  plan_.machine = machine_;
  plan_.choices = static_cast<int>(choices.size());
  bound_all(choices);
  estimate_all();
  build_best();
  const auto is_default = [&](const PlanChoice& c) { return is_default_layout(c, options_.ranks); };
  if (auto row = best_of(is_default)) plan_.defaults.push_back(std::move(*row));
  add_families(choices);
  if (!rows_.empty()) {
    rank_rows();
    return std::move(plan_);
  }
  throw no_layout();
}

}  // namespace

AutoPlan search_plan(const Recipe& recipe, const PlanSource& source, const Machine& machine,
                     const AutoOptions& options) {
  return Search(recipe, source, machine, options).run();
}

}  // namespace dstrain
