#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/data/text/build_lock.h"
#include "engine/data/text/file_stamp.h"
#include "engine/data/text/sources.h"
#include "engine/data/text/split.h"
#include "engine/data/text/token_cache.h"
#include "test/data/text_files.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain::text {
namespace {

using namespace test;
namespace fs = std::filesystem;

/// `size` lines {"q", "a"} of various lengths.
std::string lines(int size) {
  std::string text;
  for (int i = 0; i < size; ++i) {
    const Json line = {{"q", fmt::format("question {} {}", i, std::string(i % 50, 'x'))},
                       {"a", fmt::format("answer {}", i)}};
    text += line.dump() + "\n";
  }
  return text;
}

DataConfig config(const TempDir& folder) {
  DataConfig data = text_config(DatasetName::jsonl, folder / "train.jsonl", folder / "cache");
  data.prompt = "{q}:";
  data.response = " {a}";
  return data;
}

fs::path cache_file(const TempDir& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder / "cache")) {
    if (entry.path().extension() == ".tokens") found.push_back(entry.path());
  }
  REQUIRE(found.size() == 1);
  return found[0];
}

std::string text_of(const TokenFiles& file, std::int64_t i) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(file.length(i)));
  file.copy(i, tokens);
  REQUIRE(tokens.back() == kByteEnd);
  return bytes_of(tokens);
}

TokenFiles open(const DataConfig& data, std::atomic<int>* opened = nullptr,
                ProgressSink* progress = nullptr) {
  return open_tokens(data, find_sources(data).train, byte_encoder(opened), progress);
}

TEST_CASE("samples come back in their order, whatever the batches", "[text]") {
  const TempDir folder;
  write_text(folder / "train.jsonl", lines(1000));
  const TokenFiles file = open(config(folder));
  REQUIRE(file.size() == 1000);
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(text_of(file, i) ==
            fmt::format("question {} {}: answer {}", i, std::string(i % 50, 'x'), i));
    REQUIRE(file.sample(i).record == static_cast<std::uint32_t>(i));
    const auto response = file.length(i) - 1 - std::ssize(fmt::format(" answer {}", i));
    REQUIRE(file.sample(i).response == response);
  }
  REQUIRE(file.summary().num_records == 1000);
  REQUIRE(file.summary().highest == kByteEnd);
}

TEST_CASE("a cache is built once and found again by content, not by name", "[text]") {
  const TempDir folder;
  write_text(folder / "train.jsonl", lines(50));
  std::atomic<int> opened = 0;
  DataConfig data = config(folder);
  open(data, &opened);
  data.sequence = 77;  // what only concerns rows asks for no other tokens
  data.subset = 5;
  data.loss = LossOn::response;
  open(data, &opened);
  REQUIRE(opened == 1);
  fs::rename(folder / "train.jsonl", folder / "other.jsonl");
  data.path = (folder / "other.jsonl").string();
  open(data, &opened);
  REQUIRE(opened == 1);
  data.prompt = "{q}?";
  open(data, &opened);
  REQUIRE(opened == 2);
  write_text(folder / "other.jsonl", lines(51));
  REQUIRE(open(data, &opened).size() == 51);
  REQUIRE(opened == 3);
}

TEST_CASE("a changed byte anywhere in the cache is found and the file made again", "[text]") {
  const TempDir folder;
  write_text(folder / "train.jsonl", lines(40));
  const DataConfig data = config(folder);
  std::atomic<int> opened = 0;
  open(data, &opened);
  const fs::path path = cache_file(folder);
  const std::string good = read_file(path);
  int expected = 1;
  for (std::size_t at = 0; at < good.size(); at += 97) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    write_text(path, bad);
    Heard heard;
    const TokenFiles file = open(data, &opened, &heard);
    CAPTURE(at);
    // Only the bytes that fill up the tokens do not matter.
    if (opened == expected) {
      REQUIRE(text_of(file, 7) == "question 7 xxxxxxx: answer 7");
    } else {
      ++expected;
      REQUIRE(heard.has("is made again"));
    }
    REQUIRE(read_file(path) == (opened == expected ? read_file(path) : good));
    REQUIRE(file.size() == 40);
  }
  REQUIRE(expected > static_cast<int>(good.size() / 97) - 2);
}

