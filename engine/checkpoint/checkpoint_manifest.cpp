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
#include "engine/base/json.h"
#include "engine/base/run_layout.h"
#include "engine/mesh/pieces.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "dstrain-checkpoint";
constexpr std::int64_t kVersion = 2;
constexpr std::int64_t kMost = std::int64_t{1}
                               << 60;  ///< elements or steps; 4 x 2^60 bytes still fit
constexpr std::size_t kDepth = 8;
constexpr std::size_t kHashDigits = 32;
constexpr std::string_view kBeforeHash = ",\n\"hash\": \"";
constexpr std::string_view kAfterHash = "\"}\n";

std::string hash_of(std::string_view text) {
  FileHash hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.hex();
}

/// Reads a manifest's values; every complaint names the source.
class Parser {
  using Json = nlohmann::json;

 public:
  Parser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Manifest manifest() {
    check_hash();
    const Json json = parse();
    if (!json.is_object()) fail("is not a JSON object");
    if (text(json, "format") != kFormat) fail("is not a checkpoint of dstrain");
    version_ = integer(json, "version", 0, kMost);
    if (version_ < 1 || version_ > kVersion) {
      fail(fmt::format("has format version {}, this dstrain reads versions 1 to {}", version_,
                       kVersion));
    }
    Manifest manifest{.state = state(object(json, "state")), .files = {}, .tensors = {}};
    files(array(json, "files"), manifest);
    tensors(array(json, "tensors"), manifest);
    return manifest;
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
    const std::string computed = hash_of(body);
    if (written != computed) {
      fail(fmt::format("of {} bytes is changed: hash {}, it says {}", text_.size(), computed,
                       written));
    }
  }

