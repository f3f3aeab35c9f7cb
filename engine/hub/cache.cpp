#include "engine/hub/cache.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/make_folder.h"
#include "engine/base/system_files.h"

namespace dstrain::hub {
namespace {

namespace fs = std::filesystem;

/// The variable's value; nothing where it is not set or empty.
std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

bool is_true(const char* name) {
  std::string value = environment(name).value_or("");
  for (char& c : value)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

fs::path home_path(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  return environment("HOME").value_or("/") + path.substr(1);
}

fs::path hub_home() {
  if (const auto home = environment("HF_HOME")) return home_path(*home);
  const fs::path caches = home_path(environment("XDG_CACHE_HOME").value_or("~/.cache"));
  return caches / "huggingface";
}

std::string hub_token() {
  constexpr std::uint64_t kMaxToken = 4096;
  std::string source = "HF_TOKEN";
  std::string token = environment("HF_TOKEN").value_or("");
  if (token.empty()) {
    const auto named = environment("HF_TOKEN_PATH");
    const fs::path file = named ? home_path(*named) : hub_home() / "token";
    if (path_kind(file) != PathKind::file) return "";
    source = file.string();
    token = read_file(file, kMaxToken);
  }
  token = std::string(trim(token));
  // It becomes a line of HTTP.
  if (std::ranges::any_of(token, [](unsigned char c) { return c <= ' ' || c >= 0x7f; }))
    throw Error(ErrorKind::usage, fmt::format("{} holds what is no token", source),
                "a token of the Hub is one word of letters, digits and '_'");
  return token;
}

/// From the folder of snapshots/COMMIT/PATH to that of the repository.
fs::path up_from(const std::string& path) {
  fs::path up = "../..";
  for (const char c : path)
    if (c == '/') up /= "..";
  return up;
}

}  // namespace

fs::path hub_cache() {
  if (const auto cache = environment("HF_HUB_CACHE")) return home_path(*cache);
  return hub_home() / "hub";
}

HubPlaces hub_places() {
  HubPlaces places;
  places.cache = hub_cache();
  try {
    places.endpoint =
        parse_url(environment("HF_ENDPOINT").value_or("https://huggingface.co"), "HF_ENDPOINT");
  } catch (const Error& error) {
    throw Error(ErrorKind::usage, error.what(), "write https://HOST, or take HF_ENDPOINT away");
  }
  if (places.endpoint.target.back() != '/') places.endpoint.target += '/';
  places.token = hub_token();
  places.offline =
      is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE") || is_true("DSTRAIN_OFFLINE");
  return places;
}

CachedRepository::CachedRepository(const fs::path& cache, const HubName& name) {
  std::string folder = fmt::format("{}--{}", name.dataset ? "datasets" : "models", name.id);
  folder.replace(folder.find('/'), 1, "--");
  folder_ = cache / folder;
  locks_ = cache / ".locks" / folder;
}

fs::path CachedRepository::blob(const HubFile& file) const {
  return folder_ / "blobs" / file.digest;
}

fs::path CachedRepository::lock(const HubFile& file) const {
  return locks_ / (file.digest + ".dstrain");
}

fs::path CachedRepository::snapshot(const std::string& commit) const {
  return folder_ / "snapshots" / commit;
}

bool CachedRepository::has(const std::string& commit, const HubFile& file) const {
  struct stat status {};
  return ::stat((snapshot(commit) / file.path).c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         status.st_size == file.size;
}

std::optional<std::string> CachedRepository::known_commit(const std::string& revision) const {
  std::string commit = revision;
  if (!is_hex(revision, 40)) {
    constexpr std::uint64_t kMaxRef = 256;
    const fs::path ref = folder_ / "refs" / (revision.empty() ? "main" : revision);
    if (path_kind(ref) != PathKind::file) return std::nullopt;
    commit = read_file(ref, kMaxRef);
    while (!commit.empty() && commit.back() == '\n') commit.pop_back();
  }
  if (!is_hex(commit, 40) || path_kind(snapshot(commit)) != PathKind::folder) return std::nullopt;
  return commit;
}

void CachedRepository::link(const std::string& commit, const HubFile& file) const {
  const fs::path pointer = snapshot(commit) / file.path;
  const fs::path target = up_from(file.path) / "blobs" / file.digest;
  make_folder(pointer.parent_path());
  std::error_code error;
  if (fs::read_symlink(pointer, error) == target && has(commit, file)) return;
  const fs::path fresh = pointer.string() + fmt::format(".{}.dstrain", ::getpid());
  (void)::unlink(fresh.c_str());
  if (::symlink(target.c_str(), fresh.c_str()) == 0) {
    if (::rename(fresh.c_str(), pointer.c_str()) == 0) return;
    const int reason = errno;
    (void)::unlink(fresh.c_str());
    errno = reason;
  } else if (errno == EPERM || errno == ENOSYS || errno == EOPNOTSUPP) {
    // No links here: the file itself, as the Hub's programs do.
    if (::rename(blob(file).c_str(), pointer.c_str()) == 0) return;
  }
  throw Error(ErrorKind::checkpoint,
              fmt::format("cannot make {}: {}", pointer.string(), std::strerror(errno)));
}

void CachedRepository::note(const std::string& revision, const std::string& commit) const {
  if (is_hex(revision, 40)) return;
  const fs::path ref = folder_ / "refs" / (revision.empty() ? "main" : revision);
  make_folder(ref.parent_path());
  make_folder(snapshot(commit));  // a ref to a snapshot that is not there is an error to Python
  write_file_atomically(ref, commit);
}

std::optional<fs::path> cached_path(const HubName& name) {
  const CachedRepository repository(hub_cache(), name);
  const auto commit = repository.known_commit(name.revision);
  if (!commit) return std::nullopt;
  fs::path path = repository.snapshot(*commit);
  if (name.file.empty()) return path;
  path /= name.file;
  if (path_kind(path) != PathKind::file) return std::nullopt;
  return path;
}

bool is_cached_for(const HubName& name, Use use) {
  const auto path = cached_path(name);
  if (!path || !name.file.empty()) return path.has_value();
  const auto has = [&](const auto& wanted) {
    std::error_code error;
    for (fs::recursive_directory_iterator it(*path, error), end; !error && it != end;
         it.increment(error))
      if (wanted(it->path().filename().string())) return true;
    return false;
  };
  switch (use) {
    case Use::config:
      return has([](const std::string& file) { return file == "config.json"; });
    case Use::weights:
      return has([](const std::string& file) {
        return file.ends_with(".safetensors") || file.ends_with(".bin");
      });
    case Use::tokenizer:
      return has([](const std::string& file) { return file == "tokenizer.json"; });
    case Use::adapter:
      return has([](const std::string& file) { return file.starts_with("adapter_model"); });
    case Use::data:
      return has([](const std::string&) { return true; });
  }
  return true;
}

std::optional<HubName> name_of_snapshot(const fs::path& path) {
  // .../models--ORG--NAME/snapshots/COMMIT[/FILE]
  const std::vector<fs::path> parts(path.begin(), path.end());
  for (std::size_t i = 1; i + 1 < parts.size(); ++i) {
    const std::string commit = parts[i + 1].string();
    if (parts[i] != "snapshots" || !is_hex(commit, 40)) continue;
    std::string folder = parts[i - 1].string();
    const bool dataset = folder.starts_with("datasets--");
    if (!dataset && !folder.starts_with("models--")) return std::nullopt;
    folder = folder.substr(folder.find("--") + 2);
    const auto between = folder.find("--");
    if (between == std::string::npos) return std::nullopt;
    fs::path file;
    for (std::size_t k = i + 2; k < parts.size(); ++k) file /= parts[k];
    try {
      return parse_hub_name(fmt::format(
          "hf://{}{}/{}@{}{}{}", dataset ? "datasets/" : "", folder.substr(0, between),
          folder.substr(between + 2), commit, file.empty() ? "" : "/", file.string()));
    } catch (const Error&) {
      return std::nullopt;  // a folder that only looks like one
    }
  }
  return std::nullopt;
}

}  // namespace dstrain::hub
