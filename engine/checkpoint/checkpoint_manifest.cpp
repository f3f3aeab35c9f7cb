#include "engine/checkpoint/checkpoint_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/run_layout.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "dstrain-checkpoint";
constexpr std::int64_t kVersion = 1;
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
    const std::int64_t version = integer(json, "version", 0, kMost);
    if (version != kVersion) {
      fail(fmt::format("has format version {}, this dstrain reads version {}", version, kVersion));
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
    constexpr std::size_t kBytesPerValue = 4;  // of a list of small numbers, more of anything else
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
    state.world_size = static_cast<int>(integer(json, "world_size", 1, 1 << 24));
    if (json.contains("base")) state.base = text(json, "base");
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
      StoredTensor tensor{.name = text(item, "name"), .shape = {}, .slices = {}};
      if (!names.insert(tensor.name).second)
        fail(fmt::format("has the tensor '{}' twice", tensor.name));
      if (text(item, "dtype") != "F32")
        fail(fmt::format("stores '{}' in a type other than F32", tensor.name));
      for (const Json& dim : array(item, "shape"))
        tensor.shape.push_back(number(dim, "shape", 0, kMost));
      const std::int64_t elements = num_elements(tensor.shape);
      if (elements < 0)
        fail(fmt::format("gives '{}' a shape of more than 2^60 elements", tensor.name));
      for (const Json& slice : array(item, "slices")) {
        const std::string name = text(slice, "file");
        const auto file = file_index_.find(name);
        if (file == file_index_.end()) {
          fail(fmt::format("puts '{}' into {}, which is not among its files", tensor.name,
                           shown_json(name)));
        }
        const StoredSlice stored{
            file->second,
            {integer(slice, "begin", 0, kMost), integer(slice, "end", 0, kMost)},
            integer(slice, "offset", 0, 4 * kMost - 1)};
        const std::int64_t bytes = manifest.files[stored.file].bytes;
        if (stored.range.empty() || stored.range.end > elements) {
          fail(fmt::format("gives '{}' of {} elements the slice [{}, {})", tensor.name, elements,
                           stored.range.begin, stored.range.end));
        }
        if (stored.offset > bytes || stored.range.size() > (bytes - stored.offset) / 4) {
          fail(fmt::format("puts {} elements of '{}' at byte {} of {}, which has {} bytes",
                           stored.range.size(), tensor.name, stored.offset, name, bytes));
        }
        tensor.slices.push_back(stored);
      }
      manifest.tensors.push_back(std::move(tensor));
    }
  }

  std::string_view text_;
  const std::string& where_;
  std::map<std::string, std::size_t> file_index_;
};

}  // namespace

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
  if (!s.base.empty()) state["base"] = s.base;
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
    Json slices = Json::array();
    for (const StoredSlice& slice : tensor.slices) {
      slices.push_back({{"file", manifest.files.at(slice.file).name},
                        {"begin", slice.range.begin},
                        {"end", slice.range.end},
                        {"offset", slice.offset}});
    }
    text +=
        separator +
        json_text(Json{
            {"name", tensor.name}, {"dtype", "F32"}, {"shape", tensor.shape}, {"slices", slices}});
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
    for (StoredSlice& slice : tensor.slices) slice.file += first_file;
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
    whole.slices.insert(whole.slices.end(), tensor.slices.begin(), tensor.slices.end());
  }
  std::ranges::move(added, std::back_inserter(manifest.tensors));
}

void check_coverage(Manifest& manifest, const std::string& where) {
  for (StoredTensor& tensor : manifest.tensors) {
    std::ranges::sort(tensor.slices, {},
                      [](const StoredSlice& slice) { return slice.range.begin; });
    const std::int64_t elements = num_elements(tensor.shape);
    std::int64_t covered = 0;
    for (const StoredSlice& slice : tensor.slices) {
      if (slice.range.begin != covered) {
        const bool gap = slice.range.begin > covered;
        throw Error(
            ErrorKind::checkpoint,
            fmt::format("{} {} elements [{}, {}) of '{}'", where, gap ? "lacks" : "has twice the",
                        gap ? covered : slice.range.begin,
                        gap ? slice.range.begin : std::min(covered, slice.range.end), tensor.name));
      }
      covered = slice.range.end;
    }
    if (covered != elements) {
      throw Error(ErrorKind::checkpoint, fmt::format("{} lacks elements [{}, {}) of '{}'", where,
                                                     covered, elements, tensor.name));
    }
  }
}

}  // namespace dstrain
