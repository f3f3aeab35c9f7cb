#include "engine/bench/input_tables.h"
#include "test/support/catch.h"

namespace dstrain::bench {
namespace {

/// 2 ms of a core for each image, most of it for decoding.
InputBench some_bench() {
  InputBench bench{.recipe = "a",
                   .device = "CPU",
                   .images = 75750,
                   .image_size = 224,
                   .cores = 16,
                   .rates = {{.threads = 1,
                              .loader_per_s = 510,
                              .images_per_s = 500,
                              .read_s = 1e-4,
                              .disk_s = 1e-5,
                              .decode_s = 1.5e-3,
                              .prepare_s = 4e-4,
                              .copy_s = 1e-5,
                              .stored_bytes = 40e3,
                              .decoded_bytes = 562.5e3}}};
  bench.data.name = DatasetName::food101;
  bench.rates.push_back(bench.rates[0]);
  bench.rates[1].threads = 16;
  bench.rates[1].loader_per_s = 7300;
  bench.rates[1].images_per_s = 7200;
  return bench;
}

bool says(const std::vector<std::string>& sentences, std::string_view text) {
  for (const std::string& sentence : sentences) {
    if (sentence.find(text) != std::string::npos) return true;
  }
  return false;
}

TEST_CASE("the input's sentences name the longest stage and what shortens it", "[bench]") {
  InputBench bench = some_bench();
  CHECK(says(input_sentences(bench),
             "7,200 images per second with 16 threads: decoding (75 % of "
             "the loader's time) takes longest"));
  CHECK(says(input_sentences(bench), "data.pack: jpeg decodes images of 256 pixels"));
  bench.data.pack = Pack::jpeg;
  CHECK_FALSE(says(input_sentences(bench), "data.pack: jpeg"));
  CHECK(says(input_sentences(bench), "data.pack: pixels needs no decoding (a file of about 13.8"));
  bench.data.jpeg_scaling = false;
  CHECK(says(input_sentences(bench), "data.jpeg_scaling: true"));
  bench.rates[1].prepare_s = 2e-3;
  CHECK(says(input_sentences(bench), "resizing (56 %"));
  CHECK(says(input_sentences(bench), "To change that: random_resized_crop in data.augment"));
  CHECK_FALSE(says(input_sentences(bench), "fewer operations"));
  bench.data.augment = {Augmentation::random_resized_crop, Augmentation::rand_augment};
  CHECK_FALSE(says(input_sentences(bench), "random_resized_crop"));
  CHECK(says(input_sentences(bench), "To change that: fewer operations in data.augment."));
  bench.data.augment = {Augmentation::random_resized_crop};
  bench.data.interpolation = Interpolation::bicubic;
  CHECK(says(input_sentences(bench), "To change that: data.interpolation: bilinear."));
  bench.data.interpolation = Interpolation::bilinear;
  CHECK(says(input_sentences(bench), "To change that: more threads"));
  bench.rates[1].disk_s = 5e-3;
  CHECK(says(input_sentences(bench), "waiting for the disk"));
  bench.rates[1].copy_s = 1.3e-4;
  CHECK(says(input_sentences(bench), "the training thread limits"));
}

TEST_CASE("the cores that a model needs follow from the rate of all cores", "[bench]") {
  InputBench bench = some_bench();
  CHECK(input_sentences(bench).size() == 1);
  bench.model_rate = 14400;  // times 2 ms
  CHECK(says(input_sentences(bench), "needs 29 of these cores"));
  CHECK(says(input_sentences(bench), "gives it 50 % of that"));
  bench.model_rate = 475;
  CHECK(says(input_sentences(bench), "needs 1 of these cores"));
  CHECK(says(input_sentences(bench), "data.workers: 1 is enough"));
  // More threads than cores say nothing of a core.
  bench.cores = 1;
  bench.rates[1].decode_s = 1;
  CHECK(says(input_sentences(bench), "needs 1 of these cores"));
}

TEST_CASE("threads that do not scale are said", "[bench]") {
  InputBench bench = some_bench();
  CHECK_FALSE(says(input_sentences(bench), "only"));
  bench.rates[1].loader_per_s = 2500;
  CHECK(says(input_sentences(bench), "16 threads are only 4.9 times as fast as 1"));
}

TEST_CASE("table, CSV and JSON of the input hold the same figures", "[bench]") {
  const InputBench bench = some_bench();
  const std::string text = report::document_text(input_document(bench), 120);
  CHECK(text.find("2.000") != std::string::npos);
  const nlohmann::ordered_json json = input_json(bench);
  CHECK(json["rows"][1]["core_s"].get<double>() == bench.rates[1].core_s());
  CHECK(json["rows"][1]["threads"] == 16);
  CHECK(json["model_images_per_s"].is_null());
  CHECK(input_csv(bench) ==
        "threads,loader_per_s,images_per_s,core_s,read_s,disk_s,decode_s,prepare_s,copy_s,stored_"
        "bytes,"
        "decoded_bytes\n"
        "1,510,500,0.002,0.0001,1e-05,0.0015,0.0004,1e-05,40000,562500\n"
        "16,7300,7200,0.002,0.0001,1e-05,0.0015,0.0004,1e-05,40000,562500\n");
}

}  // namespace
}  // namespace dstrain::bench
