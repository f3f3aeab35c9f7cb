#include "engine/base/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>

#include "engine/base/error.h"
#include "engine/base/limits.h"
#include "engine/base/output_file.h"

namespace dstrain {

UniqueFd lock_run(const std::filesystem::path& run) {
  UniqueFd lock(::open(run.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock) {
    throw Error(ErrorKind::checkpoint,
                fmt::format("cannot open {}: {}", run.string(), system_reason(errno)));
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EBADF) {  // NFS: only what is open for writing can be locked, which no folder is
    lock = open_output_file(run / ".lock", {.old = OldContent::edit, .also_read = true});
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  }
  // Only a lock that is held is a reason to refuse: file systems without locks exist.
  if (errno == EWOULDBLOCK) {
    throw Error(ErrorKind::usage, fmt::format("{} is in use by another job", run.string()),
                "wait for it, or start a new run: --resume never, and no --run-name in use");
  }
  return lock;
}

}  // namespace dstrain
