#include <fmt/format.h>

#include <cstring>

#include "engine/base/error.h"
#include "engine/data/text/sources.h"
#include "engine/data/text/split.h"
#include "engine/data/text/tar_records.h"
#include "engine/data/text/tar_shards.h"
#include "test/data/text_files.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain::text {
namespace {

using namespace test;
using Members = std::vector<std::pair<std::string, std::string>>;

/// A tar in ustar.
void write_tar(const std::filesystem::path& path, const Members& members) {
  std::string tar;
  for (const auto& [name, content] : members) {
    std::string header(512, '\0');
    header.replace(0, name.size(), name);
    header.replace(100, 7, "0000644");
    header.replace(124, 11, fmt::format("{:011o}", content.size()));
    header.replace(148, 8, "        ");
    header[156] = '0';
    header.replace(257, 8, std::string("ustar\00000", 8));
    int sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    header.replace(148, 7, fmt::format("{:06o}", sum) + '\0');
    tar += header + content + std::string((512 - content.size() % 512) % 512, '\0');
  }
  write_text(path, tar + std::string(1024, '\0'));
}

std::vector<Record> records(const Members& members, const std::string& prompt,
                            const std::string& response) {
  const TempDir folder;
  write_tar(folder / "d.tar", members);
  std::vector<Record> found;
  read_tar_fields(folder / "d.tar", Template(prompt, "data.prompt"),
                  Template(response, "data.response"),
                  [&](Record&& record) { found.push_back(std::move(record)); });
  return found;
}

TEST_CASE("members of one key are a record, whose fields are its object's and texts", "[text]") {
  const auto found = records({{"a/1.txt", "eins\n"},
                              {"a/1.json", R"({"q": "one?", "n": 1})"},
                              {"README", "no sample"},
                              {"a/1.jpg", "\xff\xd8 no text"},
                              {"b/1.JSN", "\xef\xbb\xbf{\"q\": \"two?\", \"n\": 2}"},
                              {"b/1.Txt", "zwei"}},
                             "{q} {n}: ", "{txt}");
  REQUIRE(found.size() == 2);
  CHECK(found[0].problem.empty());
  CHECK(found[0].number == 1);
  CHECK(found[0].prompt == "one? 1: ");
  CHECK(found[0].response == "eins\n");
  CHECK(found[0].group == found[0].prompt);
  CHECK(found[1].problem.empty());
  CHECK(found[1].number == 2);
  CHECK(found[1].prompt == "two? 2: ");
  CHECK(found[1].response == "zwei");
  CHECK(found[1].share == 1);
}

TEST_CASE("what is wrong with a sample of a tar names its member, and the others are read",
          "[text]") {
  const auto found = records({{"1.txt", "fine"},
                              {"2.json", R"({"txt": )"},
                              {"3.json", "[1]"},
                              {"4.cls", "7"},
                              {"5.txt", "bad \xff"},
                              {"6.txt", "a"},
                              {"6.json", R"({"txt": "b"})"},
                              {"7.txt", " \n"},
                              {"8.json", R"({"txt": null})"},
                              {"9.json", "{}"},
                              {"9.jsn", "{}"},
                              {"10.txt", "fine, too"}},
                             "", "{txt}");
  std::vector<std::string> problems;
  for (const Record& record : found) problems.push_back(record.problem);
  REQUIRE(problems.size() == 10);
  CHECK(problems[0].empty());
  CHECK_THAT(problems[1], Catch::StartsWith("2.json: byte 9 of the member"));
  CHECK(problems[2] == "3.json: it is a list, expected an object");
  CHECK(problems[3] == "4: it has no txt");
  CHECK(problems[4] == "5.txt: not UTF-8 at byte 5 of the member");
  CHECK(problems[5] == "'txt' is in both 6.json and 6.txt");
  CHECK(problems[6] == "7: its answer is empty");
  CHECK(problems[7] == "8: txt is null, expected text");
  CHECK(problems[8] == "'9' is in both 9.json and 9.jsn");
  CHECK(problems[9].empty());
}

TEST_CASE("tar files are found by folder, pattern and name, as those of images are", "[text]") {
  const TempDir folder;
  for (const char* name : {"train-0.tar", "train-1.tar", "val-0.tar", "test-0.tar"})
    write_tar(folder / name, {{"1.txt", name}});
  const auto names = [](const SourceFiles& files) {
    CHECK(files.tar);
    std::vector<std::string> list;
    for (const auto& file : files.files) list.push_back(file.filename().string());
    return list;
  };
  for (const DatasetName name : {DatasetName::jsonl, DatasetName::chat}) {
    for (const std::string path : {"", "/train-{0..1}.tar"}) {
      const Sources found =
          find_sources(text_config(name, folder.path().string() + path, folder / "cache"));
      CHECK(names(found.train) == std::vector<std::string>{"train-0.tar", "train-1.tar"});
      CHECK(names(found.test) == std::vector<std::string>{"test-0.tar"});
      CHECK(found.note == "in " + folder.path().string() +
                              ": 2 tar files for training, the first is train-0.tar; 1 for "
                              "evaluation, the first is test-0.tar; left out: 1 of further "
                              "splits, the first is val-0.tar");
    }
    const Sources one = find_sources(text_config(name, folder / "train-1.tar", folder / "cache"));
    CHECK(names(one.train) == std::vector<std::string>{"train-1.tar"});
  }
  CHECK_THROWS_WITH(
      find_sources(text_config(DatasetName::jsonl, folder / "train-{1..0}.tar", folder / "cache")),
      Catch::Contains("a range that does not go up"));
  // Other data in a folder beside a tar is no split of it; in a folder that is named it is.
  std::filesystem::create_directories(folder / "alone/other");
  write_tar(folder / "alone/a.tar", {{"1.txt", "a"}});
  write_tar(folder / "alone/other/test-0.tar", {{"1.txt", "a"}});
  for (const char* named : {"alone/a.tar", "alone"}) {
    const Sources found =
        find_sources(text_config(DatasetName::jsonl, folder / named, folder / "cache"));
    CHECK(names(found.train) == std::vector<std::string>{"a.tar"});
    CHECK(found.test.files.empty() == std::string(named).ends_with(".tar"));
    CHECK(found.note.empty() == found.test.files.empty());
  }
  // Lines go first.
  write_text(folder / "train.jsonl", "{}\n");
  CHECK_FALSE(
      find_sources(text_config(DatasetName::jsonl, folder.path(), folder / "cache")).train.tar);
}

TEST_CASE("a split of tars has their samples, and says which sample of which tar is bad",
          "[text]") {
  const TempDir folder;
  write_tar(folder / "train-0.tar", {{"1.txt", "abc"}, {"2.txt", "defg"}});
  write_tar(folder / "train-1.tar", {{"1.txt", "h"}, {"2.cls", "0"}, {"3.txt", "ij"}});
  write_tar(folder / "val-0.tar", {{"1.txt", "xyz"}});
  DataConfig data = text_config(DatasetName::jsonl, folder.path(), folder / "cache");
  data.prompt = "";
  data.response = "{txt}";
  data.sequence = 16;
  Heard heard;
  const OpenSplit train = open_split(data, /*test=*/false, byte_encoder(), &heard);
  CHECK(train.selection.samples.size() == 4);
  CHECK(train.selection.unused == 1);
  CHECK(train.selection.first_left_out ==
        (folder / "train-1.tar").string() + ": sample 2: 2: it has no txt");
  CHECK(open_split(data, /*test=*/true, byte_encoder(), nullptr).selection.samples.size() == 1);
  data.bad_record = BadRecord::stop;
  CHECK_THROWS_WITH(open_split(data, false, byte_encoder(), nullptr),
                    Catch::Contains("train-1.tar: sample 2: 2: it has no txt"));
}

TEST_CASE("a damaged or compressed tar of texts is named", "[text]") {
  const TempDir folder;
  write_text(folder / "a.tar", std::string("\x1f\x8b", 2) + std::string(600, 'x'));
  write_text(folder / "b.tar", std::string(600, 'x'));
  const auto error_of = [&](const char* name) {
    DataConfig data = text_config(DatasetName::jsonl, folder / name, folder / "cache");
    data.response = "{txt}";
    try {
      (void)open_split(data, false, byte_encoder(), nullptr);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::data);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(error_of("a.tar"), Catch::Contains("a.tar: it is compressed by gzip"));
  CHECK_THAT(error_of("b.tar"), Catch::Contains("b.tar: it is no tar"));
}

}  // namespace
}  // namespace dstrain::text
