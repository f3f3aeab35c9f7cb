#include "engine/train/checkpoint.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "engine/models/safetensors.h"
#include "engine/train/checkpoint_file.h"
#include "engine/train/run_directory.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/train/checkpoint_support.h"

namespace fs = std::filesystem;
using namespace dstrain;
using namespace dstrain::test;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Runs `body` in a child; its return value is the exit code.
template <class Body>
int in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// A manifest with this body and the right hash: what somebody could write who wants to do harm.
void write_manifest(const fs::path& checkpoint, const std::string& body) {
  FileHash hash;
  hash.update(std::as_bytes(std::span(body)));
  fs::create_directories(checkpoint);
  spit(checkpoint / "MANIFEST.json", body + ",\n\"hash\": \"" + hash.hex() + "\"}\n");
}

std::string body_of(const fs::path& checkpoint) {
  const std::string text = slurp(checkpoint / "MANIFEST.json");
  return text.substr(0, text.rfind(",\n\"hash\""));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("a checkpoint of any world size is read bit-equal by any other",
          "[checkpoint][property]") {
  const int saved = GENERATE(1, 2, 3, 4);
  const TempDir dir;
  const auto results = save_on(dir.path(), saved, 100);
  REQUIRE(all_ok(results));
  REQUIRE(results[0].path == dir / "step-00000100");
  REQUIRE(results.back().bytes == results[0].bytes);
  const auto reader = CheckpointReader::open(results[0].path, true);
  for (const int world : {1, 2, 3, 4, 7}) {
    CAPTURE(saved, world);
    REQUIRE(holds_step(*reader, 100, world));
  }
  REQUIRE(reader->tensors().size() == test_tensors().size());
  REQUIRE(reader->state().samples == 51200);
  REQUIRE(reader->state().optimizer_steps == 99);
  REQUIRE(reader->state().loss_scale == 32768);
  REQUIRE(reader->state().good_steps == 7);
  REQUIRE(reader->state().skipped_steps == 1);
  REQUIRE(reader->state().world_size == saved);
  REQUIRE(reader->state().recipe == test_state(100, saved).recipe);
}

TEST_CASE("any slice is read across shards", "[checkpoint][property]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 3, 5)));
  const auto reader = CheckpointReader::open(dir / "step-00000005", false);
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const auto begin = static_cast<std::int64_t>(random() % 2113);
    const auto end = begin + static_cast<std::int64_t>(random() % (2113 - begin));
    std::vector<float> values(static_cast<std::size_t>(end - begin));
    reader->read({"big", {64, 33}, {begin, end}}, values);
    bool equal = true;
    for (std::int64_t at = begin; at < end; ++at) {
      equal = equal && values[static_cast<std::size_t>(at - begin)] == test_value(5, at, 5);
    }
    CAPTURE(begin, end);
    REQUIRE(equal);
  }
}

TEST_CASE("a shard is a safetensors file", "[checkpoint]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 2, 8)));
  const SafetensorsFile file(dir / "step-00000008" / "rank0001.safetensors");
  REQUIRE(file.metadata().at("step") == "8");
  REQUIRE(file.entries().at("big@1056").dtype == "F32");
  REQUIRE(file.entries().at("big@1056").shape == std::vector<std::int64_t>{1056});
  std::vector<float> values(2);
  file.read("big@1056", 10, values);
  REQUIRE(values == std::vector<float>{test_value(5, 1066, 8), test_value(5, 1067, 8)});
}

TEST_CASE("what does not match the checkpoint is an error that names it", "[checkpoint]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 2, 8)));
  const auto reader = CheckpointReader::open(dir / "step-00000008", true);
  std::vector<float> three(3);
  REQUIRE(contains(checkpoint_error([&] { reader->read({"tail.bias", {3}, {0, 3}}, three); }),
                   "no tensor 'tail.bias'"));
  REQUIRE(contains(checkpoint_error([&] { reader->read({"head.bias", {1, 3}, {0, 3}}, three); }),
                   "'head.bias' has shape [3]"));
  REQUIRE(contains(checkpoint_error([&] { reader->read({"head.bias", {3}, {1, 4}}, three); }),
                   "elements [1, 4) of 'head.bias' do not fit"));
  REQUIRE(contains(checkpoint_error([&] { reader->read({"head.bias", {3}, {0, 2}}, three); }),
                   "do not fit 3 values"));
  REQUIRE(contains(checkpoint_error([&] { reader->read({"head.bias", {3}, {-3, 0}}, three); }),
                   "do not fit"));
}

