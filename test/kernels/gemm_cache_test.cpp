#include "engine/kernels/linear/gemm_cache.h"

#include <cublasLt.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/file.h"
#include "engine/base/product_workspace.h"
#include "engine/kernels/linear/shipped_choices.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/support/variable.h"

namespace dstrain {
namespace {

GemmChoice choice_of(std::uint64_t first) { return {.algorithm = {first, 2, 3}, .time_s = 1e-3}; }

TEST_CASE("choices of products come back from their file", "[kernels][gemm_cache]") {
  const test::TempDir folder;
  const auto file = folder.path() / "below" / "gemm.json";
  const std::uint64_t large = std::numeric_limits<std::uint64_t>::max();  // beyond a double
  {
    GemmCache cache(file);
    REQUIRE_FALSE(cache.find("a").has_value());
    REQUIRE(cache.add("a", choice_of(large)) == choice_of(large));
    (void)cache.add("b", choice_of(1));
    REQUIRE(cache.find("a") == choice_of(large));
  }
  const GemmCache cache(file);
  REQUIRE(cache.find("a")->algorithm == choice_of(large).algorithm);
  REQUIRE(cache.find("a")->time_s == Approx(1e-3));
  REQUIRE(cache.find("b").has_value());
}

TEST_CASE("the first choice of all processes stays, unless it is replaced",
          "[kernels][gemm_cache]") {
  const test::TempDir folder;
  const auto file = folder.path() / "gemm.json";
  GemmCache one(file), two(file);  // both saw an empty file
  REQUIRE(one.add("a", choice_of(1)) == choice_of(1));
  REQUIRE(two.add("a", choice_of(2)).algorithm == choice_of(1).algorithm);
  (void)two.add("b", choice_of(3));
  REQUIRE(GemmCache(file).find("b").has_value());
  two.replace("a", choice_of(4));
  REQUIRE(two.find("a")->algorithm == choice_of(4).algorithm);
  REQUIRE(GemmCache(file).find("a")->algorithm == choice_of(4).algorithm);
}

TEST_CASE("choices that dstrain was built with hold where the file has none",
          "[kernels][gemm_cache]") {
  const test::TempDir folder;
  const auto file = folder.path() / "gemm.json";
  (void)GemmCache(file).add("a", choice_of(1));
  (void)GemmCache(file).add("b", choice_of(2));
  const std::string shipped = read_file(file);
  const auto own = folder.path() / "own.json";
  GemmCache cache(own, shipped);
  CHECK(cache.find("a")->algorithm == choice_of(1).algorithm);
  cache.replace("a", choice_of(3));  // it did not work here
  CHECK(cache.find("a") == choice_of(3));
  const GemmCache next(own, shipped);
  CHECK(next.find("a")->algorithm == choice_of(3).algorithm);
  CHECK(next.find("b")->algorithm == choice_of(2).algorithm);
  CHECK_FALSE(GemmCache(own, "{\"format\": 1, \"prod").find("b").has_value());
  // Those of an H100, for cuBLASLt 13.1: a product of Qwen2.5-3B.
  const GemmCache h100({}, shipped_choices(gemm_cache_name("NVIDIA H100 80GB HBM3", 130100)));
  CHECK(h100.find("16384 x 2048 x 2048, a BFloat16/2048, b BFloat16/2048T, out BFloat16/2048, "
                  "align 16")
            .has_value());
  CHECK(shipped_choices("gemm-another-gpu-1.json").empty());
}

TEST_CASE("the parts that shipped choices add up fit the workspace of products",
          "[kernels][gemm_cache]") {
  const auto gpu = GENERATE(as<std::string>{}, "NVIDIA H100 80GB HBM3", "NVIDIA H200");
  CAPTURE(gpu);
  const auto products =
      nlohmann::json::parse(shipped_choices(gemm_cache_name(gpu, 130100)))["products"];
  int divided = 0;
  for (const auto& [key, entry] : products.items()) {
    CAPTURE(key);
    const auto words = entry["algorithm"].get<std::array<std::uint64_t, 8>>();
    cublasLtMatmulAlgo_t algorithm;
    static_assert(sizeof(algorithm.data) == sizeof(words));
    std::memcpy(algorithm.data, words.data(), sizeof(words));
    std::int32_t parts = 0;
    std::size_t written = 0;
    REQUIRE(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                 &parts, sizeof(parts),
                                                 &written) == CUBLAS_STATUS_SUCCESS);
    if (parts <= 1) continue;
    ++divided;
    long long rows = 0, columns = 0;
    REQUIRE(std::sscanf(key.c_str(), "%lld x %lld", &rows, &columns) == 2);
    CHECK(parts * rows * columns * 4 <= kProductWorkspace);  // each in fp32
  }
  CHECK(divided > 0);
}

TEST_CASE("processes that add at once lose nothing", "[kernels][gemm_cache]") {
  const test::TempDir folder;
  const auto file = folder.path() / "gemm.json";
  constexpr int kProcesses = 4, kEach = 8;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = ::fork();
    if (child == 0) {
      GemmCache cache(file);
      for (int i = 0; i < kEach; ++i)
        (void)cache.add(fmt::format("{} {}", process, i), choice_of(1));
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
  }
  const GemmCache cache(file);
  for (int process = 0; process < kProcesses; ++process) {
    for (int i = 0; i < kEach; ++i) REQUIRE(cache.find(fmt::format("{} {}", process, i)));
  }
}

TEST_CASE("a broken file of choices counts as empty and is written anew", "[kernels][gemm_cache]") {
  const std::string broken = GENERATE(
      "", "{", "[]", "null", R"({"format": 2, "products": {}})", R"({"format": 1})",
      R"({"format": 1, "products": []})",
      R"({"format": 1, "products": {"a": {"algorithm": [1, 2], "time_us": 1}}})",
      R"({"format": 1, "products": {"a": {"algorithm": [1,2,3,4,5,6,7,-8], "time_us": 1}}})",
      R"({"format": 1, "products": {"a": {"algorithm": [1,2,3,4,5,6,7,8], "time_us": "x"}}})",
      R"({"format": 1, "products": {"a": 5}})");
  CAPTURE(broken);
  const test::TempDir folder;
  const auto file = folder.path() / "gemm.json";
  std::ofstream(file) << broken;
  GemmCache cache(file);
  REQUIRE_FALSE(cache.find("a").has_value());
  (void)cache.add("a", choice_of(1));
  REQUIRE(GemmCache(file).find("a").has_value());
}

TEST_CASE("where no file can be written, choices are kept in memory", "[kernels][gemm_cache]") {
  const test::TempDir folder;
  std::ofstream(folder.path() / "not_a_folder") << "x";
  for (const auto& file : {std::filesystem::path(), folder.path() / "not_a_folder" / "gemm.json"}) {
    GemmCache cache(file);
    REQUIRE(cache.add("a", choice_of(1)) == choice_of(1));
    REQUIRE(cache.find("a") == choice_of(1));
    cache.replace("a", choice_of(2));
    REQUIRE(cache.find("a") == choice_of(2));
  }
}

TEST_CASE("the file of choices is named by GPU and version", "[kernels][gemm_cache]") {
  const test::Variable home("HOME", "/h");
  {
    const test::Variable cache("DSTRAIN_CACHE", "/c");
    REQUIRE(gemm_cache_file("NVIDIA H200", 130100) == "/c/gemm-nvidia-h200-130100.json");
  }
  const test::Variable cache("DSTRAIN_CACHE", "");
  REQUIRE(gemm_cache_file("a/b", 1) == "/h/.cache/dstrain/gemm-a-b-1.json");
  const test::Variable no_home("HOME", "");
  REQUIRE(gemm_cache_file("a", 1).empty());
}

TEST_CASE("each field of a product's key changes its text", "[kernels][gemm_cache]") {
  const GemmKey key{.m = 1, .n = 2, .k = 3, .a_stride = 4, .b_stride = 5, .out_stride = 6};
  std::vector<GemmKey> keys(13, key);
  keys[1].m = keys[2].n = keys[3].k = 9;
  keys[4].a_stride = keys[5].b_stride = keys[6].out_stride = 9;
  keys[7].a_transposed = keys[8].b_transposed = true;
  keys[9].out_type = at::kBFloat16;
  keys[10].bias = keys[11].row_sums = true;
  keys[12].alignment = 2;
  std::set<std::string> texts;
  for (const GemmKey& each : keys) texts.insert(each.text());
  REQUIRE(texts.size() == keys.size());
  REQUIRE(GemmKey{.m = 16384,
                  .n = 2048,
                  .k = 512,
                  .a_stride = 512,
                  .b_stride = 512,
                  .out_stride = 2048,
                  .b_transposed = true,
                  .a_type = at::kBFloat16,
                  .b_type = at::kBFloat16,
                  .out_type = at::kFloat,
                  .bias = true}
              .text() ==
          "16384 x 2048 x 512, a BFloat16/512, b BFloat16/512T, out Float/2048, align 16, bias");
}

}  // namespace
}  // namespace dstrain
