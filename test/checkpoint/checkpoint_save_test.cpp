#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>
#include <ranges>
#include <span>
#include <stdexcept>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/weights/safetensors.h"
#include "test/checkpoint/checkpoint_support.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace fs = std::filesystem;
using namespace dstrain;
using namespace dstrain::test;

namespace {

/// Runs `body` in a child; its return value is the exit code.
template <class Body>
int in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("a rank that cannot write fails the save on all ranks and costs nothing",
          "[checkpoint]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 2, 1)));
  const int code = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    const rlimit before = limit;
    limit.rlim_cur = 64 << 10;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto store = make_memory_store();
    std::vector<SaveResult> results(3);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const auto saver =
            make_saver(store, {.root = dir.path(), .rank = rank, .world_size = 3, .attempt = "x"});
        const std::int64_t begin[] = {0, 1000, 100'000,
                                      100'100};  // only rank 1's shard exceeds the limit
        const Range range{begin[rank], begin[rank + 1]};
        CheckpointPart part;
        part.add({"w", {100'100}, range, {0, 1}},
                 std::vector<float>(static_cast<std::size_t>(range.size()), 1.0f));
        saver->start(test_state(2, 3), std::move(part));
        results[static_cast<std::size_t>(rank)] = saver->wait().value();
      });
    }
    threads.clear();
    for (const SaveResult& result : results) {
      if (result.ok) return 1;
      if (result.error != results[0].error) return 2;
      if (!contains(result.error, "rank 1: cannot write") ||
          !contains(result.error, "File too large"))
        return 3;
      if (!contains(result.error, "rank0001.safetensors after 65536 bytes")) return 4;
    }
    if (fs::exists(dir / "step-00000002") || fs::exists(dir / "step-00000002.tmp-x")) return 5;
    ::setrlimit(RLIMIT_FSIZE, &before);
    return all_ok(save_on(dir.path(), 3, 3)) ? 0 : 6;
  });
  REQUIRE(code == 0);
  REQUIRE(CheckpointReader::open(dir / "step-00000001", true)->state().step == 1);
  REQUIRE(CheckpointReader::open(dir / "step-00000003", true)->state().step == 3);
}

TEST_CASE("values that are not finite are refused by all ranks and named", "[checkpoint]") {
  const TempDir dir;
  const bool earlier = GENERATE(false, true);
  if (earlier) REQUIRE(all_ok(save_on(dir.path(), 2, 1, /*keep=*/1)));
  const float value =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity());
  const auto store = make_memory_store();
  std::vector<SaveResult> results(2);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto saver = make_saver(
          store, {.root = dir.path(), .rank = rank, .world_size = 2, .keep = 1, .attempt = "1"});
      CheckpointPart part = test_part(2, 2, rank);
      if (rank == 1) {
        part.reads.back() = [value, read = part.reads.back()](Range range, std::span<float> into) {
          read(range, into);
          into[70] = value;
        };
      }
      saver->start(test_state(2, 2), std::move(part));
      results[static_cast<std::size_t>(rank)] = saver->wait().value();
    });
  }
  threads.clear();
  for (const SaveResult& result : results) {
    CAPTURE(result.error);
    REQUIRE_FALSE(result.ok);
    REQUIRE(result.kind == ErrorKind::stop);
    REQUIRE(contains(result.error, std::isnan(value) ? "rank 1: 'big' holds nan at element 1126"
                                                     : "rank 1: 'big' holds -inf at element 1126"));
    REQUIRE(contains(result.error, earlier ? "; the newest checkpoint is " : "; there is no"));
    REQUIRE(
        contains(result.error, earlier ? (dir / "step-00000001").string() : dir.path().string()));
    REQUIRE(result.error == results[0].error);
  }
  const auto infos = list_checkpoints(dir.path(), true);
  REQUIRE(infos.size() == (earlier ? 1 : 0));
  REQUIRE((!earlier || infos[0].valid));
}

