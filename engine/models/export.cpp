#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/models/parts.h"
#include "engine/models/weights.h"

namespace dstrain {
namespace {

const char* torch_name(DType dtype) {
  using enum DType;
  switch (dtype) {
    case f32:
      return "float32";
    case f16:
      return "float16";
    case bf16:
      return "bfloat16";
  }
  return "";
}

}  // namespace

void export_weights(const std::filesystem::path& folder, Model& model,
                    const std::map<std::string, std::vector<float>>& tensors, DType dtype) {
  std::vector<SafetensorsTensor> list;
  for (const auto& block : model.blocks) {
    for (const Parameter* parameter : block->parameters()) {
      for (const NamedShape& part : parameter->parts) {
        const auto found = tensors.find(part.name);
        DSTRAIN_CHECK(found != tensors.end(), fmt::format("export lacks tensor '{}'", part.name));
        DSTRAIN_CHECK(
            static_cast<std::int64_t>(found->second.size()) == num_elements(part),
            fmt::format("export has {} values for tensor '{}'", found->second.size(), part.name));
        list.push_back(
            {.name = part.name, .shape = part.shape, .dtype = dtype, .values = found->second});
      }
    }
  }
  DSTRAIN_CHECK(list.size() == tensors.size(), "export has tensors that the model lacks");

  nlohmann::json config = nlohmann::json::parse(model.config_json);
  // transformers 5 reads the first, transformers 4 the second.
  config["dtype"] = torch_name(dtype);
  config["torch_dtype"] = torch_name(dtype);
  std::filesystem::create_directories(folder);
  // Readers of transformers 4 refuse a file that does not say who wrote it.
  write_safetensors(folder / "model.safetensors", list, {{"format", "pt"}});
  write_file_atomically(folder / "config.json", config.dump(2) + "\n");
}

}  // namespace dstrain
