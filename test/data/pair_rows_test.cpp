#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/loader.h"
#include "engine/data/text_dataset.h"
#include "test/data/text_files.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

std::vector<float> numbers(const at::Tensor& tensor) {
  const auto* values = tensor.const_data_ptr<float>();
  return {values, values + tensor.numel()};
}

/// Pairs of texts, each with one token per byte.
class Pairs {
 public:
  explicit Pairs(const std::string& lines) {
    test::write_text(folder_ / "train.jsonl", lines);
    test::write_text(folder_ / "tokenizer.json", test::byte_tokenizer({"<|endoftext|>"}));
    data = test::text_config(DatasetName::chat, folder_ / "train.jsonl", folder_ / "cache");
    data.tokenizer = folder_.path().string();
    data.pairs = true;
    data.test_share = 0;
    data.sequence = 12;
  }
  [[nodiscard]] std::shared_ptr<TextDataset> rows(test::Heard* heard = nullptr) const {
    return open_text(data, Split::train, "", 300, 0, heard);
  }
  DataConfig data;

 private:
  test::TempDir folder_;
};

const std::string kLines =
    "{\"prompt\": \"ab\", \"chosen\": \"c\", \"rejected\": \"de\"}\n"
    "{\"prompt\": \"a\", \"chosen\": \"12345678\", \"rejected\": \"8\"}\n"
    "{\"prompt\": \"\", \"chosen\": \"x\", \"rejected\": \"y\"}\n";

TEST_CASE("a pair is a sample of two sequences, whose answers are labels of either sign",
          "[text]") {
  const Pairs pairs(kLines);
  test::Heard heard;
  const std::shared_ptr<TextDataset> rows = pairs.rows(&heard);
  REQUIRE(heard.has("2 pairs of answers, 1 left out"));
  REQUIRE(heard.has("its two answers with their prompts have 13 tokens, data.sequence is 12"));
  REQUIRE(rows->size() == 2);
  REQUIRE((rows->has_pairs() && rows->max_packed() == 2 && rows->targets(0) == 1));
  rows->take_references({-1, -2, -3, -4});

  const auto loader =
      make_loader(rows, {.global_batch = 3, .micro_batch = 3, .shuffle = false, .last_step = 1});
  const HostBatch batch = loader->next();  // the last sample only fills up
  const auto* tokens = batch.tokens.const_data_ptr<std::int64_t>();
  CHECK(test::bytes_of({tokens, tokens + 9}) == "abcabde");
  CHECK(
      numbers(batch.weights) ==
      std::vector<float>{0, 1, 1,  0, 0, -1, -1, -1, 0, 0, 0, 0,  // c, end; d, e, end
                         1, 0, -1, 0, 0, 0,  0,  0,  0, 0, 0, 0,  // nothing foretells x, it the end
                         0, 0, 0,  0, 0, 0,  0,  0,  0, 0, 0, 0});
  const auto* starts = batch.starts.const_data_ptr<std::int32_t>();
  CHECK(std::vector<std::int32_t>(starts, starts + batch.starts.numel()) ==
        std::vector<std::int32_t>{0, 4, 12, 14, 24, 36, 36});
  CHECK(numbers(batch.references) == std::vector<float>{-1, -2, -3, -4, 0, 0});
}

TEST_CASE("the key of pairs tells their selection", "[text]") {
  Pairs pairs(kLines);
  const std::string key = pairs.rows()->pairs_key();
  CHECK(pairs.rows()->pairs_key() == key);
  pairs.data.sequence = 13;
  CHECK(pairs.rows()->pairs_key() != key);
  pairs.data.sequence = 11;
  CHECK(pairs.rows()->pairs_key() == key);
  pairs.data.subset = 1;
  CHECK(pairs.rows()->pairs_key() != key);
}

TEST_CASE("a question to pairs is their prompt, and the chosen answer is right", "[text]") {
  Pairs pairs(kLines);
  pairs.data.test_share = 0.9;
  const auto questions = test_questions(pairs.data, "", 0, nullptr);
  REQUIRE(!questions.empty());
  for (const TextQuestion& question : questions)
    CHECK((question.prompt == "ab"  ? question.response == "c"
           : question.prompt == "a" ? question.response == "12345678"
                                    : question.response == "x"));
}

}  // namespace
}  // namespace dstrain
