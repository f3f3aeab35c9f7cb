#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/json.h"
#include "engine/checkpoint/checkpoint_manifest.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

Json state_json(const CheckpointState& s) {
  Json state = {{"step", s.step},
                {"samples", s.samples},
                {"optimizer_steps", s.optimizer_steps},
                {"loss_scale", s.loss_scale},
                {"good_steps", s.good_steps},
                {"skipped_steps", s.skipped_steps},
                {"world_size", s.world_size},
                {"recipe", s.recipe}};
  if (s.phase > 0) state["phase"] = s.phase;
  if (s.train_samples > 0) state["train_samples"] = s.train_samples;
  if (s.tolerated_steps > 0) state["tolerated_steps"] = s.tolerated_steps;
  if (!s.base.empty()) state["base"] = s.base;
  if (!s.origin.empty()) state["origin"] = s.origin;
  if (!s.class_names.empty()) state["class_names"] = s.class_names;
  return state;
}

Json range_json(Range range) { return Json::array({range.begin, range.end}); }

/// [name, shape], and rows and columns where it is a part of the tensor.
Json part_json(const Piece& part) {
  Json json = Json::array({part.name, part.shape});
  if (part == Piece(part.name, part.shape)) return json;
  for (const std::int64_t edge :
       {part.rows.begin, part.rows.end, part.columns.begin, part.columns.end})
    json.push_back(edge);
  return json;
}

Json group_json(const SavedGroup& group) {
  Json states = Json::array();
  for (const SavedState& state : group.states)
    states.push_back({{"range", range_json(state.range)}, {"prefixes", state.prefixes}});
  Json parameters = Json::array();
  for (const SavedParameter& parameter : group.parameters) {
    Json parts = Json::array();
    for (const Piece& part : parameter.parts) parts.push_back(part_json(part));
    parameters.push_back(
        {{"offset", parameter.offset}, {"rule", parameter.rule}, {"parts", parts}});
  }
  return {{"padded", group.padded}, {"shards", group.shards}, {"holders", group.holders},
          {"place", group.place},   {"states", states},       {"parameters", parameters}};
}

Json places_json(const std::vector<SavedPlace>& places) {
  Json json = Json::array();
  for (const SavedPlace& place : places) json.push_back(Json::array({place.shard, place.holder}));
  return json;
}

Json tensor_json(const StoredTensor& tensor) {
  Json boxes = Json::array();
  for (const StoredBox& box : tensor.boxes) {
    boxes.push_back(Json::array(
        {box.file, box.rows.begin, box.rows.end, box.columns.begin, box.columns.end, box.offset}));
  }
  return {{"name", tensor.name}, {"dtype", "F32"}, {"shape", tensor.shape}, {"boxes", boxes}};
}

Json file_json(const FileRecord& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"hash", file.hash}};
}

/// `"key": [` and each item on a line.
template <class Items, class ToJson>
std::string list_text(const char* key, const Items& items, ToJson to_json) {
  std::string text = fmt::format(",\n\"{}\": [", key);
  const char* separator = "\n";
  for (const auto& item : items) {
    text += separator + json_text(to_json(item));
    separator = ",\n";
  }
  return text + "]";
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  std::string text =
      fmt::format("{{\"format\": \"{}\",\n\"version\": {},\n\"state\": {}", kManifestFormat,
                  kManifestVersion, json_text(state_json(manifest.state)));
  text += list_text("groups", manifest.groups, group_json);
  text += list_text("layouts", manifest.layouts,
                    [](const std::vector<std::size_t>& layout) { return Json(layout); });
  std::size_t number = 0;
  text += list_text("files", manifest.files, [&](const FileRecord& file) {
    Json json = file_json(file);
    const std::size_t index = number++;
    if (index >= manifest.file_layouts.size()) return json;
    const FileLayout& held = manifest.file_layouts[index];
    if (held.layout == FileLayout::kNone) return json;
    json["data"] = held.data;
    json["layout"] = held.layout;
    json["at"] = places_json(held.places);
    return json;
  });
  text += list_text("tensors", manifest.tensors, tensor_json);
  if (!manifest.layouts.empty())
    text += fmt::format(",\n\"boxes_hash\": \"{}\"", manifest.boxes_hash);
  const std::string hash = text_hash(text);
  return text + fmt::format("{}{}{}", kBeforeHash, hash, kAfterHash);
}

std::string layout_text(const SavedLayout& layout) {
  Json groups = Json::array();
  for (const SavedGroup& group : layout) groups.push_back(group_json(group));
  return json_text(Json{{"groups", groups}});
}

std::string layout_hash(const SavedLayout& layout) { return text_hash(layout_text(layout)); }

std::string vote_text(const Vote& vote) {
  Json json = file_json(vote.file);
  json["step"] = vote.step;
  if (!vote.layout.empty()) {
    json["data"] = vote.data;
    json["layout"] = vote.layout;
    json["at"] = places_json(vote.places);
  }
  if (!vote.tensors.empty()) {
    Json tensors = Json::array();
    for (const StoredTensor& tensor : vote.tensors) tensors.push_back(tensor_json(tensor));
    json["tensors"] = tensors;
  }
  return json_text(json);
}

std::size_t add_layout(Manifest& manifest, const SavedLayout& layout) {
  std::map<std::string, std::size_t> known;
  for (std::size_t g = 0; g < manifest.groups.size(); ++g)
    known.emplace(json_text(group_json(manifest.groups[g])), g);
  std::vector<std::size_t> groups;
  for (const SavedGroup& group : layout) {
    const auto [at, is_new] =
        known.try_emplace(json_text(group_json(group)), manifest.groups.size());
    if (is_new) manifest.groups.push_back(group);
    groups.push_back(at->second);
  }
  manifest.layouts.push_back(std::move(groups));
  return manifest.layouts.size() - 1;
}

}  // namespace dstrain
