#include "engine/checkpoint/checkpoint_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json.h"
#include "engine/base/run_layout.h"
#include "engine/checkpoint/checkpoint_boxes.h"
#include "engine/mesh/pieces.h"

namespace dstrain {
namespace {

constexpr std::int64_t kMax = std::int64_t{1}
                              << 60;  ///< elements or steps; 4 x 2^60 bytes still fit
constexpr std::size_t kDepth = 8;
constexpr std::int64_t kMaxRanks = std::int64_t{1} << 24;
constexpr std::int64_t kMaxStates = 64;  ///< of an optimizer
constexpr std::size_t kHashDigits = 32;

/// Reads a manifest's values; every complaint names the source.
class Parser {
  using Json = nlohmann::json;

 public:
  Parser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Manifest manifest() {
    check_hash();
    const Json json = parse(text_.size());
    if (!json.is_object()) fail("is not a JSON object");
    if (text(json, "format") != kManifestFormat) fail("is not a checkpoint of dstrain");
    version_ = integer(json, "version", 0, kMax);
    if (version_ < 1 || version_ > kManifestVersion) {
      fail(fmt::format("has format version {}, this dstrain reads versions 1 to {}", version_,
                       kManifestVersion));
    }
    Manifest manifest;
    manifest.state = state(object(json, "state"));
    if (version_ >= 3) layouts(json, manifest);
    files(array(json, "files"), manifest);
    tensors(array(json, "tensors"), manifest);
    if (!manifest.layouts.empty()) manifest.boxes_hash = hash(json, "boxes_hash");
    return manifest;
  }

  Vote vote() {
    const Json json = parse(text_.size());
    version_ = kManifestVersion;
    Manifest manifest;
    files(Json::array({json}), manifest, /*is_vote=*/true);
    Vote vote{.step = integer(json, "step", 0, kMax),
              .file = std::move(manifest.files.at(0)),
              .data = manifest.file_layouts.at(0).data,
              .layout = {},
              .places = manifest.file_layouts[0].places,
              .tensors = {}};
    manifest.files = {vote.file};
    if (json.contains("layout")) vote.layout = hash(json, "layout");
    if (json.contains("tensors")) tensors(array(json, "tensors"), manifest);
    vote.tensors = std::move(manifest.tensors);
    return vote;
  }

  SavedLayout layout() {
    const Json json = parse(text_.size());
    SavedLayout layout;
    for (const Json& item : array(json, "groups")) layout.push_back(group(item));
    return layout;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::checkpoint, fmt::format("{} {}", where_, what));
  }

  void check_hash() const {
    const std::size_t tail = kBeforeHash.size() + kHashDigits + kAfterHash.size();
    if (text_.size() < tail || text_.size() > static_cast<std::size_t>(kManifestLimit)) {
      fail(
          fmt::format("has {} bytes, a manifest has {} to {}", text_.size(), tail, kManifestLimit));
    }
    const std::string_view body = text_.substr(0, text_.size() - tail);
    const std::string_view end = text_.substr(body.size());
    if (!end.starts_with(kBeforeHash) || !end.ends_with(kAfterHash)) {
      fail(fmt::format("of {} bytes does not end in its hash: it is cut off or changed",
                       text_.size()));
    }
    const std::string_view written = end.substr(kBeforeHash.size(), kHashDigits);
    const std::string computed = text_hash(body);
    if (written != computed) {
      fail(fmt::format("of {} bytes is changed: hash {}, it says {}", text_.size(), computed,
                       written));
    }
  }

  /// The hash proves that the file is as written, not who wrote it: depth, keys and values are
  /// bounded all the same.
  [[nodiscard]] Json parse(std::size_t bytes) const {
    constexpr std::size_t kBytesPerValue = 2;  // of a list of digits, more of anything else
    return parse_json(text_, where_,
                      {.bytes = static_cast<std::uint64_t>(kManifestLimit),
                       .depth = kDepth,
                       .values = 1000 + bytes / kBytesPerValue,
                       .unique_keys = true,
                       .kind = ErrorKind::checkpoint});
  }