TEST_CASE("a flipped bit in any file is found before a value is handed out",
          "[checkpoint][property]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 2, 100)));
  REQUIRE(all_ok(save_on(dir.path(), 2, 200)));
  const fs::path checkpoint = dir / "step-00000200";
  std::mt19937 random(7);
  for (const std::string name : {"MANIFEST.json", "rank0000.safetensors", "rank0001.safetensors"}) {
    const std::string good = slurp(checkpoint / name);
    for (std::size_t i = 0; i < 150; ++i) {
      // The ends of a file are where readers are sloppy.
      const std::size_t at = i < 20   ? i
                             : i < 70 ? good.size() - 1 - (i - 20)
                                      : random() % good.size();
      const unsigned bit = static_cast<unsigned>(random() % 8);
      std::string bad = good;
      bad[at] = static_cast<char>(static_cast<unsigned char>(bad[at]) ^ (1u << bit));
      spit(checkpoint / name, bad);
      CAPTURE(name, at, bit);
      REQUIRE(contains(checkpoint_error([&] { (void)CheckpointReader::open(checkpoint, true); }),
                       name));
      REQUIRE(contains(checkpoint_error([&] {
                         const auto reader = CheckpointReader::open(checkpoint, false);
                         (void)holds_step(*reader, 200, 1);
                       }),
                       name));
    }
    std::vector<std::string> problems;
    REQUIRE(newest_valid(dir.path(), problems)->step == 100);
    REQUIRE(problems.size() == 1);
    REQUIRE(contains(problems[0], "step-00000200"));
    REQUIRE(contains(problems[0], name));
    spit(checkpoint / name, good);
  }
  std::vector<std::string> problems;
  REQUIRE(newest_valid(dir.path(), problems)->step == 200);
  REQUIRE(problems.empty());
}

