#include "engine/hub/repository.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/printable.h"
#include "engine/hub/http.h"

namespace dstrain::hub {
namespace {

constexpr std::size_t kMaxAnswerBytes = std::size_t{32} << 20;
constexpr int kMaxPages = 1000;
constexpr std::size_t kMaxFiles = 1'000'000;
constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 45;
constexpr JsonLimits kAnswerLimits{.bytes = kMaxAnswerBytes,
                                   .depth = 40,
                                   .values = 2'000'000,
                                   .unique_keys = false,
                                   .kind = ErrorKind::data};

bool is_name_part(std::string_view text) {
  return !text.empty() && text.size() <= 96 && text.find("..") == std::string_view::npos &&
         text.find("--") == std::string_view::npos && text.front() != '-' && text.front() != '.' &&
         text.back() != '-' && text.back() != '.' && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  c == '-' || c == '_' || c == '.';
         });
}

/// "main", "v1.0", 40 digits, "refs/pr/7".
bool is_revision(std::string_view text) {
  if (!is_safe_path(text)) return false;
  return std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == '/' || c == '+';
  });
}

[[noreturn]] void refuse_name(std::string_view text, const std::string& why) {
  throw Error(ErrorKind::usage,
              fmt::format("'{}' is no name of the Hub: {}", shown(text, 200), why),
              "write hf://ORG/NAME, hf://ORG/NAME@REVISION or hf://datasets/ORG/NAME");
}

/// Takes what stands before the next slash off `rest`.
std::string_view take_part(std::string_view& rest) {
  const std::string_view part = rest.substr(0, rest.find('/'));
  rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  return part;
}

/// Whether `name` is PREFIX-00001-of-00004SUFFIX.
bool is_shard(std::string_view name, std::string_view prefix, std::string_view suffix) {
  if (name.size() < prefix.size() + suffix.size() || !name.starts_with(prefix) ||
      !name.ends_with(suffix))
    return false;
  name.remove_prefix(prefix.size());
  name.remove_suffix(suffix.size());
  return name.starts_with('-') && name.find("-of-") != std::string_view::npos &&
         name.find_first_not_of("0123456789-of") == std::string_view::npos;
}

bool is_model_text(std::string_view path) {
  constexpr std::array kNames = {"config.json", "generation_config.json",
                                 "preprocessor_config.json"};
  return std::ranges::find(kNames, path) != kNames.end();
}

bool is_tokenizer_file(std::string_view path) {
  constexpr std::array kNames = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
  return std::ranges::find(kNames, path) != kNames.end();
}

bool is_safetensors(std::string_view path) {
  return path == "model.safetensors" || path == "model.safetensors.index.json" ||
         is_shard(path, "model", ".safetensors");
}

bool is_torch_file(std::string_view path) {
  return path == "pytorch_model.bin" || path == "pytorch_model.bin.index.json" ||
         is_shard(path, "pytorch_model", ".bin");
}

bool is_data(std::string_view path) {
  if (path.starts_with('.') || path.find("/.") != std::string_view::npos) return false;
  // dataset_infos.json describes data of an old form of repositories.
  if (path == "dataset_infos.json") return false;
  return path.ends_with(".json") || path.ends_with(".jsonl") || path.ends_with(".parquet");
}

bool is_wanted(const std::string& path, Use use, bool has_safetensors) {
  switch (use) {
    case Use::config:
      return path == "config.json";
    case Use::weights:
      return is_model_text(path) || is_tokenizer_file(path) || is_safetensors(path) ||
             (!has_safetensors && is_torch_file(path));
    case Use::tokenizer:
      return path == "config.json" || is_tokenizer_file(path);
    case Use::adapter:
      return path == "adapter_config.json" || path == "adapter_model.safetensors";
    case Use::data:
      return is_data(path);
  }
  return false;
}

}  // namespace

std::string HubName::text() const {
  return fmt::format("hf://{}{}{}{}{}{}", dataset ? "datasets/" : "", id,
                     revision.empty() ? "" : "@", revision, file.empty() ? "" : "/", file);
}

std::string HubName::page(const Url& endpoint) const {
  return fmt::format("{}/{}{}", endpoint.origin(), dataset ? "datasets/" : "", id);
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_safe_path(std::string_view path) {
  constexpr std::size_t kMaxPart = 255, kMaxPath = 2048;
  if (path.empty() || path.size() > kMaxPath || path.front() == '/' || path.back() == '/')
    return false;
  if (std::ranges::any_of(path, [](unsigned char c) { return c < ' ' || c == 0x7f || c == '\\'; }))
    return false;
  if (!is_plain_text(path)) return false;
  while (!path.empty()) {
    const std::string_view part = take_part(path);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxPart) return false;
  }
  return true;
}

