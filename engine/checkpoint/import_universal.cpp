#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/checkpoint/foreign_files.h"
#include "engine/mesh/pieces.h"

/// Folders that deepspeed/checkpoint/ds_to_universal.py of 0.19.8 writes: zero/NAME/STATE.pt, whole
/// tensors, beside the model files.
namespace dstrain {
namespace {

using Kind = PickleValue::Kind;

/// The tensor of a state's file: under "param", or the file itself.
ForeignTensor state_tensor(const TorchFile& file) {
  const PickleValue* inner = file->root().find("param");
  return tensor_of(file, inner != nullptr ? *inner : file->root(), "param");
}

/// Shapes by name: those of stage 3 are saved flat.
std::map<std::string, std::vector<std::int64_t>> shapes_of(const TorchFile& model) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  const PickleValue* groups = optional_member(model->root(), "param_shapes");
  if (groups == nullptr) return shapes;
  for (const PickleValue* group : groups->items) {
    for (const auto& [name, shape] : items_of(model->path(), *group, "param_shapes"))
      shapes[name] = shape_of(model->path(), *shape, name);
  }
  return shapes;
}

ForeignTensor reshaped(const ForeignTensor& flat, const std::vector<std::int64_t>& shape,
                       const std::string& name, const fs::path& file) {
  if (flat.numel() != num_elements(shape)) {
    throw Error(ErrorKind::data, fmt::format("{} has {} elements, '{}' needs {}", file.string(),
                                             flat.numel(), name, num_elements(shape)));
  }
  ForeignTensor tensor(shape);
  tensor.add({0, flat.numel()}, flat, 0);
  tensor.settle(name);
  return tensor;
}

void read_tensor_folder(const fs::path& folder, const std::string& name,
                        const std::map<std::string, std::vector<std::int64_t>>& shapes,
                        AgreedCount& steps, ForeignCheckpoint& into) {
  const auto known = shapes.find(name);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".pt") continue;
    const std::string state = entry.path().stem().string();
    const TorchFile file = open_torch(entry.path());
    if (state == "step") {
      steps.add(count_of(file, file->root(), "step"), file->path());
      continue;
    }
    if (state != "fp32" && !is_moment(state, file->path())) continue;
    const ForeignTensor whole = state_tensor(file);
    ForeignTensor tensor =
        reshaped(whole, known == shapes.end() ? whole.shape() : known->second, name, file->path());
    auto& tensors = state == "fp32" ? into.weights : into.moments[state];
    tensors.insert_or_assign(name, std::move(tensor));
  }
  if (!into.weights.contains(name)) {
    throw Error(ErrorKind::data, fmt::format("{} is missing", (folder / "fp32.pt").string()),
                "the conversion was broken off; make it anew");
  }
}

/// Under stage 3 the steps stand in the common file.
void read_common(const fs::path& path, AgreedCount& steps, ForeignCheckpoint& into) {
  if (!path_exists(path)) return;
  const TorchFile file = open_torch(path);
  read_loss_scale(file->root(), into);
  const PickleValue* inner = optional_member(file->root(), "optimizer_state_dict");
  const PickleValue* states = inner == nullptr ? nullptr : optional_member(*inner, "state");
  if (states == nullptr) return;
  for (const auto& [key, state] : items_of(path, *states, "state")) {
    if (const PickleValue* step = optional_member(*state, "step"))
      steps.add(count_of(file, *step, "step"), path);
  }
}

}  // namespace

ForeignCheckpoint open_universal(const fs::path& folder) {
  ForeignCheckpoint found;
  found.path = folder;
  TorchFile model;
  for (const char* name :
       {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"}) {
    if (path_exists(folder / name)) model = open_torch(folder / name);
  }
  if (model == nullptr) {
    throw Error(ErrorKind::data,
                fmt::format("{}: mp_rank_00_model_states.pt is missing", folder.string()),
                "ds_to_universal copies it beside `zero`; copy the whole folder");
  }
  read_deepspeed_facts(model, found);
  const PickleValue* version = optional_member(model->root(), "ds_version");
  found.layout = fmt::format("universal checkpoint of DeepSpeed {}",
                             version == nullptr ? "of unknown version" : version->text);
  AgreedCount steps("step");
  const auto shapes = shapes_of(model);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "zero")) {
    if (path_kind(entry.path()) == PathKind::folder)
      read_tensor_folder(entry.path(), entry.path().filename().string(), shapes, steps, found);
  }
  for (const auto& [name, shape] : shapes) {
    if (found.weights.contains(name)) continue;
    throw Error(ErrorKind::data,
                fmt::format("{} is missing", (folder / "zero" / name / "fp32.pt").string()),
                "the conversion was broken off; make it anew");
  }
  read_common(folder / "zero" / "optimizer_state.pt", steps, found);
  found.optimizer_steps = steps.value().value_or(found.step - found.skipped_steps);
  if (const PickleValue* shared = optional_member(model->root(), "shared_params")) {
    for (const auto& [name, source] : items_of(model->path(), *shared, "shared_params"))
      found.shared[name] = source->text;
  }
  // The copy of the forward pass proves what the conversion took for which tensor.
  if (const PickleValue* module = optional_member(model->root(), "module")) {
    for (auto& [name, tensor] : tensors_of(model, *module)) {
      if (tensor.numel() == 0) continue;
      const bool known = found.weights.contains(name) || found.shared.contains(name);
      (known ? found.copies : found.weights).insert_or_assign(name, tensor);
    }
  }
  return found;
}

}  // namespace dstrain
