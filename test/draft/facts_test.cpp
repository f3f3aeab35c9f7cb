#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/base/error.h"
#include "engine/draft/data_facts.h"
#include "engine/draft/model_facts.h"
#include "engine/draft/text_lengths.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace dstrain::draft {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

void put(const fs::path& file, const std::string& content) {
  fs::create_directories(file.parent_path());
  test::spit(file, content);
}

TEST_CASE("a model is a folder, a size or a name of the Hub", "[draft]") {
  CHECK(read_model_word("vit-base").hub->text() == "hf://google/vit-base-patch16-224");
  CHECK(read_model_word("Qwen/Qwen2.5-0.5B").published->name == "qwen2.5-0.5b");
  CHECK(read_model_word("hf://org/own@v1").hub->revision == "v1");
  CHECK(read_model_word("hf://org/own").published == nullptr);
  CHECK_FALSE(read_model_word("resnet50").hub.has_value());  // timm's names are none of the Hub
  CHECK_THROWS_WITH(read_model_word("resnet51"), Contains("is no model"));
  CHECK_THROWS_WITH(read_model_word("hf://datasets/org/own"), Contains("is a data set"));
  CHECK(look_at_model(read_model_word("resnet50"), {}).weights.empty());
  CHECK_FALSE(look_at_model(read_model_word("resnet50"), {}).takes_adapters());
  CHECK(look_at_model(read_model_word("vit-base"), {}).takes_adapters());
  CHECK_THROWS_WITH(look_at_model(read_model_word("org/own"), {}), Contains("config.json"));
}

TEST_CASE("folders that are no models are told apart", "[draft]") {
  const test::TempDir dir;
  const auto look = [&] { return look_at_model(read_model_word(dir.path().string()), dir.path()); };
  CHECK_THROWS_WITH(look(), Contains("has no config.json"));
  put(dir / "adapter_config.json", R"({"base_model_name_or_path": "org/base"})");
  CHECK_THROWS_WITH(look(), Contains("is an adapter, not a model"));
  put(dir / "config.json", R"({"model_type": "t5"})");
  CHECK_THROWS_WITH(look(), Contains("model_type is 't5'"));
  put(dir / "config.json", R"({"model_type": "qwen2", "max_position_embeddings": 77})");
  CHECK_THROWS_AS(look(), Error);  // no weights
  CHECK_THROWS_WITH(read_model_word((dir / "config.json").string()), Contains("is a file"));
}

TEST_CASE("records of text are told by their fields", "[draft]") {
  const test::TempDir dir;
  const auto told = [&](const std::string& name, const std::string& content) {
    put(dir / name, content);
    return look_at_data(dir / name, {});
  };
  CHECK(told("a.jsonl", "{\"messages\": []}\n").name == DatasetName::chat);
  CHECK(told("a.json", " [{\"conversations\": []}]").name == DatasetName::chat);
  CHECK(told("b.jsonl", "\n{\"instruction\": \"\", \"output\": \"\"}").name == DatasetName::chat);
  CHECK(told("c.jsonl", R"({"prompt": "", "response": ""})").name == DatasetName::chat);
  CHECK(told("d.json", R"([{"query": "", "response": "", "original_question": ""}])").name ==
        DatasetName::metamathqa);
  CHECK(told("e.json", R"({"version": "1.1", "data": [{"title": "", "paragraphs": []}]})").name ==
        DatasetName::squad);
  DataFacts own = told("f.jsonl", R"({"id": 1, "context": "", "question": "", "answer": "x"})");
  CHECK(own.name == DatasetName::jsonl);
  CHECK(own.prompt == "Context: {context}\nQuestion: {question}\nAnswer:");
  CHECK(own.response == " {answer}");
  CHECK(own.fields == std::vector<std::string>{"id", "context", "question", "answer"});
  name_fields(own, "context", "question");
  CHECK(own.prompt == "{context}\n");
  CHECK_THROWS_WITH(name_fields(own, "", "text"), Contains("no field 'text'"));
  CHECK(told("g.jsonl", R"({"text": "x", "url": "y"})").prompt.empty());
  CHECK(told("h.jsonl", R"({"one": "x", "two": "y", "three": [1]})").response == "{two}");
  CHECK(told("i.jsonl", R"({"one": "x", "two": "y", "three": 1})").response.empty());
  CHECK_THROWS_WITH(told("j.jsonl", R"({"one": [1]})"), Contains("no field with a text"));
  CHECK_THROWS_WITH(told("k.jsonl", "[]"), Contains("is an empty list"));
  CHECK_THROWS_WITH(told("l.jsonl", "[1]"), Contains("not an object"));
  CHECK_THROWS_WITH(told("m.json", R"([{"one": "x"}])"), Contains("it is no chat"));
  CHECK_THROWS_WITH(told("n.txt", "x"), Contains("no data of a known form"));
  CHECK_THROWS_WITH(told("o.jsonl", "\xff\n"), Contains("record 1"));
}