bool is_bare_name(std::string_view text) {
  const auto at = text.find('@');
  if (at != std::string_view::npos && !is_revision(text.substr(at + 1))) return false;
  std::string_view rest = text.substr(0, at);
  const auto slash = rest.find('/');
  // Recipes look in models/ and data/, which are no owners.
  const std::string_view owner = rest.substr(0, slash);
  return slash != std::string_view::npos && owner != "models" && owner != "data" &&
         owner != "datasets" && owner != "runs" && is_name_part(owner) &&
         is_name_part(rest.substr(slash + 1));
}

std::optional<HubName> parse_hub_name(std::string_view text) {
  constexpr std::string_view kScheme = "hf://";
  if (!text.starts_with(kScheme)) return std::nullopt;
  std::string_view rest = text.substr(kScheme.size());
  HubName name;
  std::string_view owner = take_part(rest);
  if (owner == "datasets" || owner == "models") {
    name.dataset = owner == "datasets";
    owner = take_part(rest);
  }
  std::string_view repository = take_part(rest);
  const auto at = repository.find('@');
  if (at != std::string_view::npos) {
    name.revision = repository.substr(at + 1);
    repository = repository.substr(0, at);
    if (name.revision == "refs")  // "refs/pr/7", "refs/convert/parquet"
      for (int part = 0; part < 2; ++part) name.revision += fmt::format("/{}", take_part(rest));
    if (!is_revision(name.revision)) refuse_name(text, "its revision");
  }
  if (!is_name_part(owner) || !is_name_part(repository))
    refuse_name(text, "a name has an owner and a repository of letters, digits, '-', '_' and '.'");
  name.id = fmt::format("{}/{}", owner, repository);
  name.file = rest;
  if (!name.file.empty() && !is_safe_path(name.file)) refuse_name(text, "the path of its file");
  return name;
}

std::string parse_commit(std::string_view json, const std::string& name) {
  const nlohmann::json answer = parse_json(json, name, kAnswerLimits);
  const auto sha = answer.is_object() ? answer.find("sha") : answer.end();
  if (sha == answer.end() || !sha->is_string() || !is_hex(sha->get_ref<const std::string&>(), 40))
    throw Error(ErrorKind::data, fmt::format("{}: the answer names no commit", name),
                "HF_ENDPOINT may name a server that is none of the Hub");
  return sha->get<std::string>();
}

std::vector<HubFile> parse_tree(std::string_view json, const std::string& name) {
  const nlohmann::json answer = parse_json(json, name, kAnswerLimits);
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::data, fmt::format("{}: the list of files holds {}", name, what));
  };
  if (!answer.is_array()) refuse("no list");
  std::vector<HubFile> files;
  const auto text = [](const nlohmann::json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  for (const nlohmann::json& entry : answer) {
    const std::string type = text(entry, "type"), path = text(entry, "path");
    if (!is_safe_path(path)) refuse(fmt::format("the path '{}'", shown(path, 200)));
    if (type != "file") continue;
    HubFile file{.path = path, .size = 0, .hash = Hash::sha1, .digest = text(entry, "oid")};
    const nlohmann::json* sized = &entry;
    if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
      sized = &*lfs;
      file.hash = Hash::sha256;
      file.digest = text(*lfs, "oid");
      if (file.digest.starts_with("sha256:")) file.digest.erase(0, 7);
    }
    const auto size = sized->find("size");
    if (size == sized->end() || !size->is_number_unsigned() ||
        size->get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxFileBytes))
      refuse(fmt::format("'{}' without a size", shown(path, 200)));
    file.size = size->get<std::int64_t>();
    if (!is_hex(file.digest, file.hash == Hash::sha256 ? 64 : 40))
      refuse(fmt::format("'{}' without a digest", shown(path, 200)));
    files.push_back(std::move(file));
  }
  return files;
}

