#include "engine/checkpoint/checkpoint_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace fs = std::filesystem;
using namespace dstrain;
using namespace dstrain::test;

namespace {

struct Chosen {
  CheckpointChoice choice;
  std::string error;
  ErrorKind kind = ErrorKind::internal;
};

/// What ranks that are threads choose; `offer` is rank 0's.
std::vector<Chosen> choose_on(int ranks, const std::function<std::vector<fs::path>()>& offer) {
  const auto store = make_memory_store();
  std::vector<Chosen> chosen(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Chosen& own = chosen[static_cast<std::size_t>(rank)];
      try {
        own.choice = choose_checkpoint(*store, rank, ranks, rank == 0 ? offer : nullptr);
      } catch (const Error& error) {
        own.error = error.what();
        own.kind = error.kind();
      }
    });
  }
  threads.clear();
  return chosen;
}

/// Another byte at the end, which only a hash finds.
void damage(const fs::path& file) {
  std::string content = slurp(file);
  content.back() = static_cast<char>(content.back() ^ 1);
  spit(file, content);
}

fs::path file_of(const TempDir& dir, int step, int rank) {
  return dir / fmt::format("step-{:08}", step) / fmt::format("rank{:04}.safetensors", rank);
}

}  // namespace

TEST_CASE("all ranks take the newest checkpoint in which none has found a fault", "[checkpoint]") {
  const TempDir dir;
  for (const int step : {1, 2, 3}) REQUIRE(all_ok(save_on(dir.path(), 4, step, /*keep=*/0)));
  const auto offer = [&] { return checkpoints_by_name(dir.path()); };
  const int ranks = GENERATE(1, 2, 4, 7);
  CAPTURE(ranks);
  for (const Chosen& own : choose_on(ranks, offer)) {
    REQUIRE(own.choice.path == dir / "step-00000003");
    REQUIRE(holds_step(*own.choice.reader, 3, 1));
    REQUIRE(own.choice.problems.empty());
  }
  // Each fault lies in a file of another rank; the second is seen by its size.
  damage(file_of(dir, 3, 2));
  fs::resize_file(file_of(dir, 2, 3), 100);
  const auto chosen = choose_on(ranks, offer);
  for (const Chosen& own : chosen) REQUIRE(own.choice.path == dir / "step-00000001");
  const auto& problems = chosen[0].choice.problems;
  REQUIRE(problems.size() == 2);
  REQUIRE(contains(problems[0], "step-00000003: "));
  REQUIRE(contains(problems[0], "rank0002.safetensors of "));
  REQUIRE(contains(problems[0], " is changed: hash "));
  REQUIRE(contains(problems[1], "rank0003.safetensors has 100 bytes"));
}

TEST_CASE("each rank hashes its share of the files and no other", "[checkpoint]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 4, 1)));
  damage(file_of(dir, 1, 2));
  const auto reader = CheckpointReader::open(dir / "step-00000001", /*verify=*/false);
  for (const int rank : {0, 1, 3, 5}) reader->verify_share(rank, rank == 5 ? 6 : 4);
  REQUIRE_THROWS_AS(reader->verify_share(2, 4), Error);
  REQUIRE_THROWS_AS(reader->verify_share(0, 2), Error);
  reader->verify_share(1, 2);
  std::int64_t bytes = 0;
  for (int rank = 0; rank < 4; ++rank)
    bytes += static_cast<std::int64_t>(fs::file_size(file_of(dir, 1, rank)));
  REQUIRE(reader->share_bytes(1) == bytes);
  REQUIRE(reader->share_bytes(4) < bytes / 2);
}

TEST_CASE("a rank that reads the manifest alone looks at a file when it reads it", "[checkpoint]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 4, 1)));
  fs::remove(file_of(dir, 1, 3));
  REQUIRE_THROWS_AS(CheckpointReader::open(dir / "step-00000001", /*verify=*/false), Error);
  const auto reader = CheckpointReader::open_manifest(dir / "step-00000001");
  std::vector<float> values(20);
  reader->read({"big", {64, 33}, {0, 20}, {0, 1}}, values);
  std::vector<float> whole(2112);
  REQUIRE_THROWS_AS(reader->read({"big", {64, 33}}, whole), Error);
}

TEST_CASE("no sound checkpoint and a failure of rank 0 reach all ranks", "[checkpoint]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 2, 1)));
  damage(file_of(dir, 1, 1));
  const auto none = choose_on(3, [&] { return checkpoints_by_name(dir.path()); });
  for (const Chosen& own : none) {
    REQUIRE(own.error.empty());
    REQUIRE_FALSE(own.choice.reader);
  }
  REQUIRE(none[0].choice.problems.size() == 1);
  const auto failed = choose_on(
      3, []() -> std::vector<fs::path> { throw Error(ErrorKind::usage, "no such directory"); });
  REQUIRE(failed[0].kind == ErrorKind::usage);
  for (const int rank : {1, 2}) {
    const Chosen& own = failed[static_cast<std::size_t>(rank)];
    REQUIRE(own.kind == ErrorKind::again);
    REQUIRE(own.error == "rank 0 could not start the run: no such directory");
  }
}
