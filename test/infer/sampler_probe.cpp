#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "engine/infer/sampler.h"
#include "engine/weights/safetensors.h"

/// sampler_probe FILE TEMPERATURE TOP_K TOP_P MIN_P: FILE has logits [rows, vocabulary]; prints for
/// each row the tokens that may come, in ascending order.
int main(int argc, char** argv) {
  using namespace dstrain;
  if (argc != 6) return 64;
  const SafetensorsFile file(argv[1]);
  const at::Tensor logits = at::empty(file.entries().at("logits").shape, at::kFloat);
  file.read("logits", 0,
            {logits.mutable_data_ptr<float>(), static_cast<std::size_t>(logits.numel())});
  const SortedScores allowed = allowed_scores(logits, {.temperature = std::atof(argv[2]),
                                                       .top_k = std::atoi(argv[3]),
                                                       .top_p = std::atof(argv[4]),
                                                       .min_p = std::atof(argv[5])});
  for (std::int64_t row = 0; row < logits.size(0); ++row) {
    const at::Tensor kept = allowed.tokens[row].masked_select(allowed.scores[row].isfinite());
    const at::Tensor tokens = std::get<0>(kept.sort());
    for (std::int64_t i = 0; i < tokens.numel(); ++i)
      fmt::print("{}{}", i > 0 ? " " : "", tokens.const_data_ptr<std::int64_t>()[i]);
    fmt::print("\n");
  }
  return 0;
}
