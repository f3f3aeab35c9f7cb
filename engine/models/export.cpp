#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/make_folder.h"
#include "engine/models/family.h"
#include "engine/models/weights.h"
#include "engine/nn/block_state.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

const char* torch_name(DType dtype) {
  using enum DType;
  switch (dtype) {
    case f32:
      return "float32";
    case f16:
      return "float16";
    case bf16:
      return "bfloat16";
    case i64:
      return "int64";
  }
  return "";
}

/// A tensor to write: part of a weight, or untrained state.
struct Item {
  const Piece* part = nullptr;
  DType dtype = DType::f32;
  const BlockState* state = nullptr;
  FileTensor in_file = {};
  std::optional<TransposedMatrix> turned = {};
};

/// Tensors of one file, and their bytes.
struct Shard {
  std::vector<Item> items;
  std::uint64_t bytes = 0;
};

std::vector<Shard> make_shards(const Model& model, const ExportOptions& options) {
  std::vector<Item> items;
  for (const Parameter* parameter : all_parameters(model)) {
    for (const Piece& part : parameter->parts) items.push_back({&part, options.dtype});
  }
  for (const BlockState* state : all_states(model))
    items.push_back({&state->part, state->type == at::kLong ? DType::i64 : DType::f32, state});
  for (Item& item : items) {
    item.in_file = {model.family->file_names(item.part->name).front(), item.part->shape};
    if (item.state == nullptr) {
      item.turned = model.family->turned_in_file(item.part->name, item.part->shape);
      if (item.turned) item.in_file.shape = item.turned->shape_in_file();
    }
    if (options.tensor != nullptr)
      item.in_file = options.tensor({item.part->name, item.part->shape});
  }
  std::vector<Shard> shards(1);
  for (const Item& item : items) {
    const auto bytes = static_cast<std::uint64_t>(num_elements(item.part->shape)) *
                       static_cast<std::uint64_t>(dtype_bytes(item.dtype));
    if (!shards.back().items.empty() && shards.back().bytes + bytes > options.shard_bytes)
      shards.emplace_back();
    shards.back().items.push_back(item);
    shards.back().bytes += bytes;
  }
  return shards;
}

void write_shard(const fs::path& path, const Shard& shard, const TensorReader& read) {
  std::vector<SafetensorsTensor> tensors;
  for (const Item& item : shard.items)
    tensors.push_back({.name = item.in_file.name,
                       .shape = item.in_file.shape,
                       .dtype = item.dtype,
                       .values = {}});
  SafetensorsWriter writer(path, std::move(tensors), export_metadata());
  for (const auto& [part, dtype, state, in_file, turned] : shard.items) {
    const std::vector<float> values = read(state == nullptr ? *part : stored_part(*state));
    if (dtype == DType::i64) {
      const at::Tensor integers = from_stored(*state, values);
      writer.write(std::span(integers.const_data_ptr<std::int64_t>(),
                             static_cast<std::size_t>(integers.numel())));
    } else {
      writer.write(turned ? turned->in_file(values) : values);
    }
  }
  writer.commit();
}

std::vector<std::string> copy_files(const fs::path& from, const fs::path& to,
                                    std::span<const char* const> names) {
  std::vector<std::string> copied;
  for (const char* name : names) {
    if (!path_exists(from / name) || fs::equivalent(from, to)) continue;
    write_file_atomically(to / name, read_file(from / name));
    copied.emplace_back(name);
  }
  return copied;
}

/// Whether an export wrote `file`; false where it cannot be read.
bool is_exported(const fs::path& file) try {
  const SafetensorsFile weights(file);
  return std::ranges::includes(weights.metadata(), export_metadata());
} catch (const Error&) {
  return false;
}

}  // namespace

const std::map<std::string, std::string>& export_metadata() {
  // Readers of transformers 4 refuse a file without a format.
  static const std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                              {"written_by", "dstrain"}};
  return metadata;
}

void refuse_foreign_weights(const fs::path& folder, const std::vector<fs::path>& inputs) {
  if (path_kind(folder) != PathKind::folder) return;
  constexpr const char* kHint = "name another folder, or a new one";
  for (const fs::path& input : inputs) {
    if (path_kind(input) == PathKind::folder && fs::equivalent(input, folder))
      throw Error(
          ErrorKind::usage,
          fmt::format("the run began from {}, whose weights would be lost", folder.string()),
          kHint);
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    const bool weights = entry.path().extension() == ".safetensors" ||
                         entry.path().filename().string().starts_with("pytorch_model");
    if (weights && !is_exported(entry.path()))
      throw Error(
          ErrorKind::usage,
          fmt::format("{} is not of an export of dstrain and might be lost", entry.path().string()),
          kHint);
  }
}

void export_weights(const fs::path& folder, const Model& model, const TensorReader& read,
                    const ExportOptions& options) {
  nlohmann::json config = parse_json(model.config_json, "config.json");
  // transformers 5 reads the first, transformers 4 the second.
  config["dtype"] = torch_name(options.dtype);
  config["torch_dtype"] = torch_name(options.dtype);
  make_folder(folder);
  const fs::path single = folder / "model.safetensors", index = single.string() + ".index.json";
  const std::vector<Shard> shards = make_shards(model, options);
  if (shards.size() == 1) {
    write_shard(single, shards[0], read);
    fs::remove(index);  // of an earlier export: readers would not know which is meant
  } else {
    nlohmann::json map = nlohmann::json::object();
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string name =
          fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
      write_shard(folder / name, shards[i], read);
      for (const Item& item : shards[i].items) map[item.in_file.name] = name;
      bytes += shards[i].bytes;
    }
    const nlohmann::json json = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
    write_file_atomically(index, json_text(json, 2) + "\n");
    fs::remove(single);
  }
  write_file_atomically(folder / "config.json", json_text(config, 2) + "\n");
}

std::vector<std::string> copy_tokenizer_files(const fs::path& from, const fs::path& to) {
  constexpr std::array kNames = {
      "tokenizer.json",  "tokenizer_config.json", "vocab.json",
      "merges.txt",      "added_tokens.json",     "special_tokens_map.json",
      "tokenizer.model", "chat_template.jinja",   "chat_template.json"};
  return copy_files(from, to, kNames);
}

std::vector<std::string> copy_generation_file(const fs::path& from, const fs::path& to) {
  constexpr std::array kNames = {"generation_config.json"};
  return copy_files(from, to, kNames);
}

}  // namespace dstrain
