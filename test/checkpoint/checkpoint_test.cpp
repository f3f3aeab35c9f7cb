#include "engine/checkpoint/checkpoint.h"

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

#include "engine/checkpoint/checkpoint_file.h"
#include "engine/weights/safetensors.h"
#include "test/checkpoint/checkpoint_support.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace fs = std::filesystem;
using namespace dstrain;
using namespace dstrain::test;

namespace {

/// A manifest with this body and the right hash: what an attacker could write.
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
  REQUIRE(reader->state().tolerated_steps == 2);
  REQUIRE(reader->state().class_names == test_state(100, saved).class_names);
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
    bool equal = true;
    for (const auto& [box, offset] : slices_of({{"big", {64, 33}}}, {begin, end}))
      equal = equal && box_holds_step(*reader, 5, box, 5);
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
  REQUIRE(file.entries().at("big@1056").shape == std::vector<std::int64_t>{32, 33});
  std::vector<float> values(2);
  file.read("big@1056", 10, values);
  REQUIRE(values == std::vector<float>{test_value(5, 1066, 8), test_value(5, 1067, 8)});
}

TEST_CASE("what does not match the checkpoint is an error that names it", "[checkpoint]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 2, 8)));
  const auto reader = CheckpointReader::open(dir / "step-00000008", true);
  std::vector<float> three(3);
  REQUIRE(contains(checkpoint_error([&] { reader->read({"tail.bias", {3}}, three); }),
                   "no tensor 'tail.bias'"));
  REQUIRE(contains(checkpoint_error([&] { reader->read({"head.bias", {1, 3}}, three); }),
                   "'head.bias' has shape [3]"));
  const auto misfit = [&](Range rows, Range columns) {
    return checkpoint_error([&] { reader->read({"head.bias", {3}, rows, columns}, three); });
  };
  REQUIRE(
      contains(misfit({1, 4}, {0, 1}), "rows [1, 4), columns [0, 1) of 'head.bias' do not fit"));
  REQUIRE(contains(misfit({0, 2}, {0, 1}), "do not fit 3 values of its 3 rows and 1 columns"));
  REQUIRE(contains(misfit({-3, 0}, {0, 1}), "do not fit"));
  REQUIRE(contains(misfit({0, 1}, {0, 3}), "do not fit"));
  REQUIRE(contains(misfit({3, 0}, {0, -1}), "do not fit"));
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
                   "lacks the rows [0, 37), columns [11, 12) of 'layer.0.weight'"));
  REQUIRE(contains(changed("\"bytes\":", "\"bytes\":1"), "bytes, the manifest says"));
  REQUIRE(contains(changed("\"step\":100", "\"step\":100,\"step\":100"),
                   "the key 'step' is there twice"));
  REQUIRE(contains(changed("\"step\":100", "\"step\":\"100\""), "'step' is not a whole number"));
  REQUIRE(contains(changed("\"version\": 3", "\"version\": 4"),
                   "format version 4, this dstrain reads versions 1 to 3"));
  REQUIRE(contains(changed("\"loss_scale\":32768.0", "\"loss_scale\":null"),
                   "'loss_scale' is not a number"));
  REQUIRE(contains(changed("\"dtype\":\"F32\"", "\"dtype\":\"F16\""), "other than F32"));
  REQUIRE(contains(changed("\"head.bias\"", "\"layer.0.weight\""),
                   "has the tensor 'layer.0.weight' twice"));
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
