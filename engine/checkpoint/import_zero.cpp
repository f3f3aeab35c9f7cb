#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/checkpoint/foreign_files.h"
#include "engine/mesh/pieces.h"

/// Folders that DeepSpeed's save_checkpoint writes (deepspeed/runtime/engine.py,
/// zero/stage_1_and_2.py and stage3.py of 0.19.8). The order of tensors in flat partitions is that
/// of param_shapes, never that of param_slice_mappings, which names wrong ones under
/// round_robin_gradients.
namespace dstrain {
namespace {

using Kind = PickleValue::Kind;
using Tensors = ForeignCheckpoint::Tensors;

constexpr const char* kUniversal =
    "make it universal where DeepSpeed is installed: python -m "
    "deepspeed.checkpoint.ds_to_universal "
    "--input_folder FOLDER --output_folder NEW";

/// Files of a checkpoint by rank.
struct ZeroFiles {
  fs::path model;                  ///< of stages 0 to 2
  std::map<int, fs::path> models;  ///< of stage 3
  std::map<int, fs::path> optims;
};

ZeroFiles find_files(const fs::path& folder) {
  static const std::regex model("mp_rank_([0-9]{2,9})_model_states\\.pt");
  static const std::regex model3(
      "zero_pp_rank_([0-9]{1,9})_mp_rank_([0-9]{2,9})_model_states\\.pt");
  static const std::regex optim(
      "(?:bf16_)?zero_pp_rank_([0-9]{1,9})_mp_rank_([0-9]{2,9})_optim_states\\.pt");
  ZeroFiles files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    std::smatch found;
    const bool layered = name.starts_with("layer_"),
               experts = name.find("expert_") != name.npos || name.starts_with("expp_rank_");
    if (layered || experts) {
      throw Error(ErrorKind::usage,
                  fmt::format("{} is a file of {}", entry.path().string(),
                              layered ? "pipeline stages" : "experts"),
                  kUniversal);
    }
    int mp_rank = 0;
    if (std::regex_match(name, found, model)) {
      mp_rank = std::stoi(found[1]);
      files.model = entry.path();
    } else if (std::regex_match(name, found, model3)) {
      mp_rank = std::stoi(found[2]);
      files.models[std::stoi(found[1])] = entry.path();
    } else if (std::regex_match(name, found, optim)) {
      mp_rank = std::stoi(found[2]);
      files.optims[std::stoi(found[1])] = entry.path();
    }
    if (mp_rank > 0) {
      throw Error(ErrorKind::usage,
                  fmt::format("{} is a file of a tensor-parallel rank", entry.path().string()),
                  kUniversal);
    }
  }
  return files;
}

/// Files of ranks 0 to `count` - 1, opened; names the one that is missing.
std::vector<TorchFile> open_all(const std::map<int, fs::path>& files, std::int64_t count,
                                const fs::path& folder, const char* what) {
  std::vector<TorchFile> opened;
  for (std::int64_t rank = 0; rank < count; ++rank) {
    const auto found = files.find(static_cast<int>(rank));
    if (found == files.end()) {
      throw Error(
          ErrorKind::data,
          fmt::format("{}: the {} of rank {} of {} is missing", folder.string(), what, rank, count),
          "each rank wrote a file; copy them all into one folder");
    }
    opened.push_back(open_torch(found->second));
  }
  if (std::cmp_greater(files.size(), count)) {
    throw Error(ErrorKind::data,
                fmt::format("{}: {} is of a rank beyond the {} that wrote the checkpoint",
                            folder.string(), files.rbegin()->second.filename().string(), count),
                "files of two checkpoints were mixed; copy the folder again");
  }
  return opened;
}

struct Named {
  std::string name;
  std::vector<std::int64_t> shape;
};

/// param_shapes: per group the tensors in the order in which they lie.
std::vector<std::vector<Named>> param_shapes(const TorchFile& model) {
  std::vector<std::vector<Named>> groups;
  for (const PickleValue* group :
       member_of(model->path(), model->root(), "param_shapes", Kind::list).items) {
    groups.emplace_back();
    for (const auto& [name, shape] : items_of(model->path(), *group, "param_shapes"))
      groups.back().push_back({name, shape_of(model->path(), *shape, name)});
  }
  return groups;
}

void read_shared(const TorchFile& model, ForeignCheckpoint& into) {
  const PickleValue* shared = optional_member(model->root(), "shared_params");
  if (shared == nullptr) return;
  for (const auto& [name, source] : items_of(model->path(), *shared, "shared_params")) {
    if (source->is(Kind::text)) into.shared[name] = source->text;
  }
}

/// Everything of `module` that no optimizer has: frozen tensors, buffers; of trained ones it is the
/// copy that the forward pass used.
void read_module(const TorchFile& model, ForeignCheckpoint& into) {
  const PickleValue& module = member_of(model->path(), model->root(), "module", Kind::dict);
  for (auto& [name, tensor] : tensors_of(model, module)) {
    if (into.weights.contains(name) || into.shared.contains(name)) {
      into.copies.insert_or_assign(name, tensor);
    } else {
      into.weights.insert_or_assign(name, tensor);
    }
  }
}

/// The state of flat group `index` of one rank: "exp_avg" and so on.
std::map<std::string, ForeignTensor> states_of(const TorchFile& file, const PickleValue& states,
                                               std::size_t index, AgreedCount& steps) {
  const PickleValue* state = nullptr;
  if (states.is(Kind::list)) {  // an elastic checkpoint
    if (index < states.items.size()) state = states.items[index];
  } else {
    const std::string key = fmt::format("{}", index);
    for (const auto& [name, value] : items_of(file->path(), states, "state")) {
      if (name == key) state = value;
    }
  }
  if (state == nullptr) {
    throw Error(
        ErrorKind::data,
        fmt::format("{}: the optimizer has no state of group {}", file->path().string(), index),
        "it was saved before the first step: start anew from the weights");
  }
  std::map<std::string, ForeignTensor> found;
  for (const auto& [name, value] : items_of(file->path(), *state, "state")) {
    if (name == "step") steps.add(count_of(file, *value, "step"), file->path());
    if (is_moment(name, file->path())) found.emplace(name, tensor_of(file, *value, name));
  }
  return found;
}

void read_rules(const PickleValue& optimizer, const std::vector<std::vector<Named>>& groups,
                bool per_group, ForeignCheckpoint& into) {
  const PickleValue* list = optional_member(optimizer, "param_groups");
  if (list == nullptr || !list->is(Kind::list)) return;
  std::size_t flat = 0;
  for (const PickleValue* group : list->items) {
    // Under stage 3 a group has one flat tensor for each of its sub-groups.
    const PickleValue* parameters = group->find("params");
    const std::size_t count = per_group || parameters == nullptr ? 1 : parameters->items.size();
    for (std::size_t i = 0; i < count && flat < groups.size(); ++i, ++flat) {
      for (const Named& named : groups[flat]) into.rules[named.name] = rule_of(*group);
    }
  }
}

/// Where the tensors of one group begin in its flat buffer, and its elements.
std::vector<std::int64_t> offsets_of(const std::vector<Named>& group, const PickleValue* paddings,
                                     const fs::path& file) {
  std::vector<std::int64_t> offsets;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < group.size(); ++i) {
    offsets.push_back(at);
    at += num_elements(group[i].shape);
    if (paddings == nullptr) continue;
    if (i >= paddings->items.size() || !paddings->items[i]->is(Kind::integer) ||
        paddings->items[i]->integer < 0) {
      throw Error(ErrorKind::data, fmt::format("{}: param_alignment_paddings does not fit "
                                               "param_shapes",
                                               file.string()));
    }
    at += paddings->items[i]->integer;
  }
  offsets.push_back(at);
  return offsets;
}