std::vector<HubFile> wanted_files(const std::vector<HubFile>& files, const HubName& name, Use use) {
  const bool safe =
      std::ranges::any_of(files, [](const HubFile& file) { return is_safetensors(file.path); });
  std::vector<HubFile> wanted;
  for (const HubFile& file : files) {
    if (name.file.empty() ? is_wanted(file.path, use, safe) : file.path == name.file)
      wanted.push_back(file);
  }
  if (!wanted.empty()) return wanted;
  std::string there;
  for (std::size_t i = 0; i < std::min<std::size_t>(files.size(), 12); ++i)
    there += fmt::format("{}{}", i == 0 ? "" : ", ", shown(files[i].path, 80));
  throw Error(ErrorKind::data,
              name.file.empty()
                  ? fmt::format("{} has none of the files that are read here", name.text())
                  : fmt::format("{}: there is no such file", name.text()),
              fmt::format("it has {}{}", there.empty() ? "no files" : there,
                          files.size() > 12 ? " and more" : ""));
}

Repository::Repository(HubName name, Url endpoint, std::string token)
    : name_(std::move(name)), endpoint_(std::move(endpoint)), token_(std::move(token)) {}

std::string Repository::api() const {
  return fmt::format("{}{}api/{}/{}", endpoint_.origin(), endpoint_.target,
                     name_.dataset ? "datasets" : "models", name_.id);
}

void Repository::refuse(int status, const std::string& what) const {
  const std::string page = name_.page(endpoint_);
  if (status == 401 || status == 403)
    throw Error(ErrorKind::usage,
                fmt::format("{}: the Hub answers {}: it is gated, private or not there",
                            name_.text(), status),
                token_.empty()
                    ? fmt::format("accept the licence on its page, {}, and set HF_TOKEN to a token "
                                  "of {}/settings/tokens",
                                  page, endpoint_.origin())
                    : fmt::format("accept the licence on its page, {}; HF_TOKEN must be of the "
                                  "account that did",
                                  page));
  if (status == 404)
    throw Error(ErrorKind::usage, fmt::format("{}: {} is not there (404)", name_.text(), what),
                fmt::format("look at {}; a private repository wants HF_TOKEN", page));
  throw Error(ErrorKind::hosts, fmt::format("{}: {} answers {}", name_.text(), what, status));
}

std::string Repository::commit(int tries) const {
  if (is_hex(name_.revision, 40)) return name_.revision;
  const std::string revision = name_.revision.empty() ? "main" : name_.revision;
  const Url url =
      parse_url(fmt::format("{}/revision/{}", api(), percent_encoded(revision, /*path=*/false)),
                "HF_ENDPOINT");
  const HttpText answer = http_text({.url = url, .token = token_, .tries = tries}, kMaxAnswerBytes);
  if (answer.head.status != 200)
    refuse(answer.head.status,
           fmt::format("the repository{}",
                       name_.revision.empty() ? "" : " or its revision " + name_.revision));
  return parse_commit(answer.body, url.text());
}

std::vector<HubFile> Repository::files(const std::string& commit) const {
  Url url = parse_url(fmt::format("{}/tree/{}?recursive=true", api(), commit), "HF_ENDPOINT");
  std::vector<HubFile> all;
  std::set<std::string> seen;
  for (int page = 0; page < kMaxPages; ++page) {
    const HttpText answer = http_text({.url = url, .token = token_}, kMaxAnswerBytes);
    if (answer.head.status != 200) refuse(answer.head.status, "commit " + commit);
    for (HubFile& file : parse_tree(answer.body, url.text())) {
      if (!seen.insert(file.path).second)
        throw Error(ErrorKind::data, fmt::format("{}: the list of files names '{}' twice",
                                                 name_.text(), shown(file.path, 200)));
      all.push_back(std::move(file));
    }
    if (all.size() > kMaxFiles) break;
    const auto link = answer.head.find("link");
    const auto next = link ? next_link(*link) : std::nullopt;
    if (!next) return all;
    const Url there = resolve_location(url, *next);
    if (there.origin() != url.origin())
      throw Error(ErrorKind::data, fmt::format("{}: the list of files goes on at another host, {}",
                                               name_.text(), shown(there.origin(), 200)));
    url = there;
  }
  throw Error(ErrorKind::data, fmt::format("{}: its list of files is too long", name_.text()));
}

Url Repository::file_url(const std::string& commit, const std::string& path) const {
  return parse_url(fmt::format("{}{}{}{}/resolve/{}/{}", endpoint_.origin(), endpoint_.target,
                               name_.dataset ? "datasets/" : "", name_.id, commit,
                               percent_encoded(path, /*path=*/true)),
                   "HF_ENDPOINT");
}

}  // namespace dstrain::hub
