#include <fmt/format.h>

#include <cstdlib>
#include <functional>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/data/text/split.h"
#include "engine/data/text/tokenizer_source.h"
#include "test/data/text_files.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain::text {
namespace {

using namespace test;
namespace fs = std::filesystem;

constexpr const char* kGolden = "test/golden/data/text_messages.txt";

/// One wrong data set: how to make it in an empty folder, and what the recipe says of it.
struct Case {
  std::string name;
  DatasetName format;
  std::function<void(const fs::path&)> make;
  std::function<void(DataConfig&)> change = [](DataConfig&) {};
  std::int64_t vocab_size = kBytePad + 1;
  bool test = false;
};

/// This file, and for SQuAD a test file, so that the first is the training split alone.
std::function<void(const fs::path&)> file(const std::string& name, const std::string& content) {
  return [=](const fs::path& folder) {
    write_text(folder / name, content);
    if (name == "train-v1.1.json") write_text(folder / "dev-v1.1.json", "{}");
  };
}

std::string squad_of(const std::vector<Json>& questions) {
  return squad_file("Zürich lies on the Limmat.", questions).dump();
}

void stop(DataConfig& data) { data.bad_record = BadRecord::stop; }
void templates(DataConfig& data) {
  data.prompt = "{q}";
  data.response = "{a}";
}

std::vector<Case> cases() {
  using enum DatasetName;
  const Json good = squad_question("Which?", "Limmat", 19);
  const Json bad = squad_question("Which?", "Rhine", 19);
  const std::string lines = "{\"q\": \"1+1\", \"a\": \"2\"}\n";
  const auto with_templates = [](std::function<void(DataConfig&)> more) {
    return [more](DataConfig& data) {
      templates(data);
      more(data);
    };
  };
  return {
      {"no path", squad, [](const fs::path&) {}, [](DataConfig& data) { data.path = ""; }},
      {"squad: no such files", squad, file("readme.txt", "")},
      {"metamathqa: path does not exist", metamathqa, [](const fs::path&) {},
       [](DataConfig& data) { data.path += "/absent"; }},
      {"squad: JSON cut off", squad,
       file("train-v1.1.json", squad_of({good, good}).substr(0, 150))},
      {"squad: another JSON file", squad, file("train-v1.1.json", "{\"model\": 1}")},
      {"squad: a list", squad, file("train-v1.1.json", "[]")},
      {"squad: data is text", squad, file("train-v1.1.json", "{\"data\": \"\"}")},
      {"squad: an article is a number", squad, file("train-v1.1.json", "{\"data\": [1]}")},
      {"squad: empty file", squad, file("train-v1.1.json", "")},
      {"squad: a record before the break counts first", squad,
       file("train-v1.1.json", squad_file("c", {bad}).dump().substr(0, 240) + "]}"), stop},
      {"squad: wrong answer_start, stop", squad, file("train-v1.1.json", squad_of({good, bad})),
       stop},
      {"squad: not one good record", squad, file("train-v1.1.json", squad_of({bad, bad}))},
      {"squad: too long, stop", squad, file("train-v1.1.json", squad_of({good})),
       [](DataConfig& data) {
         data.sequence = 16;
         data.too_long = TooLong::stop;
       }},
      {"squad: all too long, skip", squad, file("train-v1.1.json", squad_of({good})),
       [](DataConfig& data) {
         data.sequence = 16;
         data.too_long = TooLong::skip;
       }},
      {"squad: all cut before the answer", squad, file("train-v1.1.json", squad_of({good})),
       [](DataConfig& data) {
         data.sequence = 16;
         data.loss = LossOn::response;
       }},
      {"squad: token outside the model's vocabulary", squad,
       file("train-v1.1.json", squad_of({good})), [](DataConfig&) {}, 180},
      {"squad: fill token outside the model's vocabulary", squad,
       file("train-v1.1.json", squad_of({good})), [](DataConfig&) {}, kBytePad},
      {"metamathqa: not a list", metamathqa, file("MetaMathQA-395K.json", "{\"query\": \"\"}")},
      {"metamathqa: cut off in a record", metamathqa,
       file("MetaMathQA-395K.json", "[{\"query\": \"a\", \"response\": \"b")},
      {"metamathqa: no response, stop", metamathqa,
       file("MetaMathQA-395K.json",
            "[{\"query\": \"a\", \"response\": \"b\"},\n{\"query\": \"\\u00e9\"}]"),
       stop},
      {"parquet that is none", metamathqa, file("train.parquet", "PAR1 and nothing else PAR1")},
      {"jsonl: broken UTF-8, stop", jsonl,
       file("train.jsonl", lines + "\n{\"q\": \"\xc3\x28\", \"a\": \"2\"}\n"),
       with_templates(stop)},
      {"jsonl: empty answer, stop", jsonl,
       file("train.jsonl", lines + "{\"q\": \"1\", \"a\": \" \"}\n"), with_templates(stop)},
      {"jsonl: nothing held out", jsonl, file("train.jsonl", lines),
       with_templates([](DataConfig& data) { data.test_share = 0; }), kBytePad + 1, true},
      {"jsonl: one sample, which is held out", jsonl, file("train.jsonl", lines), templates},
      {"jsonl: no response", jsonl, file("train.jsonl", lines)},
      {"jsonl: brace that is not closed", jsonl, file("train.jsonl", lines),
       [](DataConfig& data) {
         data.prompt = "{q";
         data.response = "{a}";
       }},
      {"jsonl: brace that is not opened", jsonl, file("train.jsonl", lines),
       [](DataConfig& data) { data.response = "a}"; }},
      {"jsonl: no name in the braces", jsonl, file("train.jsonl", lines),
       [](DataConfig& data) { data.response = "{}"; }},
      {"cache that cannot be made", jsonl, file("train.jsonl", lines),
       with_templates([](DataConfig& data) { data.cache = data.path + "/train.jsonl/cache"; })},
  };
}

/// `text` with the place of `folder` left out.
std::string without(std::string text, const fs::path& folder) {
  const std::string place = folder.string();
  for (auto at = text.find(place); at != std::string::npos; at = text.find(place)) {
    text.replace(at, place.size(), "DATA");
  }
  return text;
}

std::string printed(const Error& error, const fs::path& folder) {
  std::string text = fmt::format("{} (exit code {})\n", error.what(), exit_code(error.kind()));
  if (!error.hint().empty()) text += fmt::format("  hint: {}\n", error.hint());
  return without(text, folder);
}

/// What a person sees; twice, since the second time the cache may know.
std::string message_of(const Case& wrong) {
  const TempDir folder;
  wrong.make(folder.path());
  DataConfig data = text_config(wrong.format, folder.path(), folder / "cache");
  wrong.change(data);
  std::string texts[2];
  for (std::string& text : texts) {
    try {
      const OpenSplit split = open_split(data, wrong.test, byte_encoder(), nullptr);
      check_vocabulary(data, split, wrong.vocab_size);
      text = "no error";
    } catch (const Error& error) {
      text = printed(error, folder.path());
    }
  }
  CAPTURE(wrong.name);
  CHECK(texts[0] == texts[1]);
  return texts[0];
}

/// A tokenizer that lacks what `data` needs.
std::string tokenizer_message(const std::string& tokenizer, DatasetName name) {
  const TempDir folder;
  DataConfig data = text_config(name, folder.path(), folder / "cache");
  if (!tokenizer.empty()) {
    write_text(folder / "tokenizer.json", tokenizer);
    data.tokenizer = folder.path().string();
  } else if (name == DatasetName::squad) {
    data.tokenizer = (folder / "absent").string();
  }
  try {
    static_cast<void>(tokenizer_source(data, "").open());
    return "no error\n";
  } catch (const Error& error) {
    return printed(error, folder.path());
  }
}

TEST_CASE("every wrong file of text gives its message", "[text][golden]") {
  std::string all;
  for (const Case& wrong : cases()) all += fmt::format("# {}\n{}\n", wrong.name, message_of(wrong));
  using enum DatasetName;
  all += "# no tokenizer\n" + tokenizer_message("", jsonl);
  all += "\n# tokenizer is not there\n" + tokenizer_message("", squad);
  all += "\n# tokenizer without an end token\n" + tokenizer_message(byte_tokenizer({}), squad);
  all += "\n# chat without chat tokens\n" + tokenizer_message(byte_tokenizer({"</s>"}), metamathqa);
  if (std::getenv("DSTRAIN_UPDATE_GOLDEN") != nullptr) write_file_atomically(kGolden, all);
  REQUIRE(all == read_file(kGolden));
}

}  // namespace
}  // namespace dstrain::text
