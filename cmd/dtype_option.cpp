#include "cmd/dtype_option.h"

namespace dstrain {

void add_dtype_option(CLI::App& app, std::string& word) {
  app.add_option("--dtype", word,
                 "fp32, bf16, fp16, or auto (default): bf16 where the GPU has its products, else "
                 "fp16; fp32 on a CPU.")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16"}));
}

at::ScalarType dtype_of(const std::string& word, const DeviceFacts& device) {
  if (word == "fp32") return at::kFloat;
  if (word == "bf16") return at::kBFloat16;
  if (word == "fp16") return at::kHalf;
  if (!device.is_cuda()) return at::kFloat;
  return device.limits.bf16_products ? at::kBFloat16 : at::kHalf;
}

}  // namespace dstrain