TEST_CASE("a folder with a training file says whether it has one to test with", "[draft]") {
  const test::TempDir dir;
  put(dir / "train.jsonl", R"({"messages": []})");
  CHECK_FALSE(look_at_data(dir.path(), {}).own_test);
  put(dir / "validation.jsonl", R"({"messages": []})");
  CHECK(look_at_data(dir.path(), {}).own_test);
  const test::TempDir two;
  put(two / "one.jsonl", R"({"messages": []})");
  put(two / "two.jsonl", R"({"messages": []})");
  CHECK_THROWS_WITH(look_at_data(two.path(), {}), Contains("train.jsonl"));
  fs::remove(two / "two.jsonl");
  CHECK(look_at_data(two.path(), {}).path == two.path());
  put(two / "one.jsonl", R"({"question": "a", "answer": "b"})");
  CHECK(look_at_data(two.path(), {}).path == two / "one.jsonl");
}

TEST_CASE("folders of images are told by their files", "[draft]") {
  const test::TempDir dir;
  CHECK_THROWS_WITH(look_at_data(dir.path(), {}), Contains("is empty"));
  put(dir / "a.bmp", "x");
  CHECK_THROWS_WITH(look_at_data(dir.path(), {}), Contains("but 1 .bmp"));
  put(dir / "loose.png", "x");
  CHECK_THROWS_WITH(look_at_data(dir.path(), {}),
                    Contains("holds no folder; it needs one per class"));
  for (const char* file : {"cat/1.png", "cat/2.png", "dog/1.jpg", "dog/2.JPG"})
    put(dir / "train" / file, "x");
  DataFacts facts = look_at_data(dir.path(), {});
  CHECK(facts.path == dir / "train");  // a share of it is for evaluation
  CHECK(facts.classes == 2);
  CHECK(facts.class_names == std::vector<std::string>{"cat", "dog"});
  put(dir / "val/cat/3.png", "x");
  facts = look_at_data(dir.path(), {});
  CHECK(facts.path == dir.path());
  CHECK(facts.samples == 4);
  CHECK(facts.own_test);
  put(dir / "train/owl/readme.txt", "x");
  CHECK_THROWS_WITH(look_at_data(dir.path(), {}), Contains("owl"));
}

TEST_CASE("data has names", "[draft]") {
  CHECK(read_data_word("squad").hub->text() == "hf://datasets/rajpurkar/squad");
  CHECK(read_data_word("meta-math/MetaMathQA").hub->dataset);
  CHECK(read_data_word("org/own").hub->text() == "hf://datasets/org/own");
  CHECK(read_data_word("cifar100").archive != nullptr);
  CHECK(read_data_word("digits").digits);
  CHECK(facts_of_digits().classes == 10);
  CHECK(facts_of_digits().channels == 1);
  CHECK_THROWS_WITH(read_data_word("hf://org/own"), Contains("is a model"));
  CHECK_THROWS_WITH(read_data_word("nowhere"), Contains("there is no data"));
}

}  // namespace
}  // namespace dstrain::draft
