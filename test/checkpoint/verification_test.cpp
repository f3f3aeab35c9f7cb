#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/base/file.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_verification.h"
#include "test/checkpoint/checkpoint_support.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// What the save has said of its files, by rank.
std::vector<FileRecord> files_of(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "MANIFEST.json";
  return parse_manifest(read_file(path), path.string()).files;
}

/// Verifies on ranks that are threads, two on each host; what rank 0 has found.
std::optional<VerifyResult> verify_on(const fs::path& checkpoint,
                                      const std::vector<FileRecord>& files) {
  const auto store = make_memory_store();
  std::optional<VerifyResult> result;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < static_cast<int>(files.size()); ++rank) {
    threads.emplace_back([&, rank](const std::stop_token& stop) {
      auto found = verify_saved(*store,
                                {.path = checkpoint,
                                 .prefix = "v",
                                 .own = files[static_cast<std::size_t>(rank)],
                                 .rank = rank,
                                 .world_size = static_cast<int>(files.size()),
                                 .local_ranks = 2,
                                 .host = fmt::format("h{}", rank / 2 + 1),
                                 .bytes_per_s = 0},
                                stop);
      if (rank == 0) result = std::move(found);
    });
  }
  for (std::jthread& thread : threads) thread.join();
  return result;
}

void flip_byte(const fs::path& file, std::int64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(at);
  const char byte = static_cast<char>(stream.get());
  stream.seekp(at);
  stream.put(static_cast<char>(byte ^ 1));
}

TEST_CASE("after a save a rank of the next host reads each file, and the list says so",
          "[checkpoint][verify]") {
  test::TempDir dir;
  REQUIRE(test::all_ok(test::save_on(dir.path(), 4, 7)));
  const fs::path checkpoint = dir / "step-00000007";
  const auto files = files_of(checkpoint);
  REQUIRE(files.size() == 4);
  CHECK_FALSE(list_checkpoints(dir.path(), false).front().verified);

  const auto sound = verify_on(checkpoint, files);
  REQUIRE(sound);
  CHECK(sound->damaged.empty());
  CHECK(sound->files == 4);
  CHECK(list_checkpoints(dir.path(), false).front().verified);

  SECTION("a damaged file is told with who wrote it and who read it") {
    flip_byte(checkpoint / files[1].name, files[1].bytes - 1);
    const auto damaged = verify_on(checkpoint, files);
    REQUIRE(damaged);
    REQUIRE(damaged->damaged.size() == 1);
    CHECK_THAT(damaged->damaged.front(),
               Catch::StartsWith("rank0001.safetensors of rank 1 on h1: its bytes are not those") &&
                   Catch::EndsWith("read by rank 3 on h2"));
    const CheckpointInfo info = list_checkpoints(dir.path(), false).front();
    CHECK(info.valid);  // by its sizes
    CHECK_FALSE(info.verified);
    CHECK(info.damage == damaged->damaged.front());
    // It is none of those that are kept.
    REQUIRE(test::all_ok(test::save_on(dir.path(), 4, 6)));
    const auto all = list_checkpoints(dir.path(), false);
    REQUIRE(all.size() == 2);
    CHECK(beyond_newest(all, 1).empty());
  }
  SECTION("one that is gone or shorter, too") {
    fs::resize_file(checkpoint / files[2].name, 10);
    fs::remove(checkpoint / files[3].name);
    const auto damaged = verify_on(checkpoint, files);
    REQUIRE(damaged);
    REQUIRE(damaged->damaged.size() == 2);
    CHECK_THAT(damaged->damaged[0], Catch::Contains("has 10 bytes") && Catch::Contains("on h2"));
    CHECK_THAT(damaged->damaged[1], Catch::Contains("cannot open"));
  }
  SECTION("what was found says nothing of another manifest") {
    std::ofstream(checkpoint / "MANIFEST.json", std::ios::app) << " ";
    CHECK_FALSE(read_verification(checkpoint).has_value());
  }
  SECTION("a checkpoint that was removed meanwhile has no result") {
    fs::remove_all(checkpoint);
    CHECK_FALSE(verify_on(checkpoint, files).has_value());
  }
}

TEST_CASE("a saver verifies beside training at the rate that it was given, and stops with it",
          "[checkpoint][verify]") {
  test::TempDir dir;
  const auto saver_at = [&](double rate) {
    return make_saver(
        make_memory_store(),
        {.root = dir.path(), .attempt = "1", .verify_bytes_per_s = rate, .host = "here"});
  };
  std::int64_t bytes = 0;
  {
    const auto saver = saver_at(1e12);
    saver->start(test::test_state(1, 1), test::test_part(1, 1, 0));
    bytes = saver->wait().value().bytes;
    std::optional<VerifyResult> result;
    for (int i = 0; i < 1000 && !(result = saver->verified()); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    REQUIRE(result);
    CHECK(result->damaged.empty());
    CHECK(result->path == dir / "step-00000001");
    CHECK(list_checkpoints(dir.path(), false).front().verified);
  }
  // A rate at which it would take 100 s.
  const auto saver = saver_at(static_cast<double>(bytes) / 100);
  saver->start(test::test_state(2, 1), test::test_part(2, 1, 0));
  CHECK(saver->wait().value().ok);
  CHECK_FALSE(saver->verified().has_value());
  CHECK_FALSE(list_checkpoints(dir.path(), false).front().verified);
}

}  // namespace
}  // namespace dstrain