TEST_CASE("a cache that is cut off or empty is made again", "[text]") {
  const TempDir folder;
  write_text(folder / "train.jsonl", lines(40));
  const DataConfig data = config(folder);
  open(data);
  const fs::path path = cache_file(folder);
  const std::string good = read_file(path);
  for (const std::size_t size : {std::size_t{0}, std::size_t{10}, std::size_t{64}, std::size_t{100},
                                 good.size() - 1, good.size() + 1}) {
    CAPTURE(size);
    std::string bad = good;
    bad.resize(size);
    write_text(path, bad);
    Heard heard;
    REQUIRE(open(data, nullptr, &heard).size() == 40);
    REQUIRE(heard.has("is made again"));
    REQUIRE(read_file(path) == good);
  }
}

TEST_CASE("tokens under the name of others, or of another version, are made again", "[text]") {
  const TempDir folder;
  write_text(folder / "train.jsonl", lines(40));
  const DataConfig data = config(folder);
  static_cast<void>(open(data));
  const fs::path path = cache_file(folder);
  const std::string good = read_file(path);
  fs::remove(path);
  DataConfig other = data;
  other.response = "{a}";
  static_cast<void>(open(other));
  fs::rename(cache_file(folder), path);
  Heard heard;
  REQUIRE(open(data, nullptr, &heard).size() == 40);
  CHECK(heard.has("is made again: it was made from other files or with other settings"));
  CHECK(read_file(path) == good);

  std::string old = good;
  old[7] = '1';
  write_text(path, old);
  Heard renewed;
  REQUIRE(open(data, nullptr, &renewed).size() == 40);
  CHECK(renewed.has("another version of dstrain wrote it"));
}

TEST_CASE("a token that only rotted later is an error, not a wrong row", "[text]") {
  const TempDir folder;
  write_text(folder / "train.jsonl", lines(40));
  const DataConfig data = config(folder);
  static_cast<void>(open(data));
  const fs::path path = cache_file(folder);
  TokenFiles file = open(data);
  std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(sizeof(TokenFileHeader) + 1);
  out.put('\x7f');
  out.close();
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(file.length(0)));
  REQUIRE_THROWS_WITH(file.copy(0, tokens), Catch::Contains("above the highest"));
}

TEST_CASE("many threads and processes that want one cache build it once", "[text]") {
  const TempDir folder;
  write_text(folder / "train.jsonl", lines(3000));
  const DataConfig data = config(folder);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::atomic<int> opened = 0;
      const bool good = open(data, &opened).size() == 3000;
      ::_exit(good ? opened.load() : 100);
    }
    children.push_back(child);
  }
  std::atomic<int> opened = 0, wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] { wrong += open(data, &opened).size() == 3000 ? 0 : 1; });
    }
  }
  int built = opened;
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    built += WEXITSTATUS(status);
  }
  REQUIRE(wrong == 0);
  REQUIRE(built == 1);
}

TEST_CASE("a builder that is killed leaves nothing that the next one trips over", "[text]") {
  const TempDir folder;
  write_text(folder / "train.jsonl", lines(2000));
  const DataConfig data = config(folder);
  const pid_t child = ::fork();
  if (child == 0) {
    EncoderSource source = byte_encoder();
    source.open = [] {
      Encoder encoder = byte_encoder().open();
      encoder.append = [inner = encoder.append](std::string_view text,
                                                std::vector<std::uint32_t>& tokens) {
        if (text.find("question 1500") != std::string_view::npos) ::kill(::getpid(), SIGKILL);
        inner(text, tokens);
      };
      return encoder;
    };
    static_cast<void>(open_tokens(data, find_sources(data).train, source, nullptr));
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  const auto leftovers = [&] {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder / "cache")) {
      count += entry.path().string().find(".building-") != std::string::npos ? 1 : 0;
    }
    return count;
  };
  REQUIRE(leftovers() == 1);
  REQUIRE(open(data).size() == 2000);
  REQUIRE(leftovers() == 0);
}

