#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/index.h"
#include "engine/base/input_file.h"
#include "engine/base/printable.h"
#include "engine/checkpoint/foreign_files.h"
#include "engine/mesh/pieces.h"

/// torch.distributed.checkpoint (torch/distributed/checkpoint/metadata.py and filesystem.py of
/// 2.11): `.metadata` is a pickle that says in which file and at which byte each chunk of a tensor
/// begins; each item of a file is a torch file of its own.
namespace dstrain {
namespace {

using Kind = PickleValue::Kind;

constexpr const char* kMetadata = "torch.distributed.checkpoint.metadata.Metadata";
constexpr std::uint64_t kMaxMetadata = std::uint64_t{1} << 30;

struct StoredItem {
  std::string file;
  std::uint64_t offset = 0, bytes = 0;
};

/// One folder with a `.metadata`.
class DcpFolder {
 public:
  explicit DcpFolder(const fs::path& folder)
      : folder_(folder),
        path_(folder / ".metadata"),
        file_(path_),
        pickle_(program(), path_.string()) {
    const PickleValue& root = pickle_.root();
    if (!root.is_opaque(kMetadata)) fail("it is no metadata of torch.distributed.checkpoint");
    const PickleValue& storage = member(path_, root, "storage_data");
    for (std::size_t i = 0; i + 1 < storage.items.size(); i += 2)
      add_item(*storage.items[i], *storage.items[i + 1]);
    if (const PickleValue* plans = optional_member(root, "planner_data")) {
      if (plans->is(Kind::dict)) {
        for (const auto& [name, keys] : items_of(path_, *plans, "planner_data")) keys_[name] = keys;
      }
    }
  }

  /// Everything of the folder goes into `into`.
  void read(ForeignCheckpoint& into, AgreedCount& steps) {
    std::map<std::string, const PickleValue*> groups;
    for (const auto& [name, value] : items_of(
             path_, member(path_, pickle_.root(), "state_dict_metadata"), "state_dict_metadata")) {
      if (name.find("param_groups.") != std::string::npos) {
        read_group_value(name);
        continue;
      }
      const auto state = split_state(name);
      const PickleValue* size = optional_member(*value, "size");
      if (size == nullptr) continue;  // bytes, such as a scheduler's
      const ForeignTensor tensor =
          tensor_at(name, shape_of(path_, *size, name), member(path_, *value, "chunks"));
      if (!state) {
        into.weights.insert_or_assign(own_name(name), tensor);
      } else if (state->second == "step") {
        add_step(tensor, name, steps);
      } else if (is_moment(state->second, path_)) {
        into.moments[state->second].insert_or_assign(state->first, tensor);
      }
    }
    for (const auto& [name, group] : group_of_) into.rules[name] = rules_[group];
    for (auto& [name, file] : files_) file->close();
  }

 private:
  /// Mapped, so that what is no pickle is refused by its first bytes.
  [[nodiscard]] std::span<const std::byte> program() const {
    if (file_.bytes().size() > kMaxMetadata)
      fail(fmt::format("{} bytes, more than {}", file_.bytes().size(), kMaxMetadata));
    return file_.bytes();
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::data, fmt::format("{}: {}", path_.string(), what),
                "the checkpoint is damaged; copy its folder again");
  }

  static std::string key_of(const std::string& name, const std::vector<std::int64_t>& offset) {
    std::string key = name;
    for (const std::int64_t at : offset) key += fmt::format("\n{}", at);
    return key;
  }

  void add_item(const PickleValue& index, const PickleValue& info) {
    const PickleValue& name = member_of(path_, index, "fqn", Kind::text);
    const PickleValue* offset = optional_member(index, "offset");
    if (optional_member(info, "transform_descriptors") != nullptr)
      fail(fmt::format("'{}' was written through a transformation, such as compression",
                       shown(name.text)));
    StoredItem item{.file = member_of(path_, info, "relative_path", Kind::text).text,
                    .offset = static_cast<std::uint64_t>(integer_member(path_, info, "offset")),
                    .bytes = static_cast<std::uint64_t>(integer_member(path_, info, "length"))};
    if (item.file.empty() || item.file.front() == '.' ||
        fs::path(item.file).filename() != item.file)
      fail(fmt::format("'{}' lies in '{}', which is no file beside it", shown(name.text),
                       shown(item.file)));
    items_[key_of(name.text, offset == nullptr ? std::vector<std::int64_t>{}
                                               : shape_of(path_, *offset, name.text))] =
        std::move(item);
  }