  const Json& member(const Json& json, const char* key) const {
    const auto found = json.find(key);
    if (!json.is_object() || found == json.end()) fail(fmt::format("lacks '{}'", key));
    return *found;
  }
  const Json& object(const Json& json, const char* key) const {
    const Json& value = member(json, key);
    if (!value.is_object()) fail(fmt::format("'{}' is not an object", key));
    return value;
  }
  const Json& array(const Json& json, const char* key) const {
    const Json& value = member(json, key);
    if (!value.is_array()) fail(fmt::format("'{}' is not an array", key));
    return value;
  }
  std::string text(const Json& json, const char* key) const {
    const Json& value = member(json, key);
    if (!value.is_string()) fail(fmt::format("'{}' is not a string", key));
    return value.get<std::string>();
  }
  std::int64_t number(const Json& value, const char* key, std::int64_t min,
                      std::int64_t max) const {
    const bool too_large =
        value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(max);
    if (!value.is_number_integer() || too_large || value.get<std::int64_t>() < min ||
        value.get<std::int64_t>() > max) {
      fail(fmt::format("'{}' is not a whole number from {} to {}", key, min, max));
    }
    return value.get<std::int64_t>();
  }
  std::int64_t integer(const Json& json, const char* key, std::int64_t min,
                       std::int64_t max) const {
    return number(member(json, key), key, min, max);
  }

  CheckpointState state(const Json& json) const {
    CheckpointState state;
    state.step = integer(json, "step", 0, kMax);
    state.samples = integer(json, "samples", 0, kMax);
    state.optimizer_steps = integer(json, "optimizer_steps", 0, kMax);
    const Json& scale = member(json, "loss_scale");
    if (!scale.is_number() || !std::isfinite(scale.get<double>()))
      fail("'loss_scale' is not a number");
    state.loss_scale = scale.get<double>();
    state.good_steps = integer(json, "good_steps", 0, kMax);
    state.skipped_steps = integer(json, "skipped_steps", 0, kMax);
    if (json.contains("phase")) state.phase = static_cast<int>(integer(json, "phase", 0, 1 << 16));
    if (json.contains("tolerated_steps"))
      state.tolerated_steps = integer(json, "tolerated_steps", 0, kMax);
    state.world_size = static_cast<int>(integer(json, "world_size", 1, 1 << 24));
    if (json.contains("train_samples"))
      state.train_samples = integer(json, "train_samples", 0, kMax);
    if (json.contains("base")) state.base = text(json, "base");
    if (json.contains("origin")) state.origin = text(json, "origin");
    if (json.contains("class_names")) {
      for (const Json& name : array(json, "class_names")) {
        if (!name.is_string()) fail("'class_names' holds what is not a string");
        state.class_names.push_back(name.get<std::string>());
      }
    }
    state.recipe = text(json, "recipe");
    return state;
  }

  std::string hash(const Json& json, const char* key) const {
    std::string hash = text(json, key);
    const bool digits = hash.size() == kHashDigits && std::ranges::all_of(hash, [](char c) {
                          return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
                        });
    if (!digits) fail(fmt::format("has a '{}' that is not {} hex digits", key, kHashDigits));
    return hash;
  }

  Range range(const Json& json, const char* key, std::int64_t max) const {
    const Json& list = array(json, key);
    if (list.size() != 2) fail(fmt::format("has a '{}' that is not two numbers", key));
    const Range range{number(list[0], key, 0, max), number(list[1], key, 0, max)};
    if (range.end < range.begin) fail(fmt::format("has a '{}' that ends before it begins", key));
    return range;
  }