TEST_CASE("a change after opening is found as well", "[checkpoint]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 1, 3)));
  const auto reader = CheckpointReader::open(dir / "step-00000003", true);
  const fs::path shard = dir / "step-00000003/rank0000.safetensors";
  std::string bytes = slurp(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  fs::remove(shard);
  spit(shard, bytes);
  REQUIRE(
      contains(checkpoint_error([&] { (void)holds_step(*reader, 3, 1); }), "rank0000.safetensors"));
}

TEST_CASE("truncated, missing and foreign files are named with byte counts", "[checkpoint]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 2, 100, 4)));
  REQUIRE(all_ok(save_on(dir.path(), 2, 200, 4)));
  const fs::path checkpoint = dir / "step-00000200";
  const fs::path shard = checkpoint / "rank0001.safetensors";
  const auto problem = [&](bool full) { return inspect_checkpoint(checkpoint, full).problem; };
  REQUIRE(problem(true).empty());

  SECTION("truncated") {
    const auto bytes = fs::file_size(shard);
    fs::resize_file(shard, bytes - 1);
    REQUIRE(contains(problem(false), "rank0001.safetensors has " + std::to_string(bytes - 1) +
                                         " bytes, the manifest says " + std::to_string(bytes)));
  }
  SECTION("missing") {
    fs::remove(shard);
    REQUIRE(contains(problem(false), "rank0001.safetensors: No such file"));
  }
  SECTION("of another checkpoint") {
    fs::copy_file(dir / "step-00000100" / "rank0001.safetensors", shard,
                  fs::copy_options::overwrite_existing);
    REQUIRE(contains(problem(true), "rank0001.safetensors of "));
    REQUIRE(contains(problem(true), "the manifest says"));
  }
  SECTION("manifest of another checkpoint") {
    fs::copy_file(dir / "step-00000100" / "MANIFEST.json", checkpoint / "MANIFEST.json",
                  fs::copy_options::overwrite_existing);
    REQUIRE(contains(problem(false), "is of step 100, not of this directory's"));
  }
  SECTION("no manifest") {
    fs::remove(checkpoint / "MANIFEST.json");
    REQUIRE(contains(problem(false), "MANIFEST.json: No such file"));
  }
  SECTION("a link instead of a file") {
    fs::rename(shard, dir / "elsewhere");
    fs::create_symlink(dir / "elsewhere", shard);
    REQUIRE(contains(problem(false), "rank0001.safetensors is not a regular file"));
  }
  SECTION("a linked manifest") {
    fs::rename(checkpoint / "MANIFEST.json", dir / "elsewhere");
    fs::create_symlink(dir / "elsewhere", checkpoint / "MANIFEST.json");
    REQUIRE(contains(problem(false), "MANIFEST.json is a symbolic link"));
  }
  SECTION("a pipe does not make anybody wait") {
    fs::remove(checkpoint / "MANIFEST.json");
    REQUIRE(::mkfifo((checkpoint / "MANIFEST.json").c_str(), 0600) == 0);
    REQUIRE(contains(problem(false), "is not a regular file"));
  }
  std::vector<std::string> problems;
  REQUIRE(newest_valid(dir.path(), problems)->step == 100);
}

TEST_CASE("hostile manifests are refused", "[checkpoint]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 1, 100)));
  const fs::path checkpoint = dir / "step-00000100";
  const std::string good = body_of(checkpoint);
  spit(dir / "outside", slurp(checkpoint / "rank0000.safetensors"));
  const auto refused = [&](const std::string& body) {
    write_manifest(checkpoint, body);
    return checkpoint_error([&] { (void)CheckpointReader::open(checkpoint, true); });
  };
  REQUIRE(refused(good) == "no error");

  const auto renamed = [&](const std::string& name) {
    std::string body = good;
    for (std::size_t at = 0; (at = body.find("rank0000.safetensors", at)) != std::string::npos;
         at += name.size()) {
      body.replace(at, 20, name);
    }
    return refused(body);
  };
  for (const std::string name :
       {"../outside", "/etc/passwd", "..", ".", "", "a/b", "MANIFEST.json", "a\\u0000b"}) {
    CAPTURE(name);
    REQUIRE(contains(renamed(name), "which is not a plain name"));
  }
  const auto changed = [&](const std::string& from, const std::string& to) {
    return refused(replaced(good, from, to));
  };
  REQUIRE(
      contains(changed("\"shape\":[37,11]", "\"shape\":[4611686018427387904,4611686018427387904]"),
               "'shape' is not a whole number"));
  REQUIRE(contains(changed("\"shape\":[37,11]", "\"shape\":[1152921504606846976,2]"),
                   "more than 2^60 elements"));
  REQUIRE(contains(changed("\"shape\":[37,11]", "\"shape\":[-37,-11]"),
                   "'shape' is not a whole number"));
  REQUIRE(contains(changed("\"shape\":[37,11]", "\"shape\":[37.0,11]"),
                   "'shape' is not a whole number"));
  REQUIRE(contains(changed("\"shape\":[37,11]", "\"shape\":[1e400,11]"),
                   "a number beyond the range of double"));
  REQUIRE(contains(changed("\"shape\":[37,11]", "\"shape\":[37,12]"),
                   "lacks elements [407, 444) of 'layer.0.weight'"));
  REQUIRE(contains(changed("\"begin\":0,\"end\":407", "\"begin\":1,\"end\":407"),
                   "lacks elements [0, 1)"));
  REQUIRE(contains(changed("\"begin\":0,\"end\":407", "\"begin\":0,\"end\":408"),
                   "of 407 elements the slice [0, 408)"));
  REQUIRE(
      contains(changed("\"begin\":0,\"end\":407", "\"begin\":9,\"end\":9"), "the slice [9, 9)"));
  REQUIRE(contains(changed("\"bytes\":", "\"bytes\":1"), "bytes, the manifest says"));
  REQUIRE(contains(changed("\"offset\":", "\"offset\":18446744073709551615,\"was\":"),
                   "'offset' is not a whole"));
  REQUIRE(contains(changed("\"offset\":", "\"offset\":4611686018427387000,\"was\":"), "which has"));
  REQUIRE(contains(changed("\"step\":100", "\"step\":100,\"step\":100"),
                   "the key 'step' is there twice"));
  REQUIRE(contains(changed("\"step\":100", "\"step\":\"100\""), "'step' is not a whole number"));
  REQUIRE(contains(changed("\"version\": 1", "\"version\": 2"), "format version 2"));
  REQUIRE(contains(changed("\"loss_scale\":32768.0", "\"loss_scale\":null"),
                   "'loss_scale' is not a number"));
  REQUIRE(contains(changed("\"dtype\":\"F32\"", "\"dtype\":\"F16\""), "other than F32"));
  REQUIRE(contains(changed("\"head.bias\"", "\"layer.0.weight\""),
                   "has the tensor 'layer.0.weight' twice"));
  const std::string slice = good.substr(
      good.find("{\"file\""), good.find('}', good.find("{\"file\"")) - good.find("{\"file\"") + 1);
  REQUIRE(contains(changed(slice, slice + "," + slice),
                   "has twice the elements [0, 407) of 'layer.0.weight'"));
  REQUIRE(contains(refused(std::string(100'000, '[')), "nested more than 8 deep"));
  REQUIRE(contains(refused("{\"a\": " + std::string(100'000, '[') + std::string(100'000, ']')),
                   "nested more than 8 deep"));
  REQUIRE(contains(refused("{\"format\": \"other\""), "is not a checkpoint of dstrain"));
  REQUIRE(contains(refused(""), "not JSON"));

  // 1 TB that is not there: refused by its size before a byte of it is read.
  fs::resize_file(checkpoint / "MANIFEST.json", std::uintmax_t{1} << 40);
  REQUIRE(contains(checkpoint_error([&] { (void)CheckpointReader::open(checkpoint, true); }),
                   "a manifest has at most"));
}

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
        saver->start(test_state(2, 3),
                     {{{"w", {100'100}, range}},
                      {std::vector<float>(static_cast<std::size_t>(range.size()), 1.0f)}});
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
  const float value = GENERATE(std::numeric_limits<float>::quiet_NaN(),
                               -std::numeric_limits<float>::infinity());
  const auto store = make_memory_store();
  std::vector<SaveResult> results(2);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto saver = make_saver(
          store,
          {.root = dir.path(), .rank = rank, .world_size = 2, .keep = 1, .attempt = "1"});
      CheckpointPart part = test_part(2, 2, rank);
      if (rank == 1) part.data[5][70] = value;
      saver->start(test_state(2, 2), std::move(part));
      results[static_cast<std::size_t>(rank)] = saver->wait().value();
    });
  }
  threads.clear();
  for (const SaveResult& result : results) {
    CAPTURE(result.error);
    REQUIRE_FALSE(result.ok);
    REQUIRE(result.not_finite);
    REQUIRE(contains(result.error, std::isnan(value) ? "rank 1: 'big' holds nan at element 1126"
                                                     : "rank 1: 'big' holds -inf at element 1126"));
    REQUIRE(contains(result.error, earlier ? "; the newest checkpoint is " : "; there is no"));
    REQUIRE(contains(result.error, earlier ? (dir / "step-00000001").string() : dir.path().string()));
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
    return !results[0].ok && !results[0].not_finite &&
                   contains(results[0].error, "rank 0: cannot write ") &&
                   contains(results[0].error, "File too large; the newest checkpoint is " +
                                                  (dir / "step-00000001").string())
               ? 0
               : 1;
  });
  REQUIRE(code == 0);
}

TEST_CASE("a save that is not to prune leaves all older checkpoints", "[checkpoint]") {
  const TempDir dir;
  for (const int step : {1, 2, 3}) {
    const auto saver = make_saver(
        make_memory_store(), {.root = dir.path(), .world_size = 1, .keep = 1, .attempt = "1"});
    saver->start(test_state(step, 1), test_part(step, 1, 0), /*prune=*/false);
    REQUIRE(saver->wait()->ok);
    REQUIRE(list_checkpoints(dir.path(), false).size() == static_cast<std::size_t>(step));
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
    return CheckpointPart{{{"w", {9}, range}},
                          {std::vector<float>(static_cast<std::size_t>(range.size()))}};
  };
  first->start(test_state(1, 2), part({0, 5}));
  second->start(test_state(1, 2), part({begin, 9}));
  const SaveResult result = first->wait().value();
  REQUIRE_FALSE(result.ok);
  REQUIRE(contains(result.error, begin == 6 ? "lacks elements [5, 6) of 'w'"
                                            : "has twice the elements [4, 5) of 'w'"));
  REQUIRE(second->wait()->error == result.error);
  REQUIRE(fs::is_empty(dir.path()));
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

TEST_CASE("a run directory is new each time and found by its checkpoints folder", "[checkpoint]") {
  const TempDir dir;
  const RunDirectory first = RunDirectory::create(dir / "runs", "quickstart");
  const RunDirectory second = RunDirectory::create(dir / "runs", "quickstart");
  REQUIRE(first.root() != second.root());
  REQUIRE(contains(first.root().filename().string(), "quickstart-20"));
  REQUIRE(fs::is_directory(first.checkpoints()));
  REQUIRE(first.rank_log(3) == first.root() / "ranks/rank0003.log");
  REQUIRE(find_checkpoints_folder(first.root()) == first.checkpoints());
  REQUIRE(find_checkpoints_folder(first.checkpoints()) == first.checkpoints());
  REQUIRE_THROWS_AS(find_checkpoints_folder(dir / "none"), Error);
  spit(dir / "file", "");
  REQUIRE_THROWS_AS(RunDirectory::create(dir / "file", "quickstart"), Error);
}
