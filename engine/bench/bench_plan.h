#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/bench/variants.h"

namespace dstrain::bench {

enum class Scaling {
  none,
  weak,   ///< batch.global grows with the ranks
  strong  ///< batch.global stays
};

/// Runs of one recipe, variant and number of ranks.
struct Case {
  std::size_t recipe = 0;   ///< in BenchPlan::recipes
  std::size_t variant = 0;  ///< in BenchPlan::variants
  int ranks = 1;

  bool operator==(const Case&) const = default;
};

/// What is run and compared.
struct BenchPlan {
  std::vector<std::string> recipes;  ///< files
  std::vector<Variant> variants;     ///< the first is the baseline
  std::vector<int> ranks;            ///< counts of ranks; the first is what scaling starts from
  Scaling scaling = Scaling::none;
  int repeat = 3;
  int steps = 60;   ///< that count; 0: the recipe's own length, which counts as a whole
  int warmup = 20;  ///< before these
  std::vector<std::string> overrides = {};    ///< of every run
  std::vector<std::string> environment = {};  ///< NAME=VALUE, of every run's ranks
  /// Training samples of a run, times its ranks; 0: the recipe's.
  std::int64_t samples_per_rank = 0;
  /// In the order of cases(); empty: every recipe, variant and number of ranks.
  std::vector<Case> chosen = {};
};

/// In the order of tables: by recipe, ranks, variant.
[[nodiscard]] std::vector<Case> cases(const BenchPlan& plan);

/// One run.
struct Turn {
  std::size_t index = 0;  ///< in cases()
  int repeat = 1;         ///< from 1
};
/// In the order in which they are run: the variants of a recipe and number of ranks by turns, A B,
/// then B A, so that a drift of the machine falls on both.
[[nodiscard]] std::vector<Turn> turns(const BenchPlan& plan);

/// "vit-huge_random_ddp": the recipe's file without folder and ending; with a number where two
/// have that name.
[[nodiscard]] std::string recipe_name(const BenchPlan& plan, std::size_t recipe);
/// The name of a run's folder: "vit-huge_random_ddp-zero2-2-ranks-1".
[[nodiscard]] std::string run_name(const BenchPlan& plan, const Turn& turn);
/// What a run changes in its recipe, but for its folder. Error where the recipe cannot be read, its
/// global batch does not fit the number of ranks or its data have no limit of samples.
[[nodiscard]] std::vector<std::string> turn_overrides(const BenchPlan& plan, const Turn& turn);
/// A hash of the recipe's file and turn_overrides(): equal for runs that train the same.
[[nodiscard]] std::string turn_fingerprint(const BenchPlan& plan, const Turn& turn);
/// The command line of the program, which runs `turn` into `folder`/NAME. Error as turn_overrides().
[[nodiscard]] std::vector<std::string> launch_arguments(const BenchPlan& plan, const Turn& turn,
                                                        const std::filesystem::path& folder);

/// What must be equal for a bench to go on.
[[nodiscard]] nlohmann::ordered_json plan_json(const BenchPlan& plan);

}  // namespace dstrain::bench