TEST_CASE("a failed save names the newest checkpoint that is sound", "[checkpoint]") {
  const TempDir dir;
  for (const int step : {1, 2}) REQUIRE(all_ok(save_on(dir.path(), 1, step)));
  fs::resize_file(dir / "step-00000002" / "rank0000.safetensors", 100);
  const int code = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 100, .rlim_max = 100};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto results = save_on(dir.path(), 1, 3);
    return !results[0].ok && results[0].kind == ErrorKind::checkpoint &&
                   contains(results[0].error, "rank 0: cannot write ") &&
                   contains(results[0].error, "File too large; a file of this process may have ") &&
                   contains(results[0].error,
                            "; the newest checkpoint is " + (dir / "step-00000001").string())
               ? 0
               : 1;
  });
  REQUIRE(code == 0);
}

TEST_CASE("a save that is not to prune leaves all older checkpoints", "[checkpoint]") {
  const TempDir dir;
  for (const int step : {1, 2, 3}) {
    const auto saver = make_saver(make_memory_store(),
                                  {.root = dir.path(), .world_size = 1, .keep = 1, .attempt = "1"});
    saver->start(test_state(step, 1), test_part(step, 1, 0), /*prune=*/false);
    REQUIRE(saver->wait()->ok);
    REQUIRE(list_checkpoints(dir.path(), false).size() == static_cast<std::size_t>(step));
  }
}

TEST_CASE("a manifest that no reader would take fails the save and leaves nothing on the disk",
          "[checkpoint][scale]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 1, 1, /*keep=*/1)));
  // As large as that of thousands of ranks that share each tensor, without as many boxes.
  CheckpointState state = test_state(2, 1);
  state.recipe = std::string(65 << 20, '#');
  for (int i = 0; i < 2; ++i) {
    const auto saver = make_saver(make_memory_store(),
                                  {.root = dir.path(), .world_size = 1, .keep = 1, .attempt = "1"});
    saver->start(state, test_part(2, 1, 0));
    const SaveResult result = saver->wait().value();
    REQUIRE_FALSE(result.ok);
    REQUIRE(contains(result.error, "the manifest of this save would have 6815"));
    REQUIRE(contains(result.error, "a manifest has at most 67108864: 6 tensors in 5 parts"));
    REQUIRE(
        contains(result.error, "; the newest checkpoint is " + (dir / "step-00000001").string()));
    REQUIRE(list_checkpoints(dir.path(), false).size() == 1);
    REQUIRE(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 1);
  }
}

TEST_CASE("a root that cannot be made fails the save on all ranks with one text", "[checkpoint]") {
  const TempDir dir;
  spit(dir / "file", "not a directory");
  const auto results = save_on(dir / "file", 3, 1);
  for (const SaveResult& result : results) {
    REQUIRE_FALSE(result.ok);
    REQUIRE(contains(result.error, "rank 0: "));
    REQUIRE(result.error == results[0].error);
  }
}

TEST_CASE("ranks whose parts leave a gap or overlap do not make a checkpoint", "[checkpoint]") {
  const TempDir dir;
  const std::int64_t begin = GENERATE(4, 6);
  const auto store = make_memory_store();
  const auto first =
      make_saver(store, {.root = dir.path(), .rank = 0, .world_size = 2, .attempt = "1"});
  const auto second =
      make_saver(store, {.root = dir.path(), .rank = 1, .world_size = 2, .attempt = "1"});
  const auto part = [](Range range) {
    CheckpointPart made;
    made.add({"w", {9}, range, {0, 1}}, std::vector<float>(static_cast<std::size_t>(range.size())));
    return made;
  };
  first->start(test_state(1, 2), part({0, 5}));
  second->start(test_state(1, 2), part({begin, 9}));
  const SaveResult result = first->wait().value();
  REQUIRE_FALSE(result.ok);
  REQUIRE(contains(result.error, begin == 6 ? "lacks the rows [5, 6), columns [0, 1) of 'w'"
                                            : "has twice the rows [4, 5), columns [0, 1) of 'w'"));
  REQUIRE(second->wait()->error == result.error);
  REQUIRE(fs::is_empty(dir.path()));
}

