#include "engine/models/deit/deit.h"

#include <nlohmann/json.hpp>

#include "engine/models/vit/names.h"

namespace dstrain {
namespace {

constexpr std::string_view kDeitPrefix = "deit.";

VitNames deit_names() {
  VitNames names = vit_names(kDeitPrefix);
  names.first_tokens.push_back(names.stem + ".distillation_token");
  return names;
}

nlohmann::json deit_fields(const VitConfig& config) {
  return {
      {"encoder_stride", config.patch_size},
      {"initializer_range", config.init_std},
      {"qkv_bias", true},
  };
}

void read_deit(ConfigFile& file, VitConfig& config) {
  const nlohmann::json classes = file.json().value("architectures", nlohmann::json());
  config.two_heads = classes.is_array() && !classes.empty() &&
                     classes.front() == "DeiTForImageClassificationWithTeacher";
}

}  // namespace

std::vector<std::string> deit_file_names(const std::string& name) {
  std::vector<std::string> names = names_in_files(name, deit_memory_name(name), kDeitPrefix);
  if (name.starts_with("classifier.")) names.push_back("cls_" + name);
  return names;
}

std::string deit_memory_name(const std::string& name) { return later_vit_name(name, kDeitPrefix); }

const VitKind kDeit = {.model_class = "DeiTForImageClassification",
                       .names = deit_names(),
                       .dropouts = {"attention_probs_dropout_prob", "hidden_dropout_prob"},
                       .fields = deit_fields,
                       .read = read_deit};

}  // namespace dstrain
