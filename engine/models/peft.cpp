#include "engine/models/peft.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/make_folder.h"
#include "engine/models/adapters.h"
#include "engine/models/family.h"
#include "engine/models/language_head.h"
#include "engine/models/weights.h"
#include "engine/recipe/config_file.h"
#include "engine/weights/misfits.h"
#include "engine/weights/weight_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kWeightsName = "adapter_model.safetensors";
constexpr std::int64_t kChunk = 1 << 20;  ///< elements compared at once
/// PEFT's name of the head's table.
constexpr const char* kHeadInFile = "base_model.model.lm_head.weight";

/// The tensor's name without what PEFT puts before all names.
std::string bare(const std::string& tensor) {
  return is_adapter(tensor) ? tensor.substr(adapter_prefix("").size()) : tensor;
}

/// Names that PEFT's files may have for our `tensor`, an adapter's or a module's.
std::vector<std::string> peft_names(const Family& family, const std::string& tensor) {
  std::vector<std::string> names = family.file_names(bare(tensor));
  for (std::string& name : names) name = adapter_prefix(name);
  return names;
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }
std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

/// What makes an adapter another function than ours. PEFT writes all its options, most of them
/// null, false or empty.
void check_config(const fs::path& path, const nlohmann::json& json, const LoraConfig& config,
                  const Family& family, Problems& problems) {
  const auto value = [&](const char* key) { return json.value(key, nlohmann::json()); };
  const auto problem = [&](const char* key, const std::string& wanted) {
    problems.push_back(
        fmt::format("{}: {} is {}; {}", path.string(), key, shown_json(value(key)), wanted));
  };
  if (value("peft_type") != "LORA") problem("peft_type", "dstrain reads LORA");
  if (value("r") != config.rank)
    problem("r", fmt::format("lora.rank is {}, make them equal", config.rank));
  if (!value("lora_alpha").is_number() || value("lora_alpha").get<double>() != config.alpha)
    problem("lora_alpha", fmt::format("lora.alpha is {:g}, make them equal", config.alpha));
  if (value("use_rslora").is_boolean() && value("use_rslora") != config.rslora)
    problem("use_rslora", fmt::format("lora.rslora is {}, make them equal", config.rslora));
  if (!value("bias").is_null() && value("bias") != "none") problem("bias", "it must be \"none\"");
  for (const char* key :
       {"use_dora", "use_qalora", "use_bdlora", "lora_bias", "rank_pattern", "alpha_pattern",
        "layer_replication", "target_parameters", "trainable_token_indices"}) {
    const nlohmann::json found = value(key);
    if (!found.empty() && found != false) problem(key, "dstrain has no such adapters");
  }
  // It says how the base's files have their matrices; those of adapters are the same either way.
  if (value("fan_in_fan_out") == true && family.transposed.empty())
    problem("fan_in_fan_out",
            fmt::format("files of {} have no transposed matrices", family.recipe().title));
  // These starts change the base as well, which is not written beside the adapter.
  const nlohmann::json init = value("init_lora_weights");
  const auto names = {"gaussian", "eva", "orthogonal"};
  if (init.is_string() && std::ranges::find(names, init) == names.end())
    problem("init_lora_weights", "convert the adapter as PEFT's documentation of it says");
}

class AdapterFile final : public WeightSource {
 public:
  AdapterFile(const fs::path& folder, const Model& model, const LoraConfig& config,
              std::unique_ptr<WeightSource> base)
      : base_(std::move(base)),
        file_(folder / kWeightsName),
        family_(*model.family),
        table_(tied_table(model)) {
    const std::string hint =
        "lora.rank, alpha, targets and also_train must be those of the adapter in "
        "lora.weights, and the model the one it was made for";
    Problems problems;
    const nlohmann::json json = read_json_object(folder / kConfigName);
    check_config(folder / kConfigName, json, config, family_, problems);
    // What is wrong with the tensors mostly follows from these.
    raise_problems(ErrorKind::data, problems, hint);
    Misfits misfits;
    for (const Parameter* parameter : all_parameters(model)) {
      for (const Piece& part : parameter->parts) {
        if (parameter->trainable) place(part, misfits);
      }
    }
    refuse_unknown(misfits);
    misfits.throw_if_any(hint);
    if (table_ != nullptr && table_->trainable) require_one_table();
  }

