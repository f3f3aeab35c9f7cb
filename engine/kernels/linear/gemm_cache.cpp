#include "engine/kernels/linear/gemm_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"

namespace dstrain {
namespace {

constexpr int kFormat = 1;
constexpr std::uint64_t kLargestFile = std::uint64_t{16} << 20;

/// Held while the file is read and written; of no effect where the file system has no locks.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& file)
      : fd_(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (fd_ >= 0) (void)::flock(fd_, LOCK_EX);
  }
  ~FileLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

std::optional<GemmChoice> choice_of(const nlohmann::json& entry) {
  if (!entry.is_object() || !entry.contains("algorithm") || !entry.contains("time_us"))
    return std::nullopt;
  const auto &words = entry["algorithm"], &time = entry["time_us"];
  GemmChoice choice;
  if (!words.is_array() || words.size() != choice.algorithm.size() || !time.is_number())
    return std::nullopt;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].is_number_unsigned()) return std::nullopt;
    choice.algorithm[i] = words[i].get<std::uint64_t>();
  }
  choice.time_s = 1e-6 * time.get<double>();
  return choice;
}

std::map<std::string, GemmChoice, std::less<>> choices_of(const nlohmann::json& content) {
  std::map<std::string, GemmChoice, std::less<>> choices;
  if (content.value("format", nlohmann::json()) != kFormat) return {};
  const auto entries = content.find("products");
  if (entries == content.end() || !entries->is_object()) return {};
  for (const auto& [key, entry] : entries->items()) {
    if (const auto choice = choice_of(entry)) choices.emplace(key, *choice);
  }
  return choices;
}

}  // namespace

std::string GemmKey::text() const {
  const auto operand = [](c10::ScalarType type, std::int64_t stride, bool transposed) {
    return fmt::format("{}/{}{}", c10::toString(type), stride, transposed ? "T" : "");
  };
  return fmt::format("{} x {} x {}, a {}, b {}, out {}, align {}{}{}{}", m, n, k,
                     operand(a_type, a_stride, a_transposed),
                     operand(b_type, b_stride, b_transposed), operand(out_type, out_stride, false),
                     alignment, bias ? ", bias" : "", row_sums ? ", row sums" : "",
                     fast ? ", fast" : "");
}

GemmCache::GemmCache(std::filesystem::path file, std::string_view shipped)
    : file_(std::move(file)), choices_(read()) {
  const auto content = json_or_null(shipped, {.bytes = kLargestFile});
  if (content.is_object()) shipped_ = choices_of(content);
}

std::optional<GemmChoice> GemmCache::find(std::string_view key) const {
  for (const Choices* choices : {&choices_, &shipped_}) {
    if (const auto found = choices->find(key); found != choices->end()) return found->second;
  }
  return std::nullopt;
}

GemmChoice GemmCache::add(const std::string& key, const GemmChoice& choice) {
  merge(key, choice, /*replace=*/false);
  return choices_.at(key);
}

void GemmCache::replace(const std::string& key, const GemmChoice& choice) {
  merge(key, choice, /*replace=*/true);
}

GemmCache::Choices GemmCache::read() const {
  try {
    if (file_.empty() || !path_exists(file_)) return {};
    return choices_of(read_json_object(file_, {.bytes = kLargestFile}));
  } catch (const Error&) {  // unreadable: as if it were not there
    return {};
  }
}

void GemmCache::merge(const std::string& key, const GemmChoice& choice, bool replace) {
  if (file_.empty()) {
    choices_.insert_or_assign(key, choice);
    return;
  }
  try {
    std::filesystem::create_directories(file_.parent_path());
    const FileLock lock(file_.string() + ".lock");
    for (const auto& [other, theirs] : read()) choices_.insert_or_assign(other, theirs);
    if (!choices_.contains(key) || replace) {
      choices_.insert_or_assign(key, choice);
      nlohmann::json entries = nlohmann::json::object();
      for (const auto& [name, each] : choices_) {
        entries[name] = {{"algorithm", each.algorithm}, {"time_us", 1e6 * each.time_s}};
      }
      const nlohmann::json content = {{"format", kFormat}, {"products", std::move(entries)}};
      write_file_atomically(file_, json_text(content, 1));
    }
  } catch (const std::exception& error) {  // a full or read-only disk must not stop a run
    if (!std::exchange(warned_, true))
      log_warning("choices of matrix products are not kept: {}", error.what());
    if (replace) choices_.erase(key);
    choices_.emplace(key, choice);
  }
}

std::string gemm_cache_name(std::string_view gpu, std::size_t version) {
  std::string name;
  for (const char c : gpu) {
    const auto byte = static_cast<unsigned char>(c);
    name += std::isalnum(byte) != 0 ? static_cast<char>(std::tolower(byte)) : '-';
  }
  return fmt::format("gemm-{}-{}.json", name, version);
}

std::filesystem::path gemm_cache_file(std::string_view gpu, std::size_t version) {
  const auto folder_in = [](const char* variable, const char* below) -> std::filesystem::path {
    const char* value = std::getenv(variable);
    if (value == nullptr || *value == '\0') return {};
    return std::filesystem::path(value) / below;
  };
  std::filesystem::path folder = folder_in("DSTRAIN_CACHE", "");
  if (folder.empty()) folder = folder_in("HOME", ".cache/dstrain");
  return folder.empty() ? folder : folder / gemm_cache_name(gpu, version);
}

}  // namespace dstrain