void open_stage_1_2(const fs::path& folder, const ZeroFiles& files, ForeignCheckpoint& into) {
  const TorchFile model = open_torch(files.model);
  read_deepspeed_facts(model, into);
  into.ranks = static_cast<int>(integer_member(model->path(), model->root(), "dp_world_size"));
  const std::vector<TorchFile> optims =
      open_all(files.optims, into.ranks, folder, "optimizer file");
  const auto groups = param_shapes(model);
  AgreedCount steps("step");
  std::vector<const PickleValue*> states, partitions;
  for (const TorchFile& file : optims) {
    const PickleValue& optimizer =
        member_of(file->path(), file->root(), "optimizer_state_dict", Kind::dict);
    const PickleValue& base = member(file->path(), optimizer, "base_optimizer_state");
    states.push_back(base.is(Kind::list) ? &base : &member(file->path(), base, "state"));
    partitions.push_back(
        &member_of(file->path(), optimizer, "single_partition_of_fp32_groups", Kind::list));
    if (partitions.back()->items.size() != groups.size()) {
      throw Error(
          ErrorKind::data,
          fmt::format("{} has {} groups of parameters, {} has {}", file->path().string(),
                      partitions.back()->items.size(), model->path().string(), groups.size()));
    }
    if (const PickleValue* step = optional_member(optimizer, "base_optimizer_state_step"))
      steps.add(count_of(file, *step, "base_optimizer_state_step"), file->path());
  }
  const PickleValue& first = member(optims[0]->path(), optims[0]->root(), "optimizer_state_dict");
  read_loss_scale(first, into);
  const PickleValue* paddings = optional_member(first, "param_alignment_paddings");
  const auto world = static_cast<std::int64_t>(optims.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const PickleValue* own =
        paddings != nullptr && g < paddings->items.size() ? paddings->items[g] : nullptr;
    const std::vector<std::int64_t> offsets = offsets_of(groups[g], own, model->path());
    std::vector<ForeignTensor> parts;
    std::int64_t partition = 0, held = 0;
    for (std::size_t r = 0; r < optims.size(); ++r) {
      parts.push_back(tensor_of(optims[r], *partitions[r]->items[g], "fp32 partition"));
      partition = std::max(partition, parts.back().numel());
      held += parts.back().numel();
    }
    // The buffer is filled up so that parts are equal and aligned; the filling is saved or not.
    constexpr std::int64_t kMaxFilling = 16;  // per rank
    const std::int64_t total = offsets.back();
    if (held < total || partition * world - total >= kMaxFilling * world) {
      throw Error(
          ErrorKind::data,
          fmt::format("{}: group {} has {} elements in param_shapes, its partitions hold {}",
                      folder.string(), g, total, held),
          "files of two checkpoints were mixed; copy the folder again");
    }
    ForeignTensor master({partition * world});
    std::map<std::string, ForeignTensor> moments;
    for (std::size_t r = 0; r < optims.size(); ++r) {
      const std::int64_t begin = static_cast<std::int64_t>(r) * partition;
      master.add({begin, begin + parts[r].numel()}, parts[r], 0);
      for (const auto& [name, tensor] : states_of(optims[r], *states[r], g, steps)) {
        ForeignTensor& whole =
            moments.try_emplace(name, std::vector<std::int64_t>{partition * world}).first->second;
        whole.add({begin, begin + std::min(partition, tensor.numel())}, tensor, 0);
      }
    }
    for (std::size_t i = 0; i < groups[g].size(); ++i) {
      const auto& [name, shape] = groups[g][i];
      const auto cut = [&, n = num_elements(shape)](const ForeignTensor& flat) {
        ForeignTensor tensor(shape);
        tensor.add({0, n}, flat, offsets[i]);
        tensor.settle(name);
        return tensor;
      };
      into.weights.insert_or_assign(name, cut(master));
      for (const auto& [moment, flat] : moments)
        into.moments[moment].insert_or_assign(name, cut(flat));
    }
  }
  const PickleValue& base = member(optims[0]->path(), first, "base_optimizer_state");
  if (base.is(Kind::dict)) read_rules(base, groups, true, into);
  into.optimizer_steps = steps.value().value_or(into.step - into.skipped_steps);
  read_shared(model, into);
  read_module(model, into);
}