TEST_CASE("one who waits hears who builds and how far it is", "[text]") {
  const TempDir folder;
  Heard heard;
  std::jthread waiting;
  {
    const BuildLock lock(folder / "a.lock", "tokenising a", nullptr);
    lock.report(0.25, "a quarter");
    waiting =
        std::jthread([&] { const BuildLock second(folder / "a.lock", "tokenising a", &heard); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  waiting.join();
  REQUIRE(heard.has(fmt::format("waiting for process {} on", ::getpid())));
  REQUIRE(heard.has("which is tokenising a"));
  REQUIRE(heard.last == "a quarter");
  REQUIRE(heard.shares.front() == 0.25);
}

TEST_CASE("a file that has not changed is not read again for its hash", "[text]") {
  const TempDir folder;
  write_text(folder / "f", "one");
  const std::string one = content_hash(folder / "f", folder.path());
  REQUIRE_FALSE(stamp_of(folder / "f"));  // too new to be trusted
  write_text(folder / "f", "two");
  const std::string two = content_hash(folder / "f", folder.path());
  REQUIRE(one != two);
  REQUIRE(one.size() == 32);

  // The time of the change of the inode cannot be set back, so this part waits.
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  REQUIRE(content_hash(folder / "f", folder.path()) == two);
  const auto stamp = stamp_of(folder / "f");
  REQUIRE(stamp);
  const fs::path memory = [&] {
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      if (entry.path().extension() == ".seen") return entry.path();
    }
    return fs::path();
  }();
  write_stamped(memory, *stamp, one);  // believed, since the stamp fits
  REQUIRE(content_hash(folder / "f", folder.path()) == one);
  write_text(memory, *stamp + "\n" + one + "\nbroken\n");
  REQUIRE(content_hash(folder / "f", folder.path()) == two);
}

TEST_CASE("the test share is disjoint from training and keeps groups together", "[text]") {
  const TempDir folder;
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    text += Json{{"q", fmt::format("q{}", i % 400)}, {"a", fmt::format("a{}", i)}}.dump() + "\n";
  }
  write_text(folder / "train.jsonl", text);
  DataConfig data = config(folder);
  data.test_share = 0.1;
  const OpenSplit train = open_split(data, false, byte_encoder(), nullptr);
  const OpenSplit test = open_split(data, true, byte_encoder(), nullptr);
  REQUIRE(train.selection.samples.size() + test.selection.samples.size() == 2000);
  REQUIRE(test.selection.samples.size() % 5 == 0);
  REQUIRE(test.selection.samples.size() > 100);
  REQUIRE(test.selection.samples.size() < 320);
  std::set<std::uint64_t> groups;
  for (const auto i : train.selection.samples) groups.insert(train.file.sample(i).group);
  for (const auto i : test.selection.samples) REQUIRE(!groups.contains(test.file.sample(i).group));

  data.test_share = 1e-9;  // some test sample there is
  REQUIRE(open_split(data, true, byte_encoder(), nullptr).selection.samples.size() == 5);
  data.subset = 3;
  REQUIRE(open_split(data, false, byte_encoder(), nullptr).selection.samples ==
          std::vector<std::uint32_t>(train.selection.samples.begin(),
                                     train.selection.samples.begin() + 3));
}

TEST_CASE("samples that are all of one group are split one by one", "[text]") {
  const TempDir folder;
  std::string text;
  for (int i = 0; i < 20; ++i)
    text += Json{{"q", "same"}, {"a", fmt::format("{}", i)}}.dump() + "\n";
  write_text(folder / "train.jsonl", text);
  DataConfig data = config(folder);
  data.test_share = 0.01;
  REQUIRE(open_split(data, false, byte_encoder(), nullptr).selection.samples.size() == 19);
  REQUIRE(open_split(data, true, byte_encoder(), nullptr).selection.samples.size() == 1);
}

TEST_CASE("what was cut and left out is said each time the data is opened", "[text]") {
  const TempDir folder;
  write_text(folder / "train.jsonl", lines(3) + "{\"q\": 1}\n" + lines(60) + "nothing\n");
  write_text(folder / "test.jsonl", lines(2));
  DataConfig data = config(folder);
  data.path = folder.path().string();
  data.sequence = 40;
  for (int time = 0; time < 2; ++time) {
    Heard heard;
    static_cast<void>(open_split(data, false, byte_encoder(), &heard));
    REQUIRE(heard.notes.back() ==
            fmt::format("data, train: 63 samples, 33 cut to 40 tokens, 2 left out: first at {}: "
                        "line 4: it has no a",
                        (folder / "train.jsonl").string()));
  }
  data.too_long = TooLong::skip;
  Heard heard;
  static_cast<void>(open_split(data, false, byte_encoder(), &heard));
  REQUIRE(heard.notes.back().starts_with("data, train: 30 samples, 35 left out: first at"));
}

TEST_CASE("a read-only cache that holds the file is enough", "[text]") {
  if (::geteuid() == 0) return;  // who may write everywhere
  const TempDir folder;
  write_text(folder / "train.jsonl", lines(3));
  const DataConfig data = config(folder);
  open(data);
  fs::permissions(folder / "cache", fs::perms::owner_read | fs::perms::owner_exec);
  REQUIRE(open(data).size() == 3);
  fs::permissions(folder / "cache", fs::perms::owner_all);
}

}  // namespace
}  // namespace dstrain::text
