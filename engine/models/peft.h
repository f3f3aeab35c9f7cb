#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "engine/models/model.h"
#include "engine/models/weights.h"

/// Folders of the PEFT library (github.com/huggingface/peft, "PEFT checkpoint format"):
/// adapter_config.json, and adapter_model.safetensors with the adapters' matrices and the modules
/// that were trained in full.
namespace dstrain {

/// The tensors in `folder`, which PEFT or export_adapter wrote, and for all others `base`.
/// Error{data} lists what of the adapter does not fit the model that add_adapters made: rank,
/// alpha, kind of adapter, tensors missing, misshapen or not trained here; embedding and head that
/// are not one where the model's are.
[[nodiscard]] std::unique_ptr<WeightSource> open_adapter(const std::filesystem::path& folder,
                                                         const Model& model,
                                                         const LoraConfig& config,
                                                         std::unique_ptr<WeightSource> base);

struct AdapterExport {
  std::string base;  ///< base_model_name_or_path; empty: unknown
  DType dtype = DType::f32;
};
/// Writes what of `model` is trained, for PeftModel.from_pretrained of transformers 5. A module of
/// which only a part is trained is written whole, a table that is embedding and head as both.
void export_adapter(const std::filesystem::path& folder, const Model& model,
                    const LoraConfig& config, const TensorReader& read,
                    const AdapterExport& options);

/// `read` for the model without adapters: with each adapter's product added to its matrix.
[[nodiscard]] TensorReader merged(const Model& model, const LoraConfig& config, TensorReader read);

}  // namespace dstrain
