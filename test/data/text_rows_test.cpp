#include "engine/data/text_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/base/error.h"
#include "engine/data/text/split.h"
#include "engine/data/text_dataset.h"
#include "test/data/text_files.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain::text {
namespace {

using namespace test;

struct TextRow {
  std::vector<std::int64_t> tokens, labels;
  std::vector<float> weights;
  std::vector<std::int32_t> positions, starts;
  std::int64_t length = 0;
  bool operator==(const TextRow&) const = default;
};

TextRow read(const TextDataset& rows, std::int64_t index) {
  const auto length = static_cast<std::size_t>(rows.sequence());
  TextRow row;
  row.tokens.assign(length, -1);
  row.labels.assign(length, -1);
  row.weights.assign(length, -1);
  row.positions.assign(rows.max_packed() > 0 ? length : 0, -1);
  row.length = rows.read(index,
                         {.tokens = row.tokens,
                          .labels = row.labels,
                          .weights = row.weights,
                          .positions = row.positions},
                         row.starts);
  return row;
}

using Lines = std::vector<std::pair<std::string, std::string>>;

class Fixture {
 public:
  /// Lines {"q", "a"} as "Q{q}" and "A{a}", each with one token per byte.
  explicit Fixture(const Lines& lines) {
    std::string text;
    for (const auto& [q, a] : lines) text += Json{{"q", q}, {"a", a}}.dump() + "\n";
    write_text(folder_ / "train.jsonl", text);
    write_text(folder_ / "test.jsonl", text);
    data = text_config(DatasetName::jsonl, folder_.path(), folder_ / "cache");
    data.prompt = "Q{q}";
    data.response = "A{a}";
  }
  [[nodiscard]] std::unique_ptr<TextDataset> rows(std::int64_t seed = 0) const {
    OpenSplit split = open_split(data, false, byte_encoder(), nullptr);
    return make_rows(data, std::move(split.file), std::move(split.selection), seed);
  }
  DataConfig data;

