#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace dstrain::bench {

/// What rests on the host.
enum class ZeroOffload { none, optimizer, optimizer_and_parameters };
/// How the states of a training are held, a label of `bench zero`.
struct ZeroWay {
  int stage = 0;
  ZeroOffload offload = ZeroOffload::none;
  bool pinned = true;  ///< host memory is page-locked; without offload always true

  bool operator==(const ZeroWay&) const = default;
};

/// Where a layout comes from, a label of `bench parallel`.
struct SearchRow {
  /// Recipe whose search by `dstrain plan --auto` it is compared with; -1: none.
  int recipe = -1;
  int row = 0;              ///< of that search, from 1; 0: the recipe's own layout
  double step_s = 0;        ///< as predicted there
  bool is_default = false;  ///< a layout that is shown whatever its time
};

/// A training of a bench, BenchPlan::repeat runs.
struct Case {
  std::size_t recipe = 0;  ///< in BenchPlan::recipes
  int ranks = 1;
  std::string name = {};                    ///< what its runs are called by: "zero2+recompute"
  std::vector<std::string> overrides = {};  ///< what it changes in the recipe
  bool weak = false;                        ///< of a series in which a rank's batch stays
  bool strong = false;                      ///< in which the batch of all stays
  /// Ranks with which its series starts: batch.global of the recipe is for so many, and rates are
  /// held against theirs. 0: there is no such series, or `overrides` set the batch.
  int first_ranks = 0;
  /// Training samples, times the ranks; 0: the recipe's.
  std::int64_t samples_per_rank = 0;
  ZeroWay way = {};
  int samples = 0;  ///< of a step where `overrides` set it
  SearchRow search = {};
};

/// What every bench of runs is asked for.
struct BenchOptions {
  std::vector<std::string> recipes;    ///< files
  std::vector<int> ranks;              ///< numbers of ranks
  std::vector<std::string> overrides;  ///< of every run
  std::string output;                  ///< folder
  bool resume = true;                  ///< goes on with the bench that the folder holds
  bool retry = false;                  ///< runs that failed are made again
  bool json = false;                   ///< instead of tables on the terminal
};

/// What is run and compared.
struct BenchPlan {
  std::vector<std::string> recipes;  ///< files
  std::vector<Case> cases = {};  ///< in the order of tables; those of a recipe and ranks together
  int repeat = 3;
  int steps = 60;                             ///< that count; 0: the recipe's own length
  int warmup = 20;                            ///< before these
  int tail = 0;                               ///< behind these
  std::vector<std::string> overrides = {};    ///< of every run
  std::vector<std::string> environment = {};  ///< NAME=VALUE, of every run's ranks
};

/// One run.
struct Turn {
  std::size_t index = 0;  ///< in BenchPlan::cases
  int repeat = 1;         ///< from 1
};
/// In the order in which they are run: the cases of a recipe and number of ranks by turns, A B,
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
/// The command line of the program, which runs `turn` into `folder`/NAME. Error as
/// turn_overrides().
[[nodiscard]] std::vector<std::string> launch_arguments(const BenchPlan& plan, const Turn& turn,
                                                        const std::filesystem::path& folder);

/// bench.json.
[[nodiscard]] nlohmann::ordered_json plan_json(const BenchPlan& plan);

}  // namespace dstrain::bench
