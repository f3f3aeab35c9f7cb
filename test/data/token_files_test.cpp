#include "engine/data/text/token_files.h"

#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/data/text/split.h"
#include "engine/data/text/token_cache.h"
#include "engine/data/text/tokenise.h"
#include "test/data/text_files.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

/// A token file for each input file, and prepared ones as a data set.
namespace dstrain::text {
namespace {

namespace fs = std::filesystem;
using namespace test;

std::string lines(int first, int count) {
  std::string text;
  for (int i = first; i < first + count; ++i)
    text += Json{{"q", fmt::format("q{}", i)}, {"a", fmt::format("a{}", i)}}.dump() + "\n";
  return text;
}

DataConfig jsonl(const TempDir& folder, const fs::path& path) {
  DataConfig data = text_config(DatasetName::jsonl, path, folder / "cache");
  data.prompt = "{q}: ";
  data.response = "{a}";
  return data;
}

DataConfig tokens(const TempDir& folder, const fs::path& path) {
  return text_config(DatasetName::tokens, path, folder / "other");
}

std::string sample_text(const TokenFiles& file, std::int64_t i) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(file.length(i)));
  file.copy(i, all);
  return bytes_of(all);
}

std::vector<std::string> texts_of(const OpenSplit& split) {
  std::vector<std::string> texts;
  for (const auto i : split.selection.samples) texts.push_back(sample_text(split.file, i));
  return texts;
}

std::vector<fs::path> token_files(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".tokens") found.push_back(entry.path());
  return found;
}