  void read_whole(const Parameter& parameter, const Piece& part, std::int64_t begin,
                  std::span<float> out) const override {
    const auto found = places_.find(part.name);
    if (found == places_.end()) return base_->read_whole(parameter, part, begin, out);
    const auto read = [&](std::int64_t from, std::span<float> into) {
      file_.read(found->second, from, into);
    };
    const std::optional<TransposedMatrix> turned = family_.turned_in_file(part.name, part.shape);
    if (turned) return turned->read(begin, out, read);
    read(begin, out);
  }

  [[nodiscard]] std::optional<Nf4Tensor> read_nf4(const Piece& part) const override {
    return base_->read_nf4(part);
  }

  [[nodiscard]] bool read_state(const BlockState& state, std::span<float> out) const override {
    return base_->read_state(state, out);
  }

 private:
  void place(const Piece& part, Misfits& misfits) {
    const std::optional<TransposedMatrix> turned = family_.turned_in_file(part.name, part.shape);
    const std::vector<std::int64_t> shape = turned ? turned->shape_in_file() : part.shape;
    std::vector<std::string> names = peft_names(family_, part.name);
    if (is_table(part)) names.push_back(kHeadInFile);
    const auto found = std::ranges::find_if(
        names, [&](const std::string& name) { return file_.entries().contains(name); });
    if (found == names.end()) {
      misfits.add(Misfits::Way::missing,
                  fmt::format("{}: no tensor '{}' [{}]", file_.path().string(),
                              adapter_prefix(family_.memory_name(bare(part.name))),
                              fmt::join(shape, ", ")));
      return;
    }
    const SafetensorsFile::Entry& entry = file_.entries().at(*found);
    if (entry.shape != shape) {
      misfits.add(
          Misfits::Way::shape,
          fmt::format("{}: tensor '{}' is [{}], the model needs [{}]", file_.path().string(),
                      *found, fmt::join(entry.shape, ", "), fmt::join(part.shape, ", ")));
    } else if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") {
      misfits.add(Misfits::Way::dtype,
                  fmt::format("{}: tensor '{}' is {}; dstrain reads F32, F16 and BF16",
                              file_.path().string(), *found, entry.dtype));
    }
    places_.emplace(part.name, *found);
  }

  [[nodiscard]] bool is_table(const Piece& part) const {
    return table_ != nullptr && part.name == table_->parts.front().name;
  }

  /// PEFT trains a copy of each module: of a tied model that is a table and a head of their own,
  /// and one that it does not train is the base's. Where it keeps them one, both are in the file.
  void require_one_table() const {
    const Piece& part = table_->parts.front();
    const std::string& found = places_.at(part.name);
    const bool has_head = file_.entries().contains(kHeadInFile);
    const bool both = has_head && found != kHeadInFile;
    if (both && file_.entries().at(kHeadInFile).shape != part.shape) refuse_two_tables(found, "");
    std::vector<float> values, others;
    for (std::int64_t begin = 0; begin < num_elements(part.shape); begin += kChunk) {
      const auto count =
          static_cast<std::size_t>(std::min(kChunk, num_elements(part.shape) - begin));
      values.resize(count);
      others.resize(count);
      file_.read(found, begin, values);
      if (both) {
        file_.read(kHeadInFile, begin, others);
      } else {
        base_->read_whole(*table_, part, begin, others);
      }
      const auto [value, other] = std::ranges::mismatch(values, others);
      if (value == values.end()) continue;
      refuse_two_tables(found, fmt::format(" ({} and {} at element {})", *value, *other,
                                           begin + (value - values.begin())));
    }
  }

  [[noreturn]] void refuse_two_tables(const std::string& found, const std::string& where) const {
    std::string other = fmt::format("'{}'", kHeadInFile);
    if (found == kHeadInFile) {
      other = "the base's embedding, which PEFT keeps";
    } else if (!file_.entries().contains(kHeadInFile)) {
      other = "the base's head, which PEFT keeps";
    }
    throw Error(ErrorKind::data,
                fmt::format("{}: '{}' is not {}{}, but the model has one tensor for embedding and "
                            "head (tie_word_embeddings)",
                            file_.path().string(), found, other, where),
                "PEFT trained them apart: merge the adapter there into a model without "
                "tie_word_embeddings, or train it with ensure_weight_tying");
  }

  void refuse_unknown(Misfits& misfits) const {
    std::set<std::string> known;
    for (const auto& [part, name] : places_) known.insert(name);
    if (table_ != nullptr && places_.contains(table_->parts.front().name))
      known.insert(kHeadInFile);
    for (const auto& [name, entry] : file_.entries()) {
      if (known.contains(name)) continue;
      misfits.add(Misfits::Way::unknown,
                  fmt::format("{}: tensor '{}' is not trained here", file_.path().string(), name));
    }
  }

  std::unique_ptr<WeightSource> base_;
  SafetensorsFile file_;
  const Family& family_;
  const Parameter* table_;                     ///< of embedding and head, where they are one
  std::map<std::string, std::string> places_;  ///< by part name
};

