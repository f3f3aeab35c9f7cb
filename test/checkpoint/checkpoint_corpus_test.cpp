#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <limits>
#include <random>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/weights/safetensors.h"
#include "test/checkpoint/checkpoint_support.h"
#include "test/checkpoint/hostile_json.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

/// A corpus of broken and hostile checkpoints, made here: each is read whole or refused with an
/// Error of its kind that names a file; nothing else may happen, and not for long.
namespace fs = std::filesystem;
using namespace dstrain;
using namespace dstrain::test;

namespace {

std::string hash_of(const std::string& bytes) {
  FileHash hash;
  hash.update(std::as_bytes(std::span(bytes)));
  return hash.hex();
}

/// `text` is an object without its hash, or what is left of one; it gets the hash that fits.
void write_hashed(const fs::path& checkpoint, const std::string& text) {
  const std::string body = text.ends_with('}') ? text.substr(0, text.size() - 1) : text;
  spit(checkpoint / "MANIFEST.json", body + ",\n\"hash\": \"" + hash_of(body) + "\"}\n");
}

std::string without_hash(const fs::path& checkpoint) {
  const std::string text = slurp(checkpoint / "MANIFEST.json");
  return text.substr(0, text.rfind(",\n\"hash\"")) + "}";
}

/// Empty when the checkpoint is read whole, else how it was refused.
std::string refusal(const fs::path& checkpoint) {
  try {
    const auto reader = CheckpointReader::open(checkpoint, /*verify=*/true);
    for (const Piece& tensor : reader->tensors()) {
      if (tensor.numel() > 10'000'000) return "no error, but a tensor that cannot be there";
      std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
      reader->read(tensor, values);
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::checkpoint) return fmt::format("wrong kind: {}", error.what());
    return error.what();
  }
  return {};
}

/// Refused in a way that helps, or sound.
void require_orderly(const fs::path& checkpoint, const std::string& input) {
  const std::string text = refusal(checkpoint);
  const bool orderly =
      text.empty() || text.find(checkpoint.filename().string()) != std::string::npos;
  if (!orderly || text.size() > 4000) {
    CAPTURE(input.substr(0, 2000), text.substr(0, 2000));
    FAIL("not refused in order");
  }
  const CheckpointInfo info = inspect_checkpoint(checkpoint, /*full=*/true);
  if (info.valid == info.problem.empty()) return;
  CAPTURE(input.substr(0, 2000), info.problem);
  FAIL("neither valid nor a problem");
}

/// Measures this process's own time: other work on the machine is no fault of a reader.
class Stopwatch {
 public:
  ~Stopwatch() { CHECK(std::clock() - begin_ < 30 * CLOCKS_PER_SEC); }

 private:
  std::clock_t begin_ = std::clock();
};

/// Reads the checkpoint with each mutant of its manifest.
void require_orderly_mutants(const fs::path& checkpoint) {
  const Stopwatch limit;
  const std::string good = without_hash(checkpoint);
  write_hashed(checkpoint, good);
  REQUIRE(refusal(checkpoint).empty());
  int num_refused = 0;
  int num_taken = 0;
  for_each_mutant(good, [&](const std::string& text) {
    write_hashed(checkpoint, text);
    require_orderly(checkpoint, text);
    refusal(checkpoint).empty() ? ++num_taken : ++num_refused;
  });
  CAPTURE(num_taken, num_refused);
  CHECK(num_refused > 1500);
  CHECK(num_taken < num_refused);  // the recipe's text may be anything, for one
}

}  // namespace

TEST_CASE("corpus: manifests with a right hash and anything in them", "[checkpoint][corpus]") {
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 2, 100)));
  require_orderly_mutants(dir / "step-00000100");
}

TEST_CASE("corpus: manifests of version 1 with a right hash and anything in them",
          "[checkpoint][corpus]") {
  const TempDir dir;
  const fs::path checkpoint = dir / "step-00000100";
  fs::copy("test/checkpoint/version_1/step-00000100", checkpoint, fs::copy_options::recursive);
  require_orderly_mutants(checkpoint);
}

TEST_CASE("corpus: manifests whose bytes were changed by accident", "[checkpoint][corpus]") {
  const Stopwatch limit;
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 1, 100)));
  const fs::path checkpoint = dir / "step-00000100";
  const std::string good = slurp(checkpoint / "MANIFEST.json");
  const auto refused = [&](const std::string& text) {
    spit(checkpoint / "MANIFEST.json", text);
    require_orderly(checkpoint, text);
    return !refusal(checkpoint).empty();
  };
  for (std::size_t end = 0; end < good.size(); end += 7) {
    CAPTURE(end);
    REQUIRE(refused(good.substr(0, end)));
  }
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    std::string text = good;
    const std::size_t at = random() % text.size(), count = 1 + random() % 64;
    CAPTURE(at, count);
    if (i % 3 == 0) {
      text.erase(at, count);
    } else if (i % 3 == 1) {
      text.insert(at, text.substr(random() % text.size(), count));
    } else {
      std::fill_n(text.begin() + static_cast<std::ptrdiff_t>(at), std::min(count, text.size() - at),
                  '\0');
    }
    const bool same = text == good;
    REQUIRE(refused(text) == !same);
  }
}