  /// The hash proves that the file is as written, not who wrote it: depth, keys and values are
  /// bounded all the same.
  [[nodiscard]] Json parse() const {
    constexpr std::size_t kBytesPerValue = 2;  // of a list of digits, more of anything else
    return parse_json(text_, where_,
                      {.bytes = static_cast<std::uint64_t>(kManifestLimit),
                       .depth = kDepth,
                       .values = 1000 + text_.size() / kBytesPerValue,
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
  std::int64_t number(const Json& value, const char* key, std::int64_t least,
                      std::int64_t most) const {
    const bool too_large =
        value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(most);
    if (!value.is_number_integer() || too_large || value.get<std::int64_t>() < least ||
        value.get<std::int64_t>() > most) {
      fail(fmt::format("'{}' is not a whole number from {} to {}", key, least, most));
    }
    return value.get<std::int64_t>();
  }
  std::int64_t integer(const Json& json, const char* key, std::int64_t least,
                       std::int64_t most) const {
    return number(member(json, key), key, least, most);
  }

  CheckpointState state(const Json& json) const {
    CheckpointState state;
    state.step = integer(json, "step", 0, kMost);
    state.samples = integer(json, "samples", 0, kMost);
    state.optimizer_steps = integer(json, "optimizer_steps", 0, kMost);
    const Json& scale = member(json, "loss_scale");
    if (!scale.is_number() || !std::isfinite(scale.get<double>()))
      fail("'loss_scale' is not a number");
    state.loss_scale = scale.get<double>();
    state.good_steps = integer(json, "good_steps", 0, kMost);
    state.skipped_steps = integer(json, "skipped_steps", 0, kMost);
    if (json.contains("phase")) state.phase = static_cast<int>(integer(json, "phase", 0, 1 << 16));
    if (json.contains("tolerated_steps"))
      state.tolerated_steps = integer(json, "tolerated_steps", 0, kMost);
    state.world_size = static_cast<int>(integer(json, "world_size", 1, 1 << 24));
    if (json.contains("train_samples"))
      state.train_samples = integer(json, "train_samples", 0, kMost);
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

  void files(const Json& list, Manifest& manifest) {
    for (const Json& item : list) {
      FileRecord file{text(item, "name"), integer(item, "bytes", 0, 4 * kMost - 1),
                      text(item, "hash")};
      const bool plain = !file.name.empty() && file.name.size() <= 255 &&
                         file.name.front() != '.' && file.name != run_file::kManifest &&
                         std::ranges::all_of(file.name, [](char c) {
                           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                                  (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
                         });
      if (!plain)
        fail(fmt::format("names the file {}, which is not a plain name", shown_json(file.name)));
      const bool digits =
          file.hash.size() == kHashDigits && std::ranges::all_of(file.hash, [](char c) {
            return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
          });
      if (!digits)
        fail(fmt::format("gives {} a hash that is not {} hex digits", file.name, kHashDigits));
      if (!file_index_.emplace(file.name, manifest.files.size()).second) {
        fail(fmt::format("names the file {} twice", file.name));
      }
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
      for (const Json& dim : array(item, "shape"))
        tensor.shape.push_back(number(dim, "shape", 0, kMost));
      if (num_elements(tensor.shape) < 0)
        fail(fmt::format("gives '{}' a shape of more than 2^60 elements", tensor.name));
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
    for (std::size_t i = 0; i < n.size(); ++i) n[i] = number(item[i], "boxes", 0, 4 * kMost - 1);
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
    const Range range{integer(item, "begin", 0, kMost), integer(item, "end", 0, kMost)};
    const std::int64_t offset = integer(item, "offset", 0, 4 * kMost - 1);
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

/// Goes down the rows of a tensor from one edge of a box to the next and keeps the boxes that the
/// rows between two edges meet: they must stand side by side without a gap.
class CoverageCheck {
 public:
  CoverageCheck(const StoredTensor& tensor, const std::string& where)
      : tensor_(tensor), whole_(tensor.name, tensor.shape), where_(where) {}

  /// The boxes are sorted by their first rows, none is empty or outside of the tensor.
  void run() {
    if (whole_.numel() == 0) return;
    auto next = tensor_.boxes.begin();
    for (std::int64_t row = 0; row < whole_.rows.end;) {
      while (!ends_.empty() && ends_.begin()->first == row) close(ends_.begin());
      for (; next != tensor_.boxes.end() && next->rows.begin == row; ++next) open(*next);
      std::int64_t edge = ends_.empty() ? whole_.rows.end : ends_.begin()->first;
      if (next != tensor_.boxes.end()) edge = std::min(edge, next->rows.begin);
      if (width_ != whole_.columns.end) fail("lacks the", {row, edge}, first_gap());
      row = edge;
    }
  }

 private:
  using Ends = std::multimap<std::int64_t, const StoredBox*>;

  void open(const StoredBox& box) {
    const auto after = open_.lower_bound(box.columns.begin);
    if (after != open_.end()) refuse_overlap(box, *after->second);
    if (after != open_.begin()) refuse_overlap(box, *std::prev(after)->second);
    open_.emplace_hint(after, box.columns.begin, &box);
    ends_.emplace(box.rows.end, &box);
    width_ += box.columns.size();
  }
  void close(Ends::iterator end) {
    width_ -= end->second->columns.size();
    open_.erase(end->second->columns.begin);
    ends_.erase(end);
  }
  void refuse_overlap(const StoredBox& a, const StoredBox& b) const {
    const Range columns = intersect(a.columns, b.columns);
    if (!columns.empty()) fail("has twice the", intersect(a.rows, b.rows), columns);
  }
  [[nodiscard]] Range first_gap() const {
    std::int64_t covered = 0;
    for (const auto& [begin, box] : open_) {
      if (begin > covered) return {covered, begin};
      covered = box->columns.end;
    }
    return {covered, whole_.columns.end};
  }
  [[noreturn]] void fail(const char* how, Range rows, Range columns) const {
    throw Error(ErrorKind::checkpoint, fmt::format("{} {} {} of '{}'", where_, how,
                                                   box_text(rows, columns), tensor_.name));
  }

  const StoredTensor& tensor_;
  Piece whole_;
  const std::string& where_;
  std::map<std::int64_t, const StoredBox*> open_;  ///< by first column
  Ends ends_;                                      ///< of the open ones, by end of rows
  std::int64_t width_ = 0;                         ///< columns of the open ones together
};

}  // namespace

std::string box_text(Range rows, Range columns) {
  return fmt::format("rows [{}, {}), columns [{}, {})", rows.begin, rows.end, columns.begin,
                     columns.end);
}

std::string manifest_text(const Manifest& manifest) {
  const CheckpointState& s = manifest.state;
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
  std::string text =
      fmt::format("{{\"format\": \"{}\",\n\"version\": {},\n\"state\": {},\n\"files\": [", kFormat,
                  kVersion, json_text(state));
  const char* separator = "\n";
  for (const FileRecord& file : manifest.files) {
    text += separator +
            json_text(Json{{"name", file.name}, {"bytes", file.bytes}, {"hash", file.hash}});
    separator = ",\n";
  }
  text += "],\n\"tensors\": [";
  separator = "\n";
  for (const StoredTensor& tensor : manifest.tensors) {
    Json boxes = Json::array();
    for (const StoredBox& box : tensor.boxes) {
      boxes.push_back(Json::array({box.file, box.rows.begin, box.rows.end, box.columns.begin,
                                   box.columns.end, box.offset}));
    }
    text +=
        separator +
        json_text(Json{
            {"name", tensor.name}, {"dtype", "F32"}, {"shape", tensor.shape}, {"boxes", boxes}});
    separator = ",\n";
  }
  text += "]";
  const std::string hash = hash_of(text);
  return text.append(kBeforeHash).append(hash).append(kAfterHash);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  return Parser(text, where).manifest();
}

void merge_manifest(Manifest& manifest, const Manifest& part) {
  const std::size_t first_file = manifest.files.size();
  manifest.files.insert(manifest.files.end(), part.files.begin(), part.files.end());
  std::map<std::string_view, std::size_t> index;
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i)
    index.emplace(manifest.tensors[i].name, i);
  std::vector<StoredTensor> added;  // appended at the end: the index points into manifest.tensors
  for (StoredTensor tensor : part.tensors) {
    for (StoredBox& box : tensor.boxes) box.file += first_file;
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

void check_coverage(Manifest& manifest, const std::string& where) {
  for (StoredTensor& tensor : manifest.tensors) {
    std::ranges::sort(tensor.boxes, {}, [](const StoredBox& box) {
      return std::pair(box.rows.begin, box.columns.begin);
    });
    CoverageCheck(tensor, where).run();
  }
}

}  // namespace dstrain