 private:
  TempDir folder_;
};

TEST_CASE("a label is the token that follows in its sample, and fill has none", "[text]") {
  Fixture fixture(Lines{{"x", "yz"}});  // Q x A y z end
  fixture.data.sequence = 8;
  const auto all = fixture.rows();
  REQUIRE(all->size() == 1);
  REQUIRE(all->sequence() == 8);
  REQUIRE(all->vocab_size() == kBytePad + 1);
  REQUIRE(all->max_packed() == 0);
  const std::vector<std::int64_t> tokens = {'Q', 'x', 'A', 'y', 'z', kByteEnd, kBytePad, kBytePad};
  TextRow row = read(*all, 0);
  REQUIRE(row.tokens == tokens);
  REQUIRE(row.length == 6);
  REQUIRE(row.labels == std::vector<std::int64_t>{'x', 'A', 'y', 'z', kByteEnd, 0, 0, 0});
  REQUIRE(row.weights == std::vector<float>{1, 1, 1, 1, 1, 0, 0, 0});
  REQUIRE(all->targets(0) == 5);

  fixture.data.loss = LossOn::response;
  const auto response = fixture.rows();
  row = read(*response, 0);
  REQUIRE(row.tokens == tokens);
  REQUIRE(row.labels == std::vector<std::int64_t>{0, 'A', 'y', 'z', kByteEnd, 0, 0, 0});
  REQUIRE(row.weights == std::vector<float>{0, 1, 1, 1, 1, 0, 0, 0});
  REQUIRE(response->targets(0) == 4);

  fixture.data.sequence = 4;  // cut: no end, and the last token has no label
  row = read(*fixture.rows(), 0);
  REQUIRE(row.tokens == std::vector<std::int64_t>{'Q', 'x', 'A', 'y'});
  REQUIRE(row.labels == std::vector<std::int64_t>{0, 'A', 'y', 0});
  REQUIRE(fixture.rows()->targets(0) == 2);
}

TEST_CASE("packed rows hold each sample whole, and labels never cross", "[text][property]") {
  Lines lines;
  for (int i = 0; i < 300; ++i) {
    lines.emplace_back(fmt::format("{}", i),
                       std::string(static_cast<std::size_t>(i * 7 % 40), 'x'));
    lines.back().second += ".";
  }
  Fixture fixture(lines);
  fixture.data.sequence = 64;
  fixture.data.packing = true;
  fixture.data.loss = GENERATE(LossOn::all, LossOn::response);
  const auto rows = fixture.rows(3);
  REQUIRE(rows->size() < 150);
  std::map<std::string, int> seen;
  int max = 0;
  for (std::int64_t r = 0; r < rows->size(); ++r) {
    const TextRow row = read(*rows, r);
    REQUIRE(row.starts.at(0) == 0);
    max = std::max(max, static_cast<int>(row.starts.size()));
    std::int64_t targets = 0;
    for (std::size_t s = 0; s < row.starts.size(); ++s) {
      const auto begin = static_cast<std::size_t>(row.starts[s]);
      const std::size_t stop = s + 1 < row.starts.size()
                                   ? static_cast<std::size_t>(row.starts[s + 1])
                                   : row.tokens.size();
      std::string text;
      bool ended = false, in_response = false;
      for (std::size_t t = begin; t < stop; ++t) {
        REQUIRE(row.positions[t] == static_cast<int>(t - begin));
        const std::int64_t token = row.tokens[t];
        const bool labelled = !ended && token != kByteEnd;
        if (labelled) in_response |= row.tokens[t + 1] == 'A';
        const bool counts = labelled && (fixture.data.loss == LossOn::all || in_response);
        REQUIRE(row.weights[t] == (counts ? 1.0F : 0.0F));
        REQUIRE(row.labels[t] == (counts ? row.tokens[t + 1] : 0));
        targets += counts ? 1 : 0;
        REQUIRE(ended == (token == kBytePad));
        if (!ended && token < kByteEnd) text += static_cast<char>(token);
        ended |= token == kByteEnd;
      }
      REQUIRE(ended);
      ++seen[text];
    }
    REQUIRE(rows->targets(r) == targets);
    REQUIRE(row.length == std::ssize(row.tokens) - std::ranges::count(row.tokens, kBytePad));
  }
  REQUIRE(rows->max_packed() == max);
  REQUIRE(seen.size() == lines.size());
  for (const auto& [q, a] : lines) REQUIRE(seen[fmt::format("Q{}A{}", q, a)] == 1);
}

TEST_CASE("a batch of packed text names its sequences", "[text]") {
  Fixture fixture(Lines{{"1", "a"}, {"2", "b"}, {"3", "c"}});  // 5 tokens each
  fixture.data.sequence = 10;
  fixture.data.packing = true;
  const auto rows = fixture.rows();
  REQUIRE(rows->size() == 2);
  HostBatch batch = rows->allocate(3, false);
  for (std::int64_t r = 0; r < 3; ++r) rows->fill(batch, r, r < 2 ? r : -1);
  rows->finish(batch);
  const auto* starts = batch.starts.const_data_ptr<std::int32_t>();
  REQUIRE(std::vector<std::int32_t>(starts, starts + batch.starts.numel()) ==
          std::vector<std::int32_t>{0, 5, 10, 20, 30, 30, 30});
}

TEST_CASE("random rows are a function of seed, split and index, all labelled", "[text]") {
  DataConfig data;
  data.name = DatasetName::random;
  data.samples = 50;
  data.sequence = 33;
  const auto rows = open_text(data, Split::train, "", 1000, 7, nullptr);
  const auto again = open_text(data, Split::train, "", 1000, 7, nullptr);
  const auto test = open_text(data, Split::test, "", 1000, 7, nullptr);
  REQUIRE(rows->size() == 50);
  REQUIRE(test->size() == 5);
  REQUIRE(rows->vocab_size() == 1000);
  REQUIRE(rows->targets(0) == 33);
  const TextRow first = read(*rows, 0);
  REQUIRE(first == read(*again, 0));
  REQUIRE(first.tokens != read(*rows, 1).tokens);
  REQUIRE(first.tokens != read(*test, 0).tokens);
  double sum = 0;
  for (std::int64_t r = 0; r < 50; ++r) {
    const TextRow row = read(*rows, r);
    REQUIRE(std::ranges::all_of(row.tokens, [](auto t) { return t >= 0 && t < 1000; }));
    for (std::size_t t = 0; t + 1 < 33; ++t) REQUIRE(row.labels[t] == row.tokens[t + 1]);
    REQUIRE(row.weights == std::vector<float>(33, 1));
    REQUIRE(row.length == 33);
    for (const auto token : row.tokens) sum += static_cast<double>(token);
  }
  REQUIRE(sum / (50 * 33) == Approx(499.5).margin(40));  // 5.6 standard deviations
}

TEST_CASE("samples begin as the tokenizer's template says, and a label is never asked of it",
          "[text]") {
  const TempDir folder;
  // As Llama 3's tokenizer.json.
  nlohmann::json file = nlohmann::json::parse(byte_tokenizer({"</s>", "<pad>", "<s>"}));
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
           {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
         {"pair", nlohmann::json::array()},
         {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {258}}, {"tokens", {"<s>"}}}}}}}}}};
  write_text(folder / "tokenizer.json", file.dump());
  write_text(folder / "tokenizer_config.json", R"({"eos_token": "</s>", "pad_token": "<pad>"})");
  write_text(folder / "train.jsonl", R"({"q": "one", "a": "two"})"
                                     "\n");
  write_text(folder / "test.jsonl", R"({"q": "six", "a": "ten"})"
                                    "\n");
  DataConfig data = text_config(DatasetName::jsonl, folder.path(), folder / "cache");
  data.prompt = "{q} ", data.response = "{a}";
  data.sequence = 12;
  const std::string weights = folder.path().string();
  const TextRow row = read(*open_text(data, Split::train, weights, 300, 0, nullptr), 0);
  REQUIRE(row.tokens[0] == 258);
  REQUIRE(bytes_of(row.tokens) == "one two");
  REQUIRE(row.tokens[8] == 256);
  REQUIRE(std::ranges::find(row.labels, 258) == row.labels.end());
  const auto samples = test_questions(data, weights, 1, nullptr);
  REQUIRE(samples.at(0).prompt_tokens.front() == 258);
  REQUIRE(samples.at(0).prompt_tokens.size() == 5);
  REQUIRE(samples.at(0).prompt == "<s>six ");
}