  TorchFile open_item(const std::string& name, const std::vector<std::int64_t>& offset) {
    const auto found = items_.find(key_of(name, offset));
    if (found == items_.end()) fail(fmt::format("it does not say where '{}' lies", shown(name)));
    const StoredItem& item = found->second;
    auto& file = files_[item.file];
    if (file == nullptr) {
      if (!path_exists(folder_ / item.file)) {
        throw Error(ErrorKind::data, fmt::format("{} is missing", (folder_ / item.file).string()),
                    "each rank wrote a file; copy them all into one folder");
      }
      file = std::make_shared<PartFile>(folder_ / item.file);
    }
    if (item.bytes == 0) fail(fmt::format("'{}' has no bytes", shown(name)));
    return std::make_shared<const TorchZip>(file, item.offset, item.bytes);
  }

  ForeignTensor tensor_at(const std::string& name, const std::vector<std::int64_t>& shape,
                          const PickleValue& chunks) {
    constexpr std::size_t kMaxDims = 64;  // of torch
    if (shape.size() > kMaxDims) fail(fmt::format("'{}' has {} dims", shown(name), shape.size()));
    ForeignTensor tensor(shape);
    std::vector<ForeignBox> boxes;
    for (const PickleValue* chunk : chunks.items) {
      const auto offsets = shape_of(path_, member(path_, *chunk, "offsets"), name);
      const auto sizes = shape_of(path_, member(path_, *chunk, "sizes"), name);
      bool inside = offsets.size() == shape.size() && sizes.size() == shape.size();
      for (std::size_t d = 0; inside && d < shape.size(); ++d)
        inside = offsets[d] <= shape[d] && sizes[d] <= shape[d] - offsets[d];
      if (!inside) fail(fmt::format("a chunk of '{}' lies outside of it", shown(name)));
      if (num_elements(sizes) == 0) continue;
      const TorchFile file = open_item(name, offsets);
      const ForeignTensor part = tensor_of(file, file->root(), name);
      if (part.numel() != num_elements(sizes))
        fail(fmt::format("a chunk of '{}' has {} elements, {} holds {}", shown(name),
                         num_elements(sizes), file->path().string(), part.numel()));
      boxes.emplace_back(shape, offsets, sizes);
      tensor.add_box(boxes.back(), part);
    }
    if (const std::string problem = cover_problem(shape, boxes); !problem.empty())
      fail(fmt::format("'{}': {}", shown(name), problem));
    return tensor;
  }

  /// "optimizer.state.NAME.exp_avg" as name and state; nothing for another tensor.
  static std::optional<std::pair<std::string, std::string>> split_state(const std::string& name) {
    const std::size_t at = name.starts_with("state.") ? 0 : name.find(".state.");
    const std::size_t last = name.rfind('.');
    if (at == std::string::npos || last == std::string::npos) return std::nullopt;
    const std::size_t begin = at + (at == 0 && name.starts_with("state.") ? 6 : 7);
    if (last <= begin) return std::nullopt;
    return std::pair(name.substr(begin, last - begin), name.substr(last + 1));
  }

  /// Without the key of the outer dict ("model").
  std::string own_name(const std::string& name) const {
    const auto found = keys_.find(name);
    if (found == keys_.end() || found->second->items.size() < 2) return name;
    std::string own;
    for (std::size_t i = 1; i < found->second->items.size(); ++i)
      own += (i > 1 ? "." : "") + found->second->items[i]->text;
    return own;
  }

  void add_step(const ForeignTensor& tensor, const std::string& name, AgreedCount& steps) const {
    float value = 0;
    if (tensor.numel() != 1) fail(fmt::format("'{}' is no number", shown(name)));
    tensor.read(0, {&value, 1});
    if (!(value >= 0 && value < 1e15F)) fail(fmt::format("'{}' is {}", shown(name), value));
    steps.add(static_cast<std::int64_t>(value), path_);
  }