  std::vector<std::int64_t> shape(const Json& list, const std::string& name) const {
    if (!list.is_array()) fail(fmt::format("gives '{}' no shape", name));
    std::vector<std::int64_t> shape;
    for (const Json& dim : list) shape.push_back(number(dim, "shape", 0, kMax));
    if (num_elements(shape) < 0)
      fail(fmt::format("gives '{}' a shape of more than 2^60 elements", name));
    return shape;
  }

  Piece part(const Json& item) const {
    if (!item.is_array() || (item.size() != 2 && item.size() != 6) || !item[0].is_string())
      fail("has a part of a parameter that is not [name, shape] with four edges or none");
    Piece part(item[0].get<std::string>(), shape(item[1], item[0].get<std::string>()));
    if (part.numel() == 0) fail(fmt::format("has a part of '{}' without elements", part.name));
    if (item.size() == 2) return part;
    const auto edge = [&](std::size_t i) { return number(item[i], "parts", 0, kMax); };
    const Range rows{edge(2), edge(3)}, columns{edge(4), edge(5)};
    if (rows.empty() || rows.end > part.rows.end || columns.empty() ||
        columns.end > part.columns.end) {
      fail(fmt::format("gives '{}' of {} rows and {} columns the {}", part.name, part.rows.end,
                       part.columns.end, box_text(rows, columns)));
    }
    part.rows = rows;
    part.columns = columns;
    return part;
  }

  SavedGroup group(const Json& json) const {
    SavedGroup group;
    group.padded = integer(json, "padded", 1, kMax);
    group.shards = static_cast<int>(integer(json, "shards", 1, kMaxRanks));
    group.holders = static_cast<int>(integer(json, "holders", 1, kMaxRanks));
    group.place = to_index(integer(json, "place", 0, kMaxStates));
    if (group.padded % group.shards != 0) {
      fail(
          fmt::format("divides a group of {} elements into {} shards", group.padded, group.shards));
    }
    std::int64_t end = 0;
    std::size_t rules = 0;
    for (const Json& item : array(json, "parameters")) {
      SavedParameter parameter{.offset = integer(item, "offset", end, group.padded),
                               .parts = {},
                               .rule = to_index(integer(item, "rule", 0, kMaxStates))};
      end = parameter.offset;
      for (const Json& one : array(item, "parts")) {
        parameter.parts.push_back(part(one));
        if (parameter.parts.back().numel() > group.padded - end) {
          fail(fmt::format("puts '{}' behind the end of its group of {} elements",
                           parameter.parts.back().name, group.padded));
        }
        end += parameter.parts.back().numel();
      }
      rules = std::max(rules, parameter.rule + 1);
      group.parameters.push_back(std::move(parameter));
    }
    for (const Json& item : array(json, "states")) {
      SavedState state{.range = range(item, "range", group.padded), .prefixes = {}};
      for (const Json& prefix : array(item, "prefixes")) {
        if (!prefix.is_string()) fail("'prefixes' holds what is not a string");
        state.prefixes.push_back(prefix.get<std::string>());
      }
      if (state.prefixes.size() < rules) {
        fail(fmt::format("names a state for {} of {} rules", state.prefixes.size(), rules));
      }
      group.states.push_back(std::move(state));
    }
    if (std::cmp_greater(group.states.size(), kMaxStates))
      fail(fmt::format("has a group of {} states", group.states.size()));
    return group;
  }

  void layouts(const Json& json, Manifest& manifest) const {
    const auto num_files = static_cast<std::int64_t>(array(json, "files").size());
    for (const Json& item : array(json, "groups")) {
      manifest.groups.push_back(group(item));
      const SavedGroup& last = manifest.groups.back();
      if (last.shards > num_files || last.holders > num_files / last.shards) {
        fail(fmt::format("divides a group among {} x {} ranks, it lists {} files", last.shards,
                         last.holders, num_files));
      }
    }
    for (const Json& list : array(json, "layouts")) {
      if (!list.is_array()) fail("has a layout that is not a list of groups");
      std::vector<std::size_t> layout;
      for (const Json& item : list) {
        layout.push_back(to_index(
            number(item, "layouts", 0, static_cast<std::int64_t>(manifest.groups.size()) - 1)));
        if (std::ranges::count(layout, layout.back()) > 1) fail("has a layout with a group twice");
      }
      manifest.layouts.push_back(std::move(layout));
    }
  }