TEST_CASE("a save holds one chunk of what it reads, and says when it reads no more",
          "[checkpoint]") {
  const TempDir dir;
  constexpr std::int64_t kWhole = 9'000'000, kChunk = 4'194'304;
  const auto store = make_memory_store();
  const auto saver = [&](int rank) {
    return make_saver(store, {.root = dir.path(), .rank = rank, .world_size = 2, .attempt = "1"});
  };
  std::atomic<std::int64_t> next = 0, largest = 0;
  CheckpointPart part;
  part.live = true;
  part.pieces.emplace_back("w", std::vector<std::int64_t>{kWhole});
  part.reads.emplace_back([&](Range range, std::span<float> into) {
    if (range.begin != next || std::cmp_not_equal(range.size(), into.size()))
      throw std::runtime_error("not the next chunk");
    next = range.end;
    largest = std::max(largest.load(), range.size());
    for (std::int64_t i = 0; i < range.size(); ++i)
      into[static_cast<std::size_t>(i)] = static_cast<float>(range.begin + i);
  });
  const auto first = saver(0), second = saver(1);
  first->start(test_state(1, 2), std::move(part));
  first->wait_until_read();
  REQUIRE(next == kWhole);
  REQUIRE(largest <= kChunk);
  REQUIRE(first->busy());  // the other rank has not voted
  second->start(test_state(1, 2), {});
  REQUIRE(second->wait().value().ok);
  REQUIRE(first->wait().value().ok);
  std::vector<float> values(static_cast<std::size_t>(kWhole));
  CheckpointReader::open(dir / "step-00000001", /*verify=*/true)->read({"w", {kWhole}}, values);
  REQUIRE(std::ranges::all_of(std::views::iota(std::int64_t{0}, kWhole), [&](std::int64_t i) {
    return values[static_cast<std::size_t>(i)] == static_cast<float>(i);
  }));
}

TEST_CASE("what a source throws fails the save, and nobody waits for it", "[checkpoint]") {
  const TempDir dir;
  const auto saver = make_saver(make_memory_store(),
                                {.root = dir.path(), .rank = 0, .world_size = 1, .attempt = "1"});
  CheckpointPart part;
  part.pieces.emplace_back("w", std::vector<std::int64_t>{3});
  part.reads.emplace_back([](Range, std::span<float>) -> void {
    throw Error(ErrorKind::checkpoint, "reading the offload file failed");
  });
  saver->start(test_state(1, 1), std::move(part));
  saver->wait_until_read();
  REQUIRE(contains(saver->wait().value().error, "rank 0: reading the offload file failed"));
  REQUIRE(fs::is_empty(dir.path()));
}

TEST_CASE("a verdict stands although rank 0 has ended since", "[checkpoint]") {
  /// As rank 1 sees it: the server is gone once there is a verdict.
  class EndingStore final : public Store {
   public:
    explicit EndingStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
    void set(const std::string& key, const std::string& value) override {
      if (ended_) throw Error(ErrorKind::again, "rank 0 has closed the connection");
      store_->set(key, value);
    }
    std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
      return seen(key, store_->get(key, timeout));
    }
    std::optional<std::string> try_get(const std::string& key) override {
      const std::optional<std::string> value = store_->try_get(key);
      return value ? std::optional(seen(key, *value)) : value;
    }
    std::int64_t add(const std::string& key, std::int64_t amount) override {
      return store_->add(key, amount);
    }
    [[nodiscard]] bool ended() const { return ended_; }

   private:
    std::string seen(const std::string& key, std::string value) {
      if (key.ends_with("/verdict")) ended_ = true;
      return value;
    }
    std::shared_ptr<Store> store_;
    std::atomic<bool> ended_ = false;
  };
  const TempDir dir;
  const std::shared_ptr<Store> store = make_memory_store();
  const auto ending = std::make_shared<EndingStore>(store);
  std::vector<SaveResult> results(2);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto saver = make_saver(
          rank == 0 ? store : ending,
          {.root = dir.path(), .rank = rank, .world_size = 2, .keep = 1, .attempt = "1"});
      saver->start(test_state(1, 2), test_part(1, 2, rank));
      results[static_cast<std::size_t>(rank)] = saver->wait().value();
    });
  }
  threads.clear();
  REQUIRE(ending->ended());
  for (const SaveResult& result : results) {
    CAPTURE(result.error);
    REQUIRE(result.ok);
  }
}