  /// "optimizer.param_groups.1.weight_decay", or ".params": the names of group 1.
  void read_group_value(const std::string& name) {
    const std::size_t begin = name.find("param_groups.") + std::string_view("param_groups.").size();
    const std::size_t dot = name.find('.', begin);
    if (dot == std::string::npos || !items_.contains(key_of(name, {}))) return;
    const std::string group = name.substr(begin, dot - begin), key = name.substr(dot + 1);
    if (key != "params" && key != "weight_decay" && key != "eps" && key != "betas" &&
        key != "momentum")
      return;
    const TorchFile file = open_item(name, {});
    const PickleValue& value = file->root();
    ForeignRule& rule = rules_[group];
    const double number = value.is(Kind::real) ? value.real : static_cast<double>(value.integer);
    const bool is_number = value.is(Kind::real) || value.is(Kind::integer);
    if (key == "params") {
      for (const PickleValue* item : value.items) group_of_[item->text] = group;
    } else if (key == "betas") {
      for (const PickleValue* item : value.items) rule.betas.push_back(item->real);
    } else if (is_number) {
      (key == "eps" ? rule.eps : key == "momentum" ? rule.momentum : rule.weight_decay) = number;
    }
  }

  fs::path folder_, path_;
  MappedFile file_;
  Pickle pickle_;
  std::map<std::string, StoredItem> items_;  ///< by name and offset
  std::map<std::string, const PickleValue*> keys_;
  std::map<std::string, std::shared_ptr<PartFile>> files_;
  std::map<std::string, ForeignRule> rules_;     ///< by group
  std::map<std::string, std::string> group_of_;  ///< of each tensor
};

}  // namespace

ForeignCheckpoint open_dcp(const fs::path& folder, const ForeignHints& hints) {
  ForeignCheckpoint found;
  found.path = folder;
  found.layout = "distributed checkpoint of torch (FSDP2)";
  AgreedCount steps("step");
  const bool single = path_exists(folder / ".metadata");
  DcpFolder(single ? folder : folder / "pytorch_model_fsdp_0").read(found, steps);
  if (!single && hints.moments != ForeignHints::Moments::none) {
    if (!path_exists(folder / "optimizer_0" / ".metadata")) {
      throw Error(ErrorKind::data,
                  fmt::format("{} is missing", (folder / "optimizer_0" / ".metadata").string()),
                  "copy the folder optimizer_0 too, or take the weights alone with --weights-only");
    }
    DcpFolder(folder / "optimizer_0").read(found, steps);
  }
  read_scaler(folder / "scaler.pt", found);
  found.has_moments = !found.moments.empty();
  found.optimizer_steps = steps.value().value_or(0);
  found.step = found.optimizer_steps;
  found.step = trainer_step(folder).value_or(found.step);
  return found;
}

ForeignCheckpoint open_fsdp_full(const fs::path& folder, const ForeignHints& hints) {
  ForeignCheckpoint found;
  found.path = folder;
  found.layout = "whole states of FSDP";
  const TorchFile model = open_torch(folder / "pytorch_model_fsdp.bin");
  found.weights = tensors_of(model, model->root());
  const fs::path path = folder / "optimizer.bin";
  read_scaler(folder / "scaler.pt", found);
  found.has_moments = path_exists(path);
  if (!found.has_moments || hints.moments == ForeignHints::Moments::none) return found;
  const TorchFile optimizer = open_torch(path);
  AgreedCount steps("step");
  for (const auto& [name, state] :
       items_of(path, member(path, optimizer->root(), "state"), "state")) {
    for (const auto& [key, value] : items_of(path, *state, name)) {
      if (key == "step") steps.add(count_of(optimizer, *value, "step"), path);
      if (is_moment(key, path))
        found.moments[key].insert_or_assign(name, tensor_of(optimizer, *value, key));
    }
  }
  for (const PickleValue* group :
       member_of(path, optimizer->root(), "param_groups", Kind::list).items) {
    for (const PickleValue* name : member_of(path, *group, "params", Kind::list).items) {
      if (name->is(Kind::text)) found.rules[name->text] = rule_of(*group);
    }
  }
  found.optimizer_steps = found.step = steps.value().value_or(0);
  found.step = trainer_step(folder).value_or(found.step);
  return found;
}

}  // namespace dstrain
