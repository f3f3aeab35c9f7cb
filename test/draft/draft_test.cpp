#include "engine/draft/draft.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "engine/recipe/load.h"

namespace dstrain::draft {
namespace {

Facts text_facts() {
  Facts facts{.model = {.called = "qwen2.5-0.5b",
                        .name = "qwen2.5-0.5b",
                        .weights = "hf://Qwen/Qwen2.5-0.5B",
                        .family = family_of("qwen2.5-0.5b"),
                        .positions = 32768},
              .data = {.name = DatasetName::chat,
                       .path = "data/chats",
                       .form = "train.jsonl has the fields messages"}};
  facts.lengths = {.looked = 1000,
                   .p50 = 210,
                   .p95 = 700,
                   .longest = 3000,
                   .mean = 256,
                   .samples = 8047,
                   .about = true};
  return facts;
}

/// The line of a key; an empty one where there is none.
DraftLine line_of(const std::vector<DraftLine>& lines, const std::string& key) {
  const auto found = std::ranges::find(lines, key, &DraftLine::key);
  return found == lines.end() ? DraftLine{} : *found;
}

/// The recipe reads without a mistake or a warning.
void check_reads(const std::vector<DraftLine>& lines) {
  const std::string text = draft_yaml(lines, "made by a test");
  CAPTURE(text);
  CHECK(parse_recipe(text, "draft.yaml").warnings.empty());
}

TEST_CASE("a draft of text takes its length from the samples", "[draft]") {
  Facts facts = text_facts();
  const auto lines = draft_recipe(facts, {.micro = 4, .why_micro = "it fits"});
  CHECK(line_of(lines, "data.sequence").value == "768");
  CHECK(line_of(lines, "data.sequence").reason ==
        "95 % of 1,000 samples have at most 700 tokens, the longest 3000");
  CHECK(line_of(lines, "data.path").reason == "about 8,040 records for training");
  CHECK(line_of(lines, "data.loss").value == "assistant");
  CHECK(line_of(lines, "data.test_share").value == "0.05");
  CHECK(line_of(lines, "batch.global").value == "32");  // of 2,683 rows
  CHECK(line_of(lines, "data.packing").value == "true");
  CHECK(line_of(lines, "run.epochs").value == "3");
  CHECK(line_of(lines, "run.best").value == "{ metric: loss }");
  check_reads(lines);
  // Rotary positions end there.
  facts.model.positions = 512;
  CHECK(line_of(draft_recipe(facts, {}), "data.sequence").value == "512");
  CHECK(line_of(draft_recipe(facts, {}), "data.sequence").reason.find("512 positions") !=
        std::string::npos);
  // Without a tokenizer.
  facts.lengths = {};
  CHECK(line_of(draft_recipe(facts, {}), "data.sequence").value == "512");
  CHECK(line_of(draft_recipe(facts, {}), "data.sequence").reason.starts_with("a guess"));
}

TEST_CASE("a draft of few samples holds none out and takes small batches", "[draft]") {
  Facts facts = text_facts();
  facts.lengths = {.looked = 30, .p50 = 40, .p95 = 60, .longest = 61, .mean = 40, .samples = 30};
  auto lines = draft_recipe(facts, {});
  CHECK(line_of(lines, "data.test_share").value == "0");
  CHECK(line_of(lines, "run.evaluate").value == "never");
  CHECK(line_of(lines, "run.best").key.empty());
  CHECK(line_of(lines, "batch.global").value == "8");
  CHECK(line_of(lines, "data.packing").value == "false");
  check_reads(lines);
  facts.data.own_test = true;
  lines = draft_recipe(facts, {});
  CHECK(line_of(lines, "run.evaluate").value == "epoch");
  check_reads(lines);
}

TEST_CASE("a draft's learning rate follows what is trained", "[draft]") {
  Facts facts = text_facts();
  const auto rate = [&](const Choices& choices) {
    return line_of(draft_recipe(facts, choices), "optimizer.lr").value;
  };
  CHECK(rate({.parameters = 494'000'000}) == "2.0e-5");
  CHECK(rate({.parameters = 3'100'000'000}) == "1.0e-5");
  CHECK(rate({.adapters = true, .parameters = 494'000'000}) == "2.0e-4");
  CHECK(rate({.adapters = true, .parameters = 7'600'000'000}) == "1.0e-4");
  const auto lines = draft_recipe(facts, {.adapters = true, .why_adapters = "it fits"});
  CHECK(line_of(lines, "lora.targets").value == "[all-linear]");
  CHECK(line_of(lines, "lora.rank").reason == "it fits");
  check_reads(lines);
}

TEST_CASE("drafts of all models of images read without a warning", "[draft]") {
  for (const ModelFamily& family : model_families()) {
    if (family.modality != Modality::images || family.name == "ensemble") continue;
    const PublishedModel& model = family.published.front();
    for (const std::int64_t samples : {100, 6001, 50000}) {
      const bool clips = family.name == "cnn_lstm";
      const Facts facts{.model = {.called = std::string(model.name),
                                  .name = std::string(model.name),
                                  .family = &family},
                        .data = {.name = clips ? DatasetName::frames : DatasetName::images,
                                 .path = "data/images",
                                 .form = "a folder for each class",
                                 .samples = samples,
                                 .own_test = true,
                                 .classes = 4,
                                 .class_names = {"cat", "dog", "owl", "a # b\n"}}};
      const auto lines = draft_recipe(facts, {.micro = 16});
      CAPTURE(model.name, samples);
      CHECK(line_of(lines, "model.classes").reason == "of the data: cat, dog, owl and 1 more");
      CHECK(line_of(lines, "run.best").value == "{ metric: accuracy }");
      check_reads(lines);
    }
  }
}

TEST_CASE("a draft drops a last step that is too small for batch norm", "[draft]") {
  Facts facts{.model = {.called = "resnet50", .name = "resnet50", .family = family_of("resnet50")},
              .data = {.name = DatasetName::images,
                       .path = "data",
                       .form = "",
                       .samples = 64 * 20 + 5,
                       .own_test = true,
                       .classes = 3}};
  CHECK(line_of(draft_recipe(facts, {.micro = 16}), "data.last").value == "drop");
  facts.data.samples = 64 * 20 + 40;
  CHECK(line_of(draft_recipe(facts, {.micro = 16}), "data.last").key.empty());
  CHECK(line_of(draft_recipe(facts, {.ranks = 4, .micro = 16}), "data.last").value == "drop");
  facts.data.samples = 54;
  CHECK(line_of(draft_recipe(facts, {.micro = 16}), "batch.global").value == "16");
}

TEST_CASE("texts of a draft read back as they are", "[draft]") {
  for (const std::string text : {"data/chats", "~/a b", "yes", "a: b # c", "cost $5 ${HOME}",
                                 "\"q\" \\ tab\t end\n", "{\"x\"}", "1/2", "-x/y", "caf\u00e9"}) {
    Facts facts = text_facts();
    facts.data = {.name = DatasetName::jsonl,
                  .path = "data/answers",
                  .form = "x",
                  .question = "q",
                  .answer = "a",
                  .prompt = text + "{q}",
                  .response = "{a}"};
    const std::string yaml = draft_yaml(draft_recipe(facts, {}), text);
    CAPTURE(yaml);
    if (text.starts_with('{')) {  // braces are of the template
      facts.data.prompt = "{{\"x\"}}{q}";
      CHECK(parse_recipe(draft_yaml(draft_recipe(facts, {}), text), "x").recipe.data.prompt ==
            facts.data.prompt);
      continue;
    }
    if (text.find("${") != std::string::npos) continue;
    CHECK(parse_recipe(yaml, "draft.yaml").recipe.data.prompt == text + "{q}");
  }
  CHECK(yaml_text("data/chats") == "data/chats");
  CHECK(yaml_text("${HOME}") == "\"$${HOME}\"");
}

}  // namespace
}  // namespace dstrain::draft