/// What fills up the last pieces of a tensor is whatever was in memory (seen with 0.19.8), so it
/// proves nothing: that the tensors of each sub-group fill its partitions exactly does.
void open_stage_3(const fs::path& folder, const ZeroFiles& files, ForeignCheckpoint& into) {
  const TorchFile any = open_torch(files.models.begin()->second);
  into.ranks = static_cast<int>(integer_member(any->path(), any->root(), "dp_world_size"));
  const std::vector<TorchFile> models = open_all(files.models, into.ranks, folder, "model file");
  const std::vector<TorchFile> optims =
      open_all(files.optims, into.ranks, folder, "optimizer file");
  AgreedCount global_steps("global_steps"), steps("step");
  for (const TorchFile& model : models)
    global_steps.add(integer_member(model->path(), model->root(), "global_steps"), model->path());
  read_deepspeed_facts(models[0], into);
  const auto groups = param_shapes(models[0]);
  const auto world = static_cast<std::int64_t>(optims.size());
  // What one rank holds, one sub-group after the other.
  std::vector<ForeignTensor> masters;
  std::vector<std::map<std::string, ForeignTensor>> moments(optims.size());
  for (std::size_t r = 0; r < optims.size(); ++r) {
    const TorchFile& file = optims[r];
    const PickleValue& outer =
        member_of(file->path(), file->root(), "optimizer_state_dict", Kind::dict);
    const PickleValue& inner = member_of(file->path(), outer, "optimizer_state_dict", Kind::dict);
    const PickleValue& flat = member_of(file->path(), outer, "fp32_flat_groups", Kind::list);
    if (r == 0) read_loss_scale(outer, into);
    if (r == 0) read_rules(inner, groups, false, into);
    const std::int64_t count = integer_member(file->path(), outer, "partition_count");
    if (count != world) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: states are cut into {} parts over {} ranks",
                              file->path().string(), count, world),
                  kUniversal);
    }
    if (flat.items.size() != groups.size()) {
      throw Error(ErrorKind::data,
                  fmt::format("{} has {} sub-groups, {} has {}", file->path().string(),
                              flat.items.size(), models[0]->path().string(), groups.size()),
                  "files of two checkpoints were mixed; copy the folder again");
    }
    std::int64_t total = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const ForeignTensor part = tensor_of(file, *flat.items[g], "fp32_flat_groups");
      std::int64_t wanted = 0;
      for (const Named& named : groups[g])
        wanted += (num_elements(named.shape) + world - 1) / world;
      if (part.numel() != wanted) {
        throw Error(ErrorKind::data,
                    fmt::format("{}: sub-group {} has {} elements, its tensors need {}",
                                file->path().string(), g, part.numel(), wanted),
                    "files of two checkpoints were mixed; copy the folder again");
      }
      total += wanted;
    }
    ForeignTensor& master = masters.emplace_back(std::vector<std::int64_t>{total});
    std::int64_t begin = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const ForeignTensor part = tensor_of(file, *flat.items[g], "fp32_flat_groups");
      const Range range{begin, begin + part.numel()};
      master.add(range, part, 0);
      for (const auto& [name, tensor] :
           states_of(file, member(file->path(), inner, "state"), g, steps))
        moments[r]
            .try_emplace(name, std::vector<std::int64_t>{total})
            .first->second.add(range, tensor, 0);
      begin = range.end;
    }
  }
  std::int64_t at = 0;  // where a tensor's piece begins on each rank
  for (const auto& group : groups) {
    for (const auto& [name, shape] : group) {
      const std::int64_t n = num_elements(shape), piece = (n + world - 1) / world;
      const auto join = [&, &tensor_name = name, &tensor_shape = shape](auto flat_of) {
        ForeignTensor tensor(tensor_shape);
        for (std::int64_t r = 0; r < world; ++r) {
          const Range range{std::min(n, r * piece), std::min(n, (r + 1) * piece)};
          tensor.add(range, flat_of(to_index(r)), at);
        }
        tensor.settle(tensor_name);
        return tensor;
      };
      into.weights.insert_or_assign(
          name, join([&](std::size_t r) -> const ForeignTensor& { return masters[r]; }));
      for (const auto& [moment, unused] : moments[0]) {
        into.moments[moment].insert_or_assign(
            name, join([&, &key = moment](std::size_t r) -> const ForeignTensor& {
              return moments[r].at(key);
            }));
      }
      at += piece;
    }
  }
  into.optimizer_steps = steps.value().value_or(into.step - into.skipped_steps);
  read_shared(models[0], into);
  // Frozen tensors are cut in the same way; buffers are whole in each file.
  const PickleValue* frozen = optional_member(models[0]->root(), "frozen_param_shapes");
  if (frozen != nullptr) {
    for (const auto& [name, value] : items_of(models[0]->path(), *frozen, "frozen_param_shapes")) {
      const std::vector<std::int64_t> shape = shape_of(models[0]->path(), *value, name);
      const std::int64_t n = num_elements(shape), piece = (n + world - 1) / world;
      ForeignTensor tensor(shape);
      for (std::int64_t r = 0; r < world; ++r) {
        const TorchFile& file = models[to_index(r)];
        const Range range{std::min(n, r * piece), std::min(n, (r + 1) * piece)};
        const PickleValue& fragments = member(file->path(), file->root(), "frozen_param_fragments");
        tensor.add(range, tensor_of(file, member(file->path(), fragments, name), name), 0);
      }
      tensor.settle(name);
      into.weights.insert_or_assign(name, std::move(tensor));
    }
  }
  const PickleValue& module = member_of(models[0]->path(), models[0]->root(), "module", Kind::dict);
  for (auto& [name, tensor] : tensors_of(models[0], module)) {
    if (tensor.numel() > 0 && !into.shared.contains(name)) into.weights.try_emplace(name, tensor);
  }
}