/// The last parts of the adapted maps' names where these mean them and no others, else all of each
/// name; as transformers has them in memory.
std::set<std::string> target_modules(const Model& model) {
  std::set<std::string> names, last_parts;
  for (const AdaptedMap& map : adapted_maps(model))
    names.insert(model.family->memory_name(map.name()));
  for (const std::string& name : names) last_parts.insert(last_part(name));
  for (const auto& block : model.blocks) {
    for (Linear* linear : block->linears()) {
      for (const LinearPart& part : linear->parts()) {
        const std::string name = model.family->memory_name(part.name);
        if (last_parts.contains(last_part(name)) && !names.contains(name)) return names;
      }
    }
  }
  return last_parts;
}

/// The modules of the tensors that are trained in full; of a tied table also the head, of which
/// PEFT would else keep the base's.
std::set<std::string> modules_to_save(const Model& model) {
  std::set<std::string> modules;
  for (const Parameter* parameter : all_parameters(model)) {
    if (!parameter->trainable) continue;
    for (const Piece& part : parameter->parts) {
      if (!is_adapter(part.name)) modules.insert(module_of(part.name));
    }
    if (parameter == tied_table(model)) modules.insert(module_of(kLanguageHeadWeight));
  }
  return modules;
}

/// Whether files of the base have adapted matrices transposed; PEFT has one word for all of them.
bool has_turned_base(const Model& model) {
  return std::ranges::any_of(adapted_maps(model), [&](const AdaptedMap& map) {
    const Parameter& weight = map.linear->weight();
    return model.family->turned_in_file(map.name() + ".weight", weight.shape).has_value();
  });
}

/// 16 rather than 16.0, as people write it.
nlohmann::json plain_number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e9) return static_cast<long>(value);
  return value;
}

nlohmann::json config_json(const Model& model, const LoraConfig& config,
                           const std::set<std::string>& modules, const std::string& base) {
  nlohmann::json json = {{"peft_type", "LORA"},
                         {"task_type", nullptr},
                         {"base_model_name_or_path", nullptr},
                         {"revision", nullptr},
                         {"inference_mode", true},
                         {"r", config.rank},
                         {"lora_alpha", plain_number(config.alpha)},
                         {"lora_dropout", config.dropout},
                         {"target_modules", target_modules(model)},
                         {"modules_to_save", nullptr},
                         {"bias", "none"},
                         {"fan_in_fan_out", has_turned_base(model)},
                         {"init_lora_weights", true},
                         {"use_rslora", config.rslora},
                         {"use_dora", false},
                         {"rank_pattern", nlohmann::json::object()},
                         {"alpha_pattern", nlohmann::json::object()},
                         {"layers_to_transform", nullptr},
                         {"layers_pattern", nullptr}};
  if (model.is_language()) json["task_type"] = "CAUSAL_LM";
  if (!base.empty()) json["base_model_name_or_path"] = base;
  if (!modules.empty()) {
    json["modules_to_save"] = nlohmann::json::array();
    for (const std::string& module : modules)
      json["modules_to_save"].push_back(model.family->memory_name(module));
  }
  return json;
}

}  // namespace

