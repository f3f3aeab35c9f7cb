#include "engine/hub/transfer_lock.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/host_name.h"
#include "engine/base/make_folder.h"
#include "engine/base/output_file.h"
#include "engine/base/system_files.h"

namespace dstrain::hub {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHolderFile = "holder";

/// One word that processes have in common which see each other: host, its start, and the space of
/// process numbers, which each container has its own of.
std::string process_space() {
  std::array<char, 128> name{};
  const auto size = ::readlink("/proc/self/ns/pid", name.data(), name.size() - 1);
  return fmt::format("{}/{}/{}", host_name(), read_first_line("/proc/sys/kernel/random/boot_id"),
                     size > 0 ? name.data() : "");
}

/// When the process began, in ticks since the machine's start; empty where there is none, and for
/// one that has ended and that its parent has not asked for.
std::string start_of(const std::string& process) {
  constexpr std::size_t kState = 3 - kFirstProcessField, kStart = 22 - kFirstProcessField;
  const std::vector<std::string> fields = read_process_fields(process);
  if (fields.size() <= kStart || fields[kState] == "Z" || fields[kState] == "X") return "";
  return fields[kStart];
}

/// Whether the text is of a process of this machine that is no more.
bool is_of_dead_process(const std::string& holder) {
  std::istringstream words(holder);
  std::string space, process, start;
  if (!(words >> space >> process >> start) || space != process_space()) return false;
  if (process.find_first_not_of("0123456789") != std::string::npos) return false;
  return start_of(process) != start;
}

std::string own_text() {
  static std::atomic<int> count = 0;
  const std::string self = std::to_string(::getpid());
  return fmt::format("{} {} {} {}.{}\n", process_space(), self, start_of(self), system_time_ns(),
                     ++count);
}

std::int64_t size_at(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_size : -1;
}

/// A name beside `folder` that no other process or thread takes.
fs::path name_beside(const fs::path& folder) {
  static std::atomic<int> count = 0;
  return fmt::format("{}.{}.{}.{}", folder.string(), host_name(), ::getpid(), ++count);
}

void remove_lock(const fs::path& folder) {
  (void)::unlink((folder / kHolderFile).c_str());
  (void)::rmdir(folder.c_str());
}

}  // namespace

TransferLock::TransferLock(fs::path folder, fs::path part, const std::function<bool()>& done,
                           std::chrono::milliseconds stale)
    : folder_(std::move(folder)), part_(std::move(part)), own_(own_text()) {
  constexpr std::chrono::milliseconds kPause{200};
  make_folder(folder_.parent_path());
  std::string seen;
  std::int64_t size = -1;
  auto since = std::chrono::steady_clock::now();
  while (!done()) {
    if (take()) {
      holds_ = !done();  // the holder before may have ended in between
      if (!holds_) remove_lock(folder_);
      return;
    }
    const std::string now = holder();
    const std::int64_t now_size = size_at(part_);
    if (now != seen || now_size != size) {
      seen = now;
      size = now_size;
      since = std::chrono::steady_clock::now();
    }
    if (is_of_dead_process(seen) || std::chrono::steady_clock::now() - since >= stale) {
      take_away(seen);
      continue;
    }
    std::this_thread::sleep_for(kPause);
  }
}

TransferLock::~TransferLock() {
  if (holds_ && is_still_ours()) remove_lock(folder_);
}

std::string TransferLock::holder() const {
  return read_system_file(folder_ / kHolderFile);  // empty when it went away meanwhile
}

bool TransferLock::is_still_ours() const { return holder() == own_; }

/// Makes the folder with its holder elsewhere and gives it its name, which fails where a folder
/// with something in it is there.
bool TransferLock::take() const {
  const fs::path fresh = name_beside(folder_);
  make_folder(fresh);
  write_file_atomically(fresh / kHolderFile, own_);
  if (::rename(fresh.c_str(), folder_.c_str()) == 0) return true;
  const int error = errno;
  remove_lock(fresh);
  if (error == ENOTEMPTY || error == EEXIST) return false;
  throw Error(ErrorKind::checkpoint,
              fmt::format("cannot make {}: {}", folder_.string(), std::strerror(error)));
}

/// Two that take the same lock away: the second would take what the first has made anew, and gives
/// it back.
void TransferLock::take_away(const std::string& holder) const {
  const fs::path away = name_beside(folder_);
  if (::rename(folder_.c_str(), away.c_str()) != 0) return;
  if (read_system_file(away / kHolderFile) != holder &&
      ::rename(away.c_str(), folder_.c_str()) == 0)
    return;
  remove_lock(away);
}

}  // namespace dstrain::hub
