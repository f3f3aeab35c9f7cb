#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/checkpoint/foreign_files.h"
#include "engine/weights/weight_folder.h"

/// checkpoint-N folders of transformers' Trainer (trainer.py, trainer_pt_utils.py of 4.57 and 5):
/// the weights as save_pretrained writes them, and optimizer.pt with moments by position: those of
/// the group with weight decay first, in the order in which the model registers its tensors.
namespace dstrain {
namespace {

using Kind = PickleValue::Kind;

/// The version that wrote the folder, for which the order is known.
std::string known_version(const fs::path& folder) {
  const nlohmann::json config = read_json_object(folder / "config.json");
  const auto found = config.find("transformers_version");
  const std::string version =
      found != config.end() && found->is_string() ? found->get<std::string>() : "";
  if (version.starts_with("4.") || version.starts_with("5.")) return version;
  throw Error(ErrorKind::usage,
              fmt::format("{} names the transformers version '{}': the order of tensors in its "
                          "optimizer.pt is known of 4 and 5",
                          (folder / "config.json").string(), version),
              "--weights-only takes the weights and begins with new moments");
}

void read_optimizer(const fs::path& path, const ForeignHints& hints, ForeignCheckpoint& into) {
  const TorchFile file = open_torch(path);
  std::map<std::string, const PickleValue*> states;
  for (const auto& [key, value] : items_of(path, member(path, file->root(), "state"), "state"))
    states[key] = value;
  const PickleValue& groups = member_of(path, file->root(), "param_groups", Kind::list);
  std::vector<std::vector<const PickleValue*>> by_group;
  std::vector<std::vector<std::vector<std::int64_t>>> shapes;
  for (const PickleValue* group : groups.items) {
    const PickleValue& parameters = member_of(path, *group, "params", Kind::list);
    if (parameters.items.empty()) continue;
    by_group.emplace_back();
    shapes.emplace_back();
    for (const PickleValue* index : parameters.items) {
      const auto state = states.find(fmt::format("{}", index->integer));
      if (state == states.end()) {
        throw Error(
            ErrorKind::data,
            fmt::format("{}: no state of parameter {}", path.string(), index->integer),
            "it was saved before the first step: take the weights alone with --weights-only");
      }
      by_group.back().push_back(state->second);
      for (const auto& [key, value] : items_of(path, *state->second, "state")) {
        if (!is_moment(key, path)) continue;
        shapes.back().push_back(tensor_of(file, *value, key).shape());
        break;
      }
    }
  }
  if (hints.order.empty()) {
    throw Error(
        ErrorKind::usage,
        fmt::format(
            "{}: in which order transformers' model has its tensors is not known for this family",
            path.string()),
        "--weights-only takes the weights and begins with new moments");
  }
  std::vector<OrderedShape> order;
  for (const std::string& name : hints.order) {
    const auto weight = into.weights.find(name);
    if (weight == into.weights.end())
      throw Error(ErrorKind::data, fmt::format("{}: no tensor '{}'", into.path.string(), name),
                  "the recipe's model is another");
    order.push_back({name, weight->second.shape()});
  }
  const auto names = names_of_groups(order, shapes, path);
  AgreedCount steps("step");
  for (std::size_t g = 0, group = 0; g < names.size(); ++g, ++group) {
    while (member_of(path, *groups.items[group], "params", Kind::list).items.empty()) ++group;
    for (std::size_t i = 0; i < names[g].size(); ++i) {
      into.rules[names[g][i]] = rule_of(*groups.items[group]);
      for (const auto& [key, value] : items_of(path, *by_group[g][i], "state")) {
        if (key == "step") steps.add(count_of(file, *value, "step"), path);
        if (is_moment(key, path))
          into.moments[key].insert_or_assign(names[g][i], tensor_of(file, *value, key));
      }
    }
  }
  into.optimizer_steps = steps.value().value_or(into.step);
}

}  // namespace

ForeignCheckpoint open_trainer(const fs::path& folder, const ForeignHints& hints) {
  ForeignCheckpoint found;
  found.path = folder;
  found.layout = "folder of transformers";
  const auto weights = std::make_shared<const WeightFolder>(folder);
  for (const auto& [name, file] : weights->tensors()) {
    if (is_readable(file->entries().at(name).dtype)) {
      // The folder owns the file.
      found.weights.emplace(name,
                            ForeignTensor(std::shared_ptr<const WeightFile>(weights, file), name));
    }
  }
  const fs::path state = folder / "trainer_state.json", optimizer = folder / "optimizer.pt";
  found.has_moments = path_exists(optimizer);
  const std::optional<std::int64_t> step = trainer_step(folder);
  if (!step && path_exists(state))
    throw Error(ErrorKind::data, fmt::format("{}: no global_step", state.string()));
  found.step = found.optimizer_steps = step.value_or(0);
  if (hints.moments == ForeignHints::Moments::none) return found;
  if (!found.has_moments) {
    if (path_exists(state)) {
      throw Error(ErrorKind::data, fmt::format("{} is missing", optimizer.string()),
                  "save without save_only_model; or take the weights alone with --weights-only");
    }
    return found;
  }
  if (!path_exists(state))
    throw Error(
        ErrorKind::data, fmt::format("{} is missing", state.string()),
        "copy the whole folder checkpoint-N, or take the weights alone with --weights-only");
  found.layout = fmt::format("trainer of transformers {}", known_version(folder));
  read_scaler(folder / "scaler.pt", found);
  if (hints.moments == ForeignHints::Moments::named) return found;
  read_optimizer(optimizer, hints, found);
  found.skipped_steps = std::max<std::int64_t>(0, found.step - found.optimizer_steps);
  found.notes.emplace_back(
      "schedule, random states and the place in the data are not taken from the trainer; the "
      "recipe says what follows");
  return found;
}

}  // namespace dstrain
