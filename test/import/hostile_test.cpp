#include <chrono>

#include "test/import/sources.h"
#include "test/support/catch.h"
#include "test/support/hostile_json.h"
#include "test/support/mutate.h"

namespace dstrain {

TEST_CASE("broken JSON is refused with its file and place", "[import][hostile]") {
  for (const test::HostileJson& hostile : test::hostile_json()) {
    CAPTURE(hostile.name);
    for (const char* file : {"ds.json", "args.json"}) {
      const std::string said = test::refusal(test::options_of({{file, hostile.text}}));
      CHECK(said.find(file) != std::string::npos);
    }
  }
}

TEST_CASE("a comment, a doubled key and a value that is no object are named", "[import][hostile]") {
  const auto said = [](const char* text) {
    return test::refusal(test::options_of({{"ds.json", text}}));
  };
  CHECK(said("{\n  \"a\": 1, // one\n}").find("ds.json:2:11: not JSON") != std::string::npos);
  CHECK(said("{\"fp16\": {},\n \"fp16\": {}}").find("ds.json:2:7: the key 'fp16' is there twice") !=
        std::string::npos);
  CHECK(said("[1]").find("holds no object") != std::string::npos);
  CHECK(said("{\"zero_optimization\": true}").find("true is not an object") != std::string::npos);
}

TEST_CASE("numbers without bound end in messages", "[import][hostile]") {
  const auto said = [](const std::string& ds, const std::string& args) {
    return test::refusal(test::options_of({{"ds.json", ds}, {"args.json", args}}));
  };
  for (const char* number : {"1e300", "-1e300", "1e15", "-5", "0.5", "999999999999"}) {
    CAPTURE(number);
    CHECK(said(std::string("{\"train_micro_batch_size_per_gpu\": ") + number + "}", "{}") != "ok");
    CHECK(said("{\"train_micro_batch_size_per_gpu\": \"auto\"}",
               std::string("{\"per_device_train_batch_size\": ") + number + "}") != "ok");
  }
  CHECK(
      said(
          "{\"fp16\": {\"enabled\": true, \"initial_scale_power\": 1e12}, \"train_batch_size\": 8}",
          "{}") != "ok");
}

TEST_CASE("long and deep words give messages of bounded length", "[import][hostile]") {
  const std::string word(100'000, 'x');
  const std::string said =
      test::refusal(test::options_of({{"ds.json", "{\"" + word + "\": \"" + word + "\"}"}}));
  CHECK(said.size() < 2'000);
  importing::ImportOptions options;
  options.command = "deepspeed " + word + " --" + word + " " + word;
  CHECK(test::refusal(options).size() < 2'000);
  options.command = "torchrun 'open";
  CHECK(test::refusal(options).find("without its end") != std::string::npos);
  options.command = "torchrun a.py | tee log";
  CHECK(test::refusal(options).find("needs a shell") != std::string::npos);
}

TEST_CASE("any change of a good file ends in a recipe or a message, soon", "[import][hostile]") {
  const std::string good =
      R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW",
"params": {"lr": 1e-4, "betas": [0.9, 0.95]}}, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2,
"offload_optimizer": {"device": "cpu"}}, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}})";
  const auto start = std::chrono::steady_clock::now();
  int good_ones = 0;
  std::mt19937 random(7);
  for (int count = 0; count < 3000; ++count) {
    importing::ImportOptions options = test::options_of({{"ds.json", test::mutated(good, random)}});
    options.ranks = 8;
    good_ones += test::refusal(options) == "ok" ? 1 : 0;
  }
  CHECK(good_ones > 0);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
}

}  // namespace dstrain
