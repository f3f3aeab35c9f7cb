#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/base/error.h"
#include "engine/program/auto/plan_source.h"
#include "engine/program/auto/search_space.h"
#include "engine/program/layout.h"
#include "engine/program/simulate.h"
#include "engine/program/stage_search.h"

namespace dstrain {

/// What choices that divide the blocks alike have in common.
struct BlockTable {
  ModelCost cost;  ///< of the largest micro-batch, `micro`
  int micro = 1;
  double sample_s = 0;                ///< forward and backward of all blocks, by sample
  double longest_block_s = 0;         ///< the same of the block that takes longest
  std::vector<double> min_forward_s;  ///< [n]: of the n blocks with the shortest forwards
  Bytes largest_activation = 0;       ///< saved tensors of a block, by sample
};

/// What choices have in common that cut and share the states alike.
struct LayoutTable {
  Layout layout;
  std::vector<GroupSeconds> groups = {};
  Bytes states = 0;   ///< of the average pipeline rank, at rest
  double host_s = 0;  ///< the same of updates of states on the host
};

/// Seconds and bytes of each block whose backward is run at once, as without a pipeline; with two
/// micro-batches at once, what a block keeps from the other one.
[[nodiscard]] StageCosts joined_costs(const Layout& layout, const ModelCost& cost,
                                      const Machine& machine, bool two_at_once);

/// What a rule says of the choice that it refuses, without its hint.
[[nodiscard]] std::string reason_of(const Error& error);

/// Costs of choices, each worked out once.
class CostTables {
 public:
  CostTables(const PlanSource& source, const Machine& machine, int ranks);

  /// Error{usage} where rules refuse the choice.
  [[nodiscard]] Recipe recipe(const PlanChoice& choice) const {
    return source_.recipe(settings(choice));
  }
  /// Cost of a micro-batch of the choice.
  const ModelCost& cost(const PlanChoice& choice, const Recipe& recipe);
  /// Table for the choice's degrees; made by the first one that is asked for, which should have the
  /// largest micro-batch. Nothing where rules refuse it, refusal() says why.
  const BlockTable* blocks(const PlanChoice& choice);
  [[nodiscard]] const std::string& refusal(const PlanChoice& choice) const {
    return refusals_.at(lengths(choice));
  }
  /// The same for the states. Only where blocks() has a table.
  const LayoutTable* layout(const PlanChoice& choice);
  [[nodiscard]] const std::string& layout_refusal(const PlanChoice& choice) const {
    return layout_refusals_.at(shares(choice));
  }

 private:
  using DegreesKey = std::tuple<Degrees, bool>;
  using BlocksKey = std::tuple<DegreesKey, int>;
  using SharesKey = std::tuple<Degrees, int, int>;
  /// What the model's cost follows from. Without a pipeline small blocks share groups.
  [[nodiscard]] DegreesKey degrees(const PlanChoice& c) const {
    Degrees cut = c.degrees;
    cut.pipeline = 1;
    return {cut, small_blocks_ && c.degrees.pipeline > 1};
  }
  [[nodiscard]] BlocksKey lengths(const PlanChoice& c) const { return {degrees(c), c.concurrent}; }
  static SharesKey shares(const PlanChoice& c) { return {c.degrees, c.zero_stage, c.shard}; }
  [[nodiscard]] BlockTable make_blocks(const PlanChoice& choice);
  [[nodiscard]] LayoutTable make_layout(const PlanChoice& choice, const ModelCost& cost) const;

  const PlanSource& source_;
  const Machine& machine_;
  int ranks_;
  bool small_blocks_;
  std::map<std::tuple<DegreesKey, int>, ModelCost> costs_;
  std::map<BlocksKey, std::optional<BlockTable>> blocks_;
  std::map<SharesKey, std::optional<LayoutTable>> layouts_;
  std::map<BlocksKey, std::string> refusals_;
  std::map<SharesKey, std::string> layout_refusals_;
};

}  // namespace dstrain