TEST_CASE("a save that loses the store fails as a lost rank does", "[checkpoint]") {
  class LostStore final : public Store {
   public:
    void set(const std::string&, const std::string&) override { lose(); }
    std::string get(const std::string&, std::chrono::milliseconds) override { lose(); }
    std::optional<std::string> try_get(const std::string&) override { lose(); }
    std::int64_t add(const std::string&, std::int64_t) override { lose(); }

   private:
    [[noreturn]] static void lose() { throw Error(ErrorKind::again, "connection reset"); }
  };
  const TempDir dir;
  const auto saver = make_saver(std::make_shared<LostStore>(),
                                {.root = dir.path(), .rank = 1, .world_size = 2, .attempt = "1"});
  saver->start(test_state(1, 2), test_part(1, 2, 1));
  const SaveResult result = saver->wait().value();
  REQUIRE_FALSE(result.ok);
  REQUIRE(result.kind == ErrorKind::again);
  REQUIRE(result.error == "rank 1: connection reset");
}

TEST_CASE("a dead rank makes the save fail and nobody hang", "[checkpoint]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 3, 1)));
  const int dead = GENERATE(0, 1, 2);
  CAPTURE(dead);
  const auto store = make_memory_store();
  std::vector<std::unique_ptr<CheckpointSaver>> savers;
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == dead) continue;
    savers.push_back(make_saver(store, {.root = dir.path(),
                                        .rank = rank,
                                        .world_size = 3,
                                        .attempt = "2",
                                        .timeout = std::chrono::milliseconds(300)}));
    savers.back()->start(test_state(2, 3), test_part(2, 3, rank));
  }
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::string> errors;
  for (const auto& saver : savers) {
    const SaveResult result = saver->wait().value();
    REQUIRE_FALSE(result.ok);
    errors.push_back(result.error);
  }
  REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  if (dead == 0) {
    REQUIRE(contains(errors[0], "rank 0 did not start the save within"));
  } else {
    REQUIRE(contains(errors[0], "rank " + std::to_string(dead) + " did not vote within"));
    REQUIRE(errors[0] == errors[1]);
  }
  std::vector<std::string> problems;
  REQUIRE(newest_valid(dir.path(), problems)->step == 1);
  REQUIRE(problems.empty());
}

TEST_CASE("leftovers of a dead attempt do not block the next save", "[checkpoint]") {
  const TempDir dir;
  for (const char* name :
       {"step-00000100.tmp-1", "step-00000100.tmp-old", "step-00000050.tmp-old", "step-00000100"}) {
    fs::create_directories(dir / name);
    spit(dir / name / "rank0000.safetensors", "half");
  }
  spit(dir / "step-00000100" / "MANIFEST.json", "{\"format\": ");
  REQUIRE(all_ok(save_on(dir.path(), 2, 100)));
  REQUIRE(holds_step(*CheckpointReader::open(dir / "step-00000100", true), 100, 1));
  REQUIRE(slurp(dir / "step-00000100.invalid-1" / "rank0000.safetensors") == "half");
  std::size_t num_entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir.path())) ++num_entries;
  REQUIRE(num_entries == 2);
}

TEST_CASE("a step that is saved already is not written again", "[checkpoint]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 2, 100)));
  const auto written = fs::last_write_time(dir / "step-00000100" / "MANIFEST.json");
  const auto results = save_on(dir.path(), 3, 100, 2, "2");
  REQUIRE(all_ok(results));
  REQUIRE(results[2].path == dir / "step-00000100");
  REQUIRE(results[2].bytes > 0);
  REQUIRE(fs::last_write_time(dir / "step-00000100" / "MANIFEST.json") == written);
}