TEST_CASE("corpus: shards of any content under a manifest that vouches for them",
          "[checkpoint][corpus]") {
  const Stopwatch limit;
  const TempDir dir;
  REQUIRE(all_ok(save_on(dir.path(), 1, 100)));
  const fs::path checkpoint = dir / "step-00000100", shard = checkpoint / "rank0000.safetensors";
  const std::string good = slurp(shard), manifest = without_hash(checkpoint);
  const auto vouched = [&](const std::string& content) {
    spit(shard, content);
    auto json = nlohmann::ordered_json::parse(manifest);
    auto& file = json["files"][0];
    REQUIRE(file["bytes"] == good.size());
    file["bytes"] = content.size();
    for (auto& [key, value] : file.items())
      if (value == hash_of(good)) value = hash_of(content);
    write_hashed(checkpoint, json.dump());
    require_orderly(checkpoint, "shard of " + std::to_string(content.size()) + " bytes");
    return refusal(checkpoint);
  };
  REQUIRE(vouched(good).empty());
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{8}, good.size() / 2,
                                 good.size() - 4, good.size() - 1}) {
    CAPTURE(size);
    REQUIRE_FALSE(vouched(good.substr(0, size)).empty());
  }
  REQUIRE(vouched(good + "more").empty());  // what the manifest does not point to is not read
  // One value after another becomes one that is not finite: named with its tensor.
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  for (std::size_t i = 0; i < 60; ++i) {
    std::string content = good;
    std::memcpy(content.data() + content.size() - 4 * (i * 7 + 1), &bad[i % 3], 4);
    const std::string text = vouched(content);
    CAPTURE(i, text);
    REQUIRE(text.find("tensor 'big' holds ") != std::string::npos);
  }
  std::mt19937 random(6);
  for (int i = 0; i < 200; ++i) {
    std::string content = good;
    for (char& byte : content) byte = random() % 4 == 0 ? static_cast<char>(random()) : byte;
    (void)vouched(content);
  }
}

TEST_CASE("corpus: what is no file in the place of one", "[checkpoint][corpus]") {
  const Stopwatch limit;
  for (const std::string name : {"MANIFEST.json", "rank0000.safetensors"}) {
    for (const std::string kind : {"directory", "fifo", "socket", "loop", "device", "nowhere"}) {
      CAPTURE(name, kind);
      const TempDir dir;
      REQUIRE(all_ok(save_on(dir.path(), 1, 100)));
      const fs::path checkpoint = dir / "step-00000100", path = checkpoint / name;
      fs::remove(path);
      if (kind == "directory") fs::create_directory(path);
      if (kind == "fifo") REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
      if (kind == "loop") fs::create_symlink(name, path);
      if (kind == "device") fs::create_symlink("/dev/zero", path);
      if (kind == "nowhere") fs::create_symlink("/nowhere/at/all", path);
      if (kind == "socket") {
        const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        const fs::path before = fs::current_path();
        fs::current_path(checkpoint);  // the address of a socket is short
        std::strncpy(address.sun_path, name.c_str(), sizeof(address.sun_path) - 1);
        const int bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
        fs::current_path(before);
        ::close(fd);
        REQUIRE(bound == 0);
      }
      require_orderly(checkpoint, kind);
      const std::string text = refusal(checkpoint);
      REQUIRE(text.find(name) != std::string::npos);
      std::vector<std::string> problems;
      REQUIRE_FALSE(newest_valid(dir.path(), problems));
      REQUIRE(problems.size() == 1);
    }
  }
}

TEST_CASE("corpus: headers of tensor files", "[checkpoint][corpus]") {
  const Stopwatch limit;
  const TempDir dir;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const fs::path path = dir / "model.safetensors";
  write_safetensors(
      path,
      {{"a", {2, 2}, DType::f32, std::span(values).first(4)}, {"b", {6}, DType::bf16, values}},
      {{"format", "pt"}});
  const std::string good = slurp(path);
  std::uint64_t length = 0;
  std::memcpy(&length, good.data(), 8);
  const std::string header = good.substr(8, length), data = good.substr(8 + length);
  int num_refused = 0;
  const auto take = [&](const std::string& bytes, const std::string& input) {
    spit(path, bytes);
    std::string problem;
    try {
      const SafetensorsFile file(path);
      for (const auto& [name, entry] : file.entries()) {
        if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") continue;
        const std::size_t size = (entry.end - entry.begin) / (entry.dtype == "F32" ? 4 : 2);
        std::vector<float> read(size);
        file.read(name, 0, read);
      }
    } catch (const Error& error) {
      ++num_refused;
      const std::string text = error.what();
      if (error.kind() != ErrorKind::data || text.find(path.string()) == std::string::npos ||
          text.size() > 4000)
        problem = text;
    }
    CAPTURE(input.substr(0, 2000), problem.substr(0, 2000));
    if (!problem.empty()) FAIL("not refused in order");
  };
  for_each_mutant(header, [&](const std::string& text) {
    const std::uint64_t size = text.size();
    std::string prefix(8, '\0');
    std::memcpy(prefix.data(), &size, 8);
    take(prefix + text + data, text);
  });
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1}, length - 1, length + 1, std::uint64_t{good.size()},
        std::uint64_t{100'000'001}, std::numeric_limits<std::uint64_t>::max(),
        std::numeric_limits<std::uint64_t>::max() - 7}) {
    std::string bytes = good;
    std::memcpy(bytes.data(), &size, 8);
    take(bytes, "length " + std::to_string(size));
  }
  for (std::size_t end = 0; end < good.size(); end += 3) take(good.substr(0, end), "cut");
  CHECK(num_refused > 500);
}