/// Names of one tensor of `module` have one storage; each but the first goes to `shared`.
std::vector<OrderedShape> trained_in_order(const TorchFile& model, const PickleValue& module,
                                           const ForeignHints& hints, ForeignCheckpoint& into) {
  std::set<std::string> buffers;
  if (const PickleValue* names = optional_member(model->root(), "buffer_names")) {
    for (const PickleValue* name : names->items) buffers.insert(name->text);
  }
  std::map<std::pair<std::string, std::int64_t>, std::string> seen;
  std::vector<OrderedShape> order;
  for (const auto& [name, value] : items_of(model->path(), module, "module")) {
    if (!value->is(Kind::tensor) || buffers.contains(name)) continue;
    const PickleTensor& tensor = *value->tensor;
    const auto [first, is_new] = seen.try_emplace({tensor.storage->key, tensor.offset}, name);
    if (!is_new) into.shared[name] = first->second;
    if (is_new && hints.trained.contains(name)) order.push_back({name, tensor.shape});
  }
  return order;
}

void open_stage_0(const ZeroFiles& files, const ForeignHints& hints, ForeignCheckpoint& into) {
  const TorchFile model = open_torch(files.model);
  const fs::path& path = model->path();
  read_deepspeed_facts(model, into);
  into.ranks = static_cast<int>(integer_member(path, model->root(), "dp_world_size"));
  const PickleValue& module = member_of(path, model->root(), "module", Kind::dict);
  const PickleValue* optimizer = optional_member(model->root(), "optimizer");
  const std::vector<OrderedShape> order = trained_in_order(model, module, hints, into);
  const PickleValue* masters =
      optimizer == nullptr ? nullptr : optional_member(*optimizer, "fp32_groups");
  if (masters != nullptr) read_loss_scale(*optimizer, into);
  if (hints.moments != ForeignHints::Moments::all) {
    into.has_moments = optimizer != nullptr;
    into.weights = tensors_of(model, module);
    return;
  }
  if (optimizer == nullptr) {
    throw Error(
        ErrorKind::data,
        fmt::format("{} has no optimizer, and no file of optim_states is beside it", path.string()),
        "copy the files of all ranks into one folder, or take the weights alone with "
        "--weights-only");
  }
  const PickleValue& base = masters != nullptr
                                ? member_of(path, *optimizer, "optimizer_state_dict", Kind::dict)
                                : *optimizer;
  std::map<std::string, const PickleValue*> states;
  for (const auto& [key, value] : items_of(path, member(path, base, "state"), "state"))
    states[key] = value;
  const PickleValue& groups = member_of(path, base, "param_groups", Kind::list);
  std::vector<std::vector<const PickleValue*>> by_group;
  std::vector<std::vector<std::vector<std::int64_t>>> shapes;
  for (const PickleValue* group : groups.items) {
    by_group.emplace_back();
    shapes.emplace_back();
    for (const PickleValue* index : member_of(path, *group, "params", Kind::list).items) {
      const auto state = states.find(fmt::format("{}", index->integer));
      if (state == states.end()) {
        throw Error(ErrorKind::data,
                    fmt::format("{}: the optimizer has no state of parameter {}", path.string(),
                                index->integer),
                    "it was saved before the first step: start anew from the weights");
      }
      by_group.back().push_back(state->second);
      for (const auto& [name, value] : items_of(path, *state->second, "state")) {
        if (!is_moment(name, path) || !value->is(Kind::tensor)) continue;
        shapes.back().push_back(value->tensor->shape);
        break;
      }
    }
  }
  const auto names = names_of_groups(order, shapes, path);
  AgreedCount steps("step");
  for (std::size_t g = 0; g < names.size(); ++g) {
    for (std::size_t i = 0; i < names[g].size(); ++i) {
      const std::string& name = names[g][i];
      into.rules[name] = rule_of(*groups.items[g]);
      for (const auto& [key, value] : items_of(path, *by_group[g][i], "state")) {
        if (key == "step") steps.add(count_of(model, *value, "step"), path);
        if (is_moment(key, path))
          into.moments[key].insert_or_assign(name, tensor_of(model, *value, key));
      }
      if (masters == nullptr) continue;
      if (g >= masters->items.size() || i >= masters->items[g]->items.size()) {
        throw Error(ErrorKind::data,
                    fmt::format("{}: fp32_groups has no weight of '{}'", path.string(), name));
      }
      into.weights.insert_or_assign(name, tensor_of(model, *masters->items[g]->items[i], name));
    }
  }
  if (masters != nullptr) {
    // Its first update is one of zero gradients, before the first step.
    into.extra_updates = 1;
    read_module(model, into);
  } else {
    into.weights = tensors_of(model, module);
  }
  into.optimizer_steps = steps.value().value_or(into.step);
}

}  // namespace