std::unique_ptr<WeightSource> open_adapter(const fs::path& folder, const Model& model,
                                           const LoraConfig& config,
                                           std::unique_ptr<WeightSource> base) {
  if (!path_exists(folder / kWeightsName)) {
    throw Error(ErrorKind::data, fmt::format("{}: {} is not there", folder.string(), kWeightsName),
                "lora.weights needs a folder that PEFT's save_pretrained wrote");
  }
  return std::make_unique<AdapterFile>(folder, model, config, std::move(base));
}

void export_adapter(const fs::path& folder, const Model& model, const LoraConfig& config,
                    const TensorReader& read, const AdapterExport& options) {
  const std::set<std::string> modules = modules_to_save(model);
  const auto saved = [&](const std::string& tensor) {
    return is_adapter(tensor) || std::ranges::any_of(modules, [&](const std::string& module) {
             return tensor.starts_with(module + ".");
           });
  };
  std::vector<Piece> parts;
  std::vector<SafetensorsTensor> tensors;
  const auto add = [&](const Piece& part, std::string name) {
    parts.push_back(part);
    const std::optional<TransposedMatrix> turned =
        model.family->turned_in_file(part.name, part.shape);
    tensors.push_back({.name = std::move(name),
                       .shape = turned ? turned->shape_in_file() : part.shape,
                       .dtype = options.dtype,
                       .values = {}});
  };
  for (const Parameter* parameter : all_parameters(model)) {
    for (const Piece& part : parameter->parts) {
      if (saved(part.name)) add(part, adapter_prefix(model.family->memory_name(bare(part.name))));
    }
    if (parameter->trainable && parameter == tied_table(model))
      add(parameter->parts.front(), kHeadInFile);
  }
  make_folder(folder);
  SafetensorsWriter writer(folder / kWeightsName, std::move(tensors), export_metadata());
  for (const Piece& part : parts) {
    const std::vector<float> values = read(part);
    const std::optional<TransposedMatrix> turned =
        model.family->turned_in_file(part.name, part.shape);
    writer.write(turned ? turned->in_file(values) : values);
  }
  writer.commit();
  write_file_atomically(folder / kConfigName,
                        json_text(config_json(model, config, modules, options.base), 2) + "\n");
}

TensorReader merged(const Model& model, const LoraConfig& config, TensorReader read) {
  struct Adapter {
    Piece a, b;
  };
  std::map<std::string, Adapter> adapters;  // by the name of the matrix
  for (const AdaptedMap& map : adapted_maps(model)) {
    const std::int64_t rows = map.linear->parts()[map.part].rows;
    const std::int64_t columns = map.linear->weight().numel() / map.linear->weight().shape[0];
    const std::string prefix = adapter_prefix(map.name());
    adapters.insert_or_assign(map.name() + ".weight",
                              Adapter{.a = {prefix + ".lora_A.weight", {config.rank, columns}},
                                      .b = {prefix + ".lora_B.weight", {rows, config.rank}}});
  }
  return [adapters = std::move(adapters), read = std::move(read),
          scale = adapter_scale(config)](const Piece& part) {
    std::vector<float> values = read(part);
    const auto found = adapters.find(part.name);
    if (found == adapters.end()) return values;
    std::vector<float> a = read(found->second.a), b = read(found->second.b);
    const auto matrix = [](std::vector<float>& of, const std::vector<std::int64_t>& shape) {
      return at::from_blob(of.data(), shape, at::kFloat);
    };
    matrix(values, part.shape)
        .addmm_(matrix(b, found->second.b.shape), matrix(a, found->second.a.shape), 1, scale);
    return values;
  };
}

}  // namespace dstrain