TEST_CASE("only the newest valid checkpoints stay, and invalid ones as evidence", "[checkpoint]") {
  const TempDir dir;
  REQUIRE(list_checkpoints(dir / "none", false).empty());
  for (const int step : {1, 2, 3}) REQUIRE(all_ok(save_on(dir.path(), 2, step, 3)));
  fs::remove(dir / "step-00000002" / "rank0001.safetensors");
  for (const int step : {4, 5}) REQUIRE(all_ok(save_on(dir.path(), 2, step, 2)));
  const auto infos = list_checkpoints(dir.path(), true);
  REQUIRE(infos.size() == 3);
  REQUIRE(infos[0].step == 5);
  REQUIRE(infos[0].valid);
  REQUIRE(infos[0].files == 2);
  REQUIRE(infos[0].world_size == 2);
  REQUIRE(infos[1].step == 4);
  REQUIRE(infos[2].step == 2);
  REQUIRE_FALSE(infos[2].valid);

  // A run that went back to an early step keeps what it saves there and the later ones.
  REQUIRE(all_ok(save_on(dir.path(), 2, 3, 1)));
  REQUIRE(list_checkpoints(dir.path(), true).size() == 4);
  REQUIRE(beyond_newest(list_checkpoints(dir.path(), true), 1).size() == 2);
  for (const auto& info : beyond_newest(list_checkpoints(dir.path(), true), 1))
    remove_checkpoint(info.path);
  std::vector<std::string> problems;
  REQUIRE(newest_valid(dir.path(), problems)->step == 5);
  REQUIRE(list_checkpoints(dir.path(), true).size() == 2);
}

TEST_CASE("only directories with the name of a step are checkpoints", "[checkpoint]") {
  const TempDir dir;
  for (const char* name : {"step-100", "step-00000100.invalid-1", "step-+0000100", "step-000000100",
                           "100", "latest"}) {
    fs::create_directories(dir / name);
  }
  fs::create_directory_symlink(dir / "100", dir / "step-00000007");
  spit(dir / "step-00000008", "");
  REQUIRE(list_checkpoints(dir.path(), true).empty());
}

TEST_CASE("a save runs beside its caller, one at a time, each result once", "[checkpoint]") {
  const TempDir dir;
  const auto store = make_memory_store();
  const SaverOptions options{.root = dir.path(), .rank = 0, .world_size = 2, .attempt = "1"};
  SaverOptions other = options;
  other.rank = 1;
  const auto first = make_saver(store, options);
  const auto second = make_saver(store, other);
  REQUIRE_FALSE(first->busy());
  REQUIRE_FALSE(first->poll());
  REQUIRE_FALSE(first->wait());

  first->start(test_state(1, 2), test_part(1, 2, 0));  // cannot end: rank 1 has not voted
  REQUIRE(first->busy());
  REQUIRE_FALSE(first->poll());
  std::atomic<bool> started{false};
  std::jthread caller([&] {
    first->start(test_state(2, 2), test_part(2, 2, 0));
    started = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  REQUIRE_FALSE(started);
  second->start(test_state(1, 2), test_part(1, 2, 1));
  second->start(test_state(2, 2), test_part(2, 2, 1));
  caller.join();
  REQUIRE(first->wait()->path == dir / "step-00000001");
  REQUIRE(first->wait()->path == dir / "step-00000002");
  REQUIRE_FALSE(first->wait());
  REQUIRE(second->wait()->ok);
  REQUIRE(second->poll()->ok);
  REQUIRE_FALSE(second->poll());
}

TEST_CASE("the end of a saver does not wait for a dead peer", "[checkpoint]") {
  const TempDir dir;
  const auto start = std::chrono::steady_clock::now();
  {
    const auto saver = make_saver(make_memory_store(),
                                  {.root = dir.path(), .rank = 0, .world_size = 2, .attempt = "1"});
    saver->start(test_state(1, 2), test_part(1, 2, 0));
  }
  REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("kill -9 at any moment of a save leaves the previous or the new checkpoint",
          "[checkpoint]") {
  const TempDir dir;
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(in_child([&] { return all_ok(save_on(dir.path(), 2, 1)) ? 0 : 1; }) == 0);
  const auto whole_us = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - start);
  std::mt19937 random(3);
  std::int64_t newest = 1;
  for (int i = 0; i < 100; ++i) {
    const auto delay = whole_us * (random() % 1200) / 1000;
    const pid_t child = ::fork();
    if (child == 0) {
      save_on(dir.path(), 2, newest + 1, 2, std::to_string(i));
      ::_exit(0);
    }
    std::this_thread::sleep_for(delay);
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    std::vector<std::string> problems;
    const auto found = newest_valid(dir.path(), problems);
    CAPTURE(i, newest, delay.count());
    REQUIRE(found);
    REQUIRE(problems.empty());
    REQUIRE((found->step == newest || found->step == newest + 1));
    REQUIRE(holds_step(*CheckpointReader::open(found->path, true), found->step, 1));
    newest = found->step;
  }
}