ForeignCheckpoint open_zero(const fs::path& folder, const ForeignHints& hints) {
  const ZeroFiles files = find_files(folder);
  ForeignCheckpoint found;
  found.path = folder;
  const bool sharded = !files.models.empty();
  if (!sharded && files.model.empty()) {
    throw Error(
        ErrorKind::data,
        fmt::format("{}: {} is missing", folder.string(),
                    "mp_rank_00_model_states.pt or zero_pp_rank_0_mp_rank_00_model_states.pt"),
        "copy the files of all ranks into one folder");
  }
  const TorchFile any = open_torch(sharded ? files.models.begin()->second : files.model);
  const PickleValue* version = optional_member(any->root(), "ds_version");
  int stage = sharded ? 3 : 0;
  if (!sharded && !files.optims.empty()) {
    stage = 2;
    const PickleValue* config = optional_member(any->root(), "ds_config");
    const PickleValue* zero = config == nullptr ? nullptr : config->find("zero_optimization");
    const PickleValue* said = zero == nullptr ? nullptr : zero->find("stage");
    if (said != nullptr && said->is(Kind::integer) && said->integer == 1) stage = 1;
  }
  found.layout = fmt::format("ZeRO-{} of DeepSpeed {}", stage,
                             version == nullptr ? "of unknown version" : version->text);
  if (stage == 3) {
    open_stage_3(folder, files, found);
  } else if (stage > 0) {
    open_stage_1_2(folder, files, found);
  } else {
    open_stage_0(files, hints, found);
  }
  return found;
}

}  // namespace dstrain
