#include "engine/data/text/file_stamp.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/data/text/hash.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kNewestNs = 2'000'000'000;
constexpr std::int64_t kSecondNs = 1'000'000'000;

}  // namespace

std::optional<std::string> stamp_of(const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return std::nullopt;
  const std::int64_t modified = status.st_mtim.tv_sec * kSecondNs + status.st_mtim.tv_nsec;
  const std::int64_t changed = status.st_ctim.tv_sec * kSecondNs + status.st_ctim.tv_nsec;
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  if (now - std::max(modified, changed) < kNewestNs) return std::nullopt;
  return fmt::format("{} {} {} {} {}", std::uint64_t{status.st_dev}, std::uint64_t{status.st_ino},
                     std::int64_t{status.st_size}, modified, changed);
}

std::optional<std::string> read_stamped(const fs::path& stamp_file, const std::string& stamp,
                                        std::uint64_t limit) {
  std::string text;
  try {
    if (!path_exists(stamp_file)) return std::nullopt;
    text = read_file(stamp_file, limit);
  } catch (const Error&) {
    return std::nullopt;  // only saves time
  }
  std::istringstream in(text);
  std::string found, content, check;
  if (!std::getline(in, found) || !std::getline(in, content) || !std::getline(in, check)) {
    return std::nullopt;
  }
  if (found != stamp || check != hash128(found + content)) return std::nullopt;
  return content;
}

void write_stamped(const fs::path& stamp_file, const std::string& stamp,
                   const std::string& content) {
  try {
    write_file_atomically(stamp_file,
                          fmt::format("{}\n{}\n{}\n", stamp, content, hash128(stamp + content)));
  } catch (const Error&) {
    return;  // only saves time: the next one computes it again
  }
}

std::string content_hash(const fs::path& file, const fs::path& memory) {
  const std::string whole = fs::absolute(file).lexically_normal().string();
  const fs::path stamp_file = memory / fmt::format("{}.seen", hash128(whole));
  const auto stamp = stamp_of(file);
  if (stamp) {
    if (auto known = read_stamped(stamp_file, *stamp)) return *known;
  }
  const MappedFile mapped(file);
  const std::string hash = hash128(mapped.text());
  // A file that changed while it was read gets no stamp.
  if (stamp && stamp_of(file) == stamp) write_stamped(stamp_file, *stamp, hash);
  return hash;
}

}  // namespace dstrain::text