  /// What a file has of a layout; a vote names the layout by its hash.
  FileLayout file_layout(const Json& item, const FileRecord& file, const Manifest& manifest,
                         bool is_vote) const {
    FileLayout held;
    if (!item.contains("layout")) return held;
    held.data = integer(item, "data", 0, file.bytes);
    for (const Json& place : array(item, "at")) {
      if (!place.is_array() || place.size() != 2)
        fail(fmt::format("gives {} a place that is not two numbers", file.name));
      held.places.push_back({static_cast<int>(number(place[0], "at", 0, kMaxRanks)),
                             static_cast<int>(number(place[1], "at", 0, kMaxRanks))});
    }
    if (is_vote) return held;
    held.layout = to_index(
        integer(item, "layout", 0, static_cast<std::int64_t>(manifest.layouts.size()) - 1));
    for (const std::size_t group : manifest.layouts[held.layout]) {
      if (manifest.groups[group].place >= held.places.size())
        fail(fmt::format("gives {} {} places, its layout has more", file.name, held.places.size()));
    }
    return held;
  }

  void files(const Json& list, Manifest& manifest, bool is_vote = false) {
    for (const Json& item : list) {
      FileRecord file{text(item, "name"), integer(item, "bytes", 0, 4 * kMax - 1), {}};
      const bool plain = !file.name.empty() && file.name.size() <= 255 &&
                         file.name.front() != '.' && file.name != run_file::kManifest &&
                         std::ranges::all_of(file.name, [](char c) {
                           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                                  (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
                         });
      if (!plain)
        fail(fmt::format("names the file {}, which is not a plain name", shown_json(file.name)));
      file.hash = hash(item, "hash");
      if (!file_index_.emplace(file.name, manifest.files.size()).second) {
        fail(fmt::format("names the file {} twice", file.name));
      }
      if (version_ >= 3)
        manifest.file_layouts.push_back(file_layout(item, file, manifest, is_vote));
      manifest.files.push_back(std::move(file));
    }
  }

  void tensors(const Json& list, Manifest& manifest) const {
    std::set<std::string> names;
    for (const Json& item : list) {
      StoredTensor tensor{.name = text(item, "name"), .shape = {}, .boxes = {}};
      if (!names.insert(tensor.name).second)
        fail(fmt::format("has the tensor '{}' twice", tensor.name));
      if (text(item, "dtype") != "F32")
        fail(fmt::format("stores '{}' in a type other than F32", tensor.name));
      tensor.shape = shape(array(item, "shape"), tensor.name);
      const Piece whole(tensor.name, tensor.shape);
      if (version_ == 1) {
        for (const Json& slice : array(item, "slices")) add_slice(slice, whole, manifest, tensor);
      } else {
        for (const Json& box : array(item, "boxes")) add_box(box, whole, manifest, tensor);
      }
      manifest.tensors.push_back(std::move(tensor));
    }
  }

  void add_box(const Json& item, const Piece& whole, const Manifest& manifest,
               StoredTensor& tensor) const {
    if (!item.is_array() || item.size() != 6)
      fail(fmt::format("has a box of '{}' that is not a list of six numbers", tensor.name));
    std::array<std::int64_t, 6> n{};
    for (std::size_t i = 0; i < n.size(); ++i) n[i] = number(item[i], "boxes", 0, 4 * kMax - 1);
    const StoredBox box{static_cast<std::size_t>(n[0]), {n[1], n[2]}, {n[3], n[4]}, n[5]};
    if (box.file >= manifest.files.size()) {
      fail(fmt::format("puts '{}' into file {}, it lists {}", tensor.name, box.file,
                       manifest.files.size()));
    }
    if (box.rows.empty() || box.rows.end > whole.rows.end || box.columns.empty() ||
        box.columns.end > whole.columns.end) {
      fail(fmt::format("gives '{}' of {} rows and {} columns the {}", tensor.name, whole.rows.end,
                       whole.columns.end, box_text(box.rows, box.columns)));
    }
    check_bytes(manifest.files[box.file], tensor.name, box.offset,
                box.rows.size() * box.columns.size());
    tensor.boxes.push_back(box);
  }

  /// An entry of version 1: a range of the flattened tensor, which is up to three boxes.
  void add_slice(const Json& item, const Piece& whole, const Manifest& manifest,
                 StoredTensor& tensor) const {
    const std::string name = text(item, "file");
    const auto file = file_index_.find(name);
    if (file == file_index_.end()) {
      fail(fmt::format("puts '{}' into {}, which is not among its files", tensor.name,
                       shown_json(name)));
    }
    const Range range{integer(item, "begin", 0, kMax), integer(item, "end", 0, kMax)};
    const std::int64_t offset = integer(item, "offset", 0, 4 * kMax - 1);
    if (range.empty() || range.end > whole.numel()) {
      fail(fmt::format("gives '{}' of {} elements the slice [{}, {})", tensor.name, whole.numel(),
                       range.begin, range.end));
    }
    check_bytes(manifest.files[file->second], tensor.name, offset, range.size());
    for (const auto& [box, place] : slices_of({whole}, range)) {
      tensor.boxes.push_back(
          {file->second, box.rows, box.columns, offset + 4 * (place - range.begin)});
    }
  }

  void check_bytes(const FileRecord& file, const std::string& tensor, std::int64_t offset,
                   std::int64_t elements) const {
    if (offset <= file.bytes && elements <= (file.bytes - offset) / 4) return;
    fail(fmt::format("puts {} elements of '{}' at byte {} of {}, which has {} bytes", elements,
                     tensor, offset, file.name, file.bytes));
  }

  std::string_view text_;
  const std::string& where_;
  std::int64_t version_ = 0;
  std::map<std::string, std::size_t> file_index_;
};

}  // namespace

Manifest parse_manifest(std::string_view text, const std::string& where) {
  return Parser(text, where).manifest();
}

Vote parse_vote(std::string_view text, const std::string& where) {
  return Parser(text, where).vote();
}

SavedLayout parse_layout(std::string_view text, const std::string& where) {
  return Parser(text, where).layout();
}

void add_vote(Manifest& manifest, Vote vote, std::size_t layout) {
  const std::size_t file = manifest.files.size();
  manifest.files.push_back(std::move(vote.file));
  manifest.file_layouts.push_back(
      {.layout = layout, .data = vote.data, .places = std::move(vote.places)});
  if (vote.tensors.empty()) return;
  std::map<std::string_view, std::size_t> index;
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i)
    index.emplace(manifest.tensors[i].name, i);
  std::vector<StoredTensor> added;  // appended at the end: the index points into manifest.tensors
  for (StoredTensor& tensor : vote.tensors) {
    for (StoredBox& box : tensor.boxes) box.file = file;
    const auto found = index.find(tensor.name);
    if (found == index.end()) {
      added.push_back(std::move(tensor));
      continue;
    }
    StoredTensor& whole = manifest.tensors[found->second];
    if (whole.shape != tensor.shape) {
      throw Error(ErrorKind::checkpoint,
                  fmt::format("ranks disagree about the shape of '{}'", tensor.name));
    }
    whole.boxes.insert(whole.boxes.end(), tensor.boxes.begin(), tensor.boxes.end());
  }
  std::ranges::move(added, std::back_inserter(manifest.tensors));
}

}  // namespace dstrain