TEST_CASE("text of files goes through the model's tokenizer, and prompts come back", "[text]") {
  const TempDir folder;
  write_text(folder / "tokenizer.json", byte_tokenizer({"</s>", "<pad>"}));
  write_text(folder / "tokenizer_config.json", R"({"eos_token": "</s>", "pad_token": "<pad>"})");
  const std::string context = "Zürich lies on the Limmat.";
  write_text(folder / "train-v1.1.json",
             squad_file(context, {squad_question("River?", "Limmat", 19)}).dump());
  write_text(folder / "dev-v1.1.json", squad_file(context, {squad_question("City?", "Zürich", 0),
                                                            squad_question("River?", "Limmat", 19)})
                                           .dump());
  DataConfig data = text_config(DatasetName::squad, folder.path(), folder / "cache");
  data.sequence = 128;
  data.loss = LossOn::response;
  Heard heard;
  const std::string weights = folder.path().string();
  const auto train = open_text(data, Split::train, weights, 300, 0, &heard);
  REQUIRE(heard.has("tokenised train-v1.1.json: 1 records"));
  REQUIRE(heard.has("data, train: 1 samples"));
  REQUIRE(heard.has("data, train: 46 % of each row of 128 tokens is padding on average"));
  Heard few;
  data.subset = 1000000;
  (void)open_text(data, Split::train, weights, 300, 0, &few);
  REQUIRE(few.has("data, train: 1 samples, fewer than data.subset (1,000,000)"));
  data.subset = 0;
  Heard packed, test;
  data.packing = true;
  (void)open_text(data, Split::train, weights, 300, 0, &packed);
  data.packing = false;
  (void)open_text(data, Split::test, weights, 300, 0, &test);
  for (const Heard* others : {&packed, &test}) REQUIRE_FALSE(others->has("padding"));
  const TextRow row = read(*train, 0);
  REQUIRE(bytes_of(row.tokens) == "Question: River? Context: " + context + " Answer: Limmat");
  std::vector<std::int64_t> labelled;
  for (std::size_t t = 0; t < row.labels.size(); ++t) {
    if (row.weights[t] > 0) labelled.push_back(row.labels[t]);
  }
  REQUIRE(bytes_of(labelled) == " Limmat");
  REQUIRE(labelled.back() == 256);
  REQUIRE(row.tokens.back() == 257);

  const auto samples = test_questions(data, weights, 5, nullptr);
  REQUIRE(samples.size() == 2);
  REQUIRE(samples[0].prompt == "Question: City? Context: " + context + " Answer:");
  REQUIRE(samples[0].response == " Zürich");
  REQUIRE(bytes_of(samples[0].prompt_tokens) == samples[0].prompt);
  REQUIRE(samples[0].answers == std::vector<std::string>{"Zürich", "another answer"});
  REQUIRE(samples[1].answers == std::vector<std::string>{"Limmat", "another answer"});
  REQUIRE(samples[1].rule == AnswerRule::words);
  REQUIRE(samples[0].end_token == 256);

  const TextStatistics statistics = text_statistics(data, Split::test, weights, 0, nullptr);
  REQUIRE(statistics.samples == 2);
  REQUIRE(statistics.targets == std::ssize(std::string(" Zürich Limmat")) + 2);
  REQUIRE(statistics.packed_rows == 2);
  REQUIRE_THROWS_WITH(open_text(data, Split::train, weights, 250, 0, nullptr),
                      Catch::Contains("train-v1.1.json: record 1 has token 256, but the model's "
                                      "vocabulary ends at 249"));
}

}  // namespace
}  // namespace dstrain::text
