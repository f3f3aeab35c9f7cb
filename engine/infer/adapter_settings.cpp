#include "engine/infer/adapter_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/printable.h"
#include "engine/models/language_head.h"
#include "engine/weights/safetensors.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBefore = "base_model.model.", kMatrix = ".lora_A.weight";

fs::path config_file(const fs::path& folder) { return folder / "adapter_config.json"; }

/// What the file of tensors has: maps with adapters, and modules that were trained in full.
struct Trained {
  std::vector<std::string> maps, modules;
};

Trained trained_of(const fs::path& folder) {
  const fs::path file = folder / "adapter_model.safetensors";
  if (!path_exists(file))
    throw Error(ErrorKind::data, fmt::format("{} is not there", file.string()),
                path_exists(folder / "adapter_model.bin")
                    ? "adapter_model.bin is of an earlier PEFT: load it there and save it anew"
                    : "--adapter takes a folder that save_pretrained of PEFT wrote");
  const SafetensorsFile tensors(file);
  Trained trained;
  std::set<std::string> modules;
  for (const auto& [name, entry] : tensors.entries()) {
    if (!name.starts_with(kBefore)) continue;
    const std::string bare = name.substr(kBefore.size());
    if (bare.ends_with(kMatrix))
      trained.maps.push_back(bare.substr(0, bare.size() - kMatrix.size()));
    else if (bare.find(".lora_") == std::string::npos)
      modules.insert(bare.substr(0, bare.rfind('.')));
  }
  if (trained.maps.empty())
    throw Error(ErrorKind::data,
                fmt::format("{} has no matrix of an adapter, a tensor {}NAME{}", file.string(),
                            kBefore, kMatrix),
                "--adapter takes LoRA adapters");
  trained.modules.assign(modules.begin(), modules.end());
  return trained;
}

/// modules_to_save means modules whose names end so; none of these may lack its tensors.
void require_saved(const nlohmann::json& names, const std::vector<std::string>& modules,
                   const fs::path& folder) {
  const std::string file = config_file(folder).string();
  if (names.is_null()) return;
  if (!names.is_array() ||
      !std::ranges::all_of(names, [](const nlohmann::json& name) { return name.is_string(); }))
    throw Error(ErrorKind::data, fmt::format("{}: modules_to_save is {}", file, shown_json(names)),
                "a list of names of modules is supported");
  for (const nlohmann::json& name : names) {
    const auto& ending = name.get_ref<const std::string&>();
    if (std::ranges::none_of(modules,
                             [&](const std::string& one) { return one.ends_with(ending); }))
      throw Error(ErrorKind::data,
                  fmt::format("{}: modules_to_save has '{}', and no tensor of it is in "
                              "adapter_model.safetensors",
                              file, shown(ending)),
                  "save the adapter anew");
  }
}

/// The keys of recipes are those of the adapter's file here.
std::string with_names_of_peft(std::string text) {
  for (const auto& [ours, theirs] :
       {std::pair<std::string_view, std::string_view>("lora.targets", "target_modules"),
        {"lora.also_train", "modules_to_save"}}) {
    for (std::size_t at = 0; (at = text.find(ours)) != std::string::npos;)
      text.replace(at, ours.size(), theirs);
  }
  return text;
}

}  // namespace

LoraConfig adapter_settings(const fs::path& folder, const Model& model) {
  const fs::path file = config_file(folder);
  if (path_kind(file.string()) != PathKind::file)
    throw Error(ErrorKind::usage, fmt::format("{} has no adapter_config.json", folder.string()),
                "--adapter takes the folder of a PEFT adapter, as `dstrain checkpoint export` or "
                "save_pretrained writes it");
  const nlohmann::json json = parse_json(read_file(file), file.string());
  const auto value = [&](const char* key) {
    return json.is_object() ? json.value(key, nlohmann::json()) : nlohmann::json();
  };
  if (value("peft_type") != "LORA")
    throw Error(ErrorKind::data,
                fmt::format("{}: peft_type is {}", file.string(), shown_json(value("peft_type"))),
                "adapters of kind \"LORA\" are supported");
  if (!value("r").is_number_integer() || !value("lora_alpha").is_number())
    throw Error(ErrorKind::data, fmt::format("{}: r and lora_alpha are no numbers", file.string()),
                "LoRA has a rank r and a factor lora_alpha");
  LoraConfig config;
  config.rank = value("r").get<int>();
  config.alpha = value("lora_alpha").get<double>();
  config.rslora = value("use_rslora") == true;
  Trained trained = trained_of(folder);
  require_saved(value("modules_to_save"), trained.modules, folder);
  config.targets = std::move(trained.maps);
  config.also_train = std::move(trained.modules);
  if (const Parameter* table = tied_table(model)) {
    const std::string& embedding = table->parts.front().name;
    const std::string head(kLanguageHeadWeight);
    std::ranges::replace(config.also_train, head.substr(0, head.rfind('.')),
                         embedding.substr(0, embedding.rfind('.')));
  }
  return config;
}

void read_adapter(const fs::path& folder, const std::function<void()>& open) {
  try {
    open();
  } catch (const Error& error) {
    const std::string file = config_file(folder).string();
    const nlohmann::json json = parse_json(read_file(config_file(folder)), file);
    const auto base = json.find("base_model_name_or_path");
    const bool named = base != json.end() && base->is_string() && *base != "";
    std::string what = with_names_of_peft(error.what());
    if (!what.starts_with(folder.string())) what = fmt::format("{}: {}", file, what);
    throw Error(ErrorKind::data, what,
                named ? fmt::format("the adapter was made for {}", shown_json(*base))
                      : "give the model that the adapter was made for");
  }
}

}  // namespace dstrain