std::string refusal(const DataConfig& data, const EncoderSource& encoder = byte_encoder()) {
  try {
    (void)open_split(data, false, encoder, nullptr);
  } catch (const Error& error) {
    REQUIRE(error.kind() == ErrorKind::data);
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("a new file among those of a data set is tokenised alone", "[text]") {
  const TempDir folder;
  const DataConfig data = jsonl(folder, folder / "none");
  std::vector<fs::path> files;
  for (int i = 0; i < 3; ++i) {
    files.push_back(folder / fmt::format("{}.jsonl", i));
    write_text(files.back(), lines(100 * i, 50) + (i == 1 ? "broken\n" : ""));
  }
  std::atomic<int> opened = 0;
  const auto open = [&](std::vector<fs::path> of) {
    return open_tokens(data, {.files = std::move(of)}, byte_encoder(&opened), nullptr);
  };
  REQUIRE(open({files[0], files[1]}).size() == 100);
  REQUIRE(opened == 2);
  const TokenFiles all = open(files);
  REQUIRE(opened == 3);
  REQUIRE(token_files(folder / "cache").size() == 3);
  REQUIRE(all.size() == 150);
  for (int i = 0; i < 150; ++i) {
    const int n = i / 50 * 100 + i % 50;
    REQUIRE(sample_text(all, i) == fmt::format("q{}: a{}", n, n));
    REQUIRE(all.sample(i).record == i + (i < 100 ? 0 : 1));
    REQUIRE(all.sample(i).response == fmt::format("q{}: ", n).size());
  }
  const TokenFileSummary& summary = all.summary();
  CHECK(summary.num_records == 151);
  CHECK(summary.num_problems == 1);
  CHECK(summary.problems.front().record == 100);
  const SourceFiles sources{.files = files};
  CHECK(describe_record(data, sources, summary, 100) == files[1].string() + ": line 51");
  CHECK(describe_record(data, sources, summary, 101) == files[2].string() + ": line 1");
  // The files in another order are not read again.
  REQUIRE(sample_text(open({files[2], files[0]}), 0) == "q200: a200");
  REQUIRE(opened == 3);
}

TEST_CASE("prepared token files are the data set that they were made of, which may be gone",
          "[text]") {
  const TempDir folder;
  std::vector<std::string> train, test;
  for (int i = 0; i < 3; ++i) {  // fetched, prepared and deleted one by one
    const fs::path raw = folder / fmt::format("part-{}.jsonl", i);
    write_text(raw, lines(100 * i, 40));
    const DataConfig data = jsonl(folder, raw);
    const auto more = texts_of(open_split(data, false, byte_encoder(), nullptr));
    const auto held = texts_of(open_split(data, true, byte_encoder(), nullptr));
    train.insert(train.end(), more.begin(), more.end());
    test.insert(test.end(), held.begin(), held.end());
    fs::remove(raw);
  }
  const DataConfig data = tokens(folder, folder / "cache");
  const auto own_train = texts_of(open_split(data, false, byte_encoder(), nullptr));
  const auto own_test = texts_of(open_split(data, true, byte_encoder(), nullptr));
  // What is held out goes by each sample; a single file holds out one at least.
  std::set<std::string> all(train.begin(), train.end());
  all.insert(test.begin(), test.end());
  std::set<std::string> own(own_train.begin(), own_train.end());
  for (const std::string& text : own_test) REQUIRE(own.insert(text).second);
  REQUIRE(own == all);
  REQUIRE(own.size() == 120);
  // One file alone.
  DataConfig one = data;
  one.path = token_files(folder / "cache").front();
  one.test_share = 0;
  REQUIRE(texts_of(open_split(one, false, byte_encoder(), nullptr)).size() == 40);
  CHECK_FALSE(fs::exists(folder / "other/jsonl"));
}

TEST_CASE("token files of a test split stay in it", "[text]") {
  const TempDir folder;
  write_text(folder / "set/train.jsonl", lines(0, 30));
  write_text(folder / "set/test.jsonl", lines(100, 10));
  const DataConfig raw = jsonl(folder, folder / "set");
  const auto train = texts_of(open_split(raw, false, byte_encoder(), nullptr));
  const auto test = texts_of(open_split(raw, true, byte_encoder(), nullptr));
  const DataConfig data = tokens(folder, folder / "cache");
  REQUIRE(texts_of(open_split(data, false, byte_encoder(), nullptr)) == train);
  REQUIRE(texts_of(open_split(data, true, byte_encoder(), nullptr)) == test);
  for (const fs::path& file : token_files(folder / "cache")) {
    if (!open_prepared({file}, "bytes").summary().test) fs::remove(file);
  }
  CHECK(refusal(data).find("expected *.tokens of a training split") != std::string::npos);
}

TEST_CASE("token files that do not belong together are named", "[text]") {
  const TempDir folder;
  write_text(folder / "a.jsonl", lines(0, 30));
  write_text(folder / "b.jsonl", lines(100, 30));
  DataConfig raw = jsonl(folder, folder / "a.jsonl");
  (void)open_split(raw, false, byte_encoder(), nullptr);
  const DataConfig data = tokens(folder, folder / "cache");
  const fs::path first = token_files(folder / "cache").front();

  EncoderSource other = byte_encoder();
  other.hash = other.tokenizer = "others";
  CHECK(refusal(data, other) == first.string() + ": its tokens are of another tokenizer");

  raw.path = folder / "b.jsonl";
  raw.response = "{a}!";
  (void)open_split(raw, false, byte_encoder(), nullptr);
  CHECK(refusal(data).find(": its samples have another form (jsonl) than those of jsonl-") !=
        std::string::npos);

  const std::string whole = read_file(first);
  for (const std::size_t size : {std::size_t{0}, std::size_t{50}, whole.size() - 1}) {
    write_text(folder / "cut/x.tokens", whole.substr(0, size));
    CHECK(refusal(tokens(folder, folder / "cut")) ==
          (folder / "cut/x.tokens").string() + ": it is cut off");
  }
  std::string bent = whole;
  bent[200] = static_cast<char>(bent[200] ^ 1);
  write_text(folder / "cut/x.tokens", bent);
  CHECK(refusal(tokens(folder, folder / "cut")).find("damaged") != std::string::npos);
  write_text(folder / "cut/x.tokens", std::string(500, 'x'));
  CHECK_FALSE(refusal(tokens(folder, folder / "cut")).empty());
  CHECK(refusal(tokens(folder, folder / "nowhere")).find("is not there; expected *.tokens") !=
        std::string::npos);
}

}  // namespace dstrain::text
