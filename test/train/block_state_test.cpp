#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "engine/checkpoint/checkpoint.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/train/small_rank.h"

// Untrained state of blocks in checkpoints.

namespace dstrain {
namespace {

using test::Setup;
using test::SmallRank;
using test::with_ranks;

TEST_CASE("untrained state is saved by one rank and restored on any number",
          "[train][checkpoint]") {
  const int saving_stage = GENERATE(0, 2), resuming_stage = GENERATE(1, 3);
  const test::TempDir folder;
  std::vector<at::Tensor> saved;
  std::vector<double> losses;
  std::mutex mutex;
  std::vector<std::string> written;  // names of untrained tensors, one for each rank that writes it
  with_ranks({.ranks = 3, .stage = saving_stage}, [&](SmallRank& rank) {
    for (int step = 0; step < 2; ++step) (void)rank.step();
    CheckpointPart part = rank.states->snapshot();
    {
      const std::scoped_lock lock(mutex);
      for (const Piece& slice : part.pieces) {
        if (slice.name.starts_with("norm.running") || slice.name == "norm.samples")
          written.push_back(slice.name);
      }
    }
    const auto saver = make_saver(
        rank.store, {.root = folder.path(), .rank = rank.rank, .world_size = 3, .attempt = "1"});
    saver->start({.step = 2, .world_size = 3, .base = {}, .recipe = "model: {}\n"},
                 std::move(part));
    const auto result = saver->wait();
    if (!result || !result->ok) throw std::runtime_error(result ? result->error : "no result");
    if (rank.rank == 0) saved = rank.state();
    const double loss = rank.step().loss;
    if (rank.rank == 0) losses.push_back(loss);
  });
  std::ranges::sort(written);
  CHECK(written ==
        std::vector<std::string>{"norm.running_mean", "norm.running_var", "norm.samples"});
  const auto reader = CheckpointReader::open(folder / "step-00000002", /*verify=*/true);
  with_ranks({.ranks = 2, .stage = resuming_stage}, [&](SmallRank& rank) {
    rank.states->restore(*reader);
    const std::vector<at::Tensor> state = rank.state();
    for (int step = 0; step < 2; ++step) rank.skip_step();
    const double loss = rank.step().loss;
    const std::scoped_lock lock(mutex);
    for (std::size_t i = 0; i < saved.size(); ++i) CHECK(state[i].equal(saved[i]));
    CHECK(state[2].item<std::int64_t>() == 20);
    losses.push_back(loss);
  });
  REQUIRE(losses.size() == 3);
  CHECK(losses[1] == Approx(losses[0]).epsilon(2e-5));
  CHECK(losses[2] == losses[1]);
}

}  // namespace
}  // namespace dstrain
