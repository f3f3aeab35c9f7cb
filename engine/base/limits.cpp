#include "engine/base/limits.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "engine/base/host_memory.h"
#include "engine/base/open_files.h"
#include "engine/base/units.h"

namespace dstrain {
namespace {

/// What threads usually have; a limit that can be raised is raised to it.
constexpr rlim_t kUsualStackBytes = rlim_t{8} << 20;

/// The soft limit; nothing where there is none.
std::optional<rlim_t> soft_limit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return std::nullopt;
  if (limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

std::string address_space_note() {
  const std::optional<rlim_t> bytes = soft_limit(RLIMIT_AS);
  if (!bytes) return {};
  return fmt::format("; this process may have {} of address space (ulimit -v, RLIMIT_AS)",
                     format_bytes(static_cast<Bytes>(*bytes)));
}

void require_stack() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kMinStackBytes) return;
  const rlim_t had = limit.rlim_cur;
  limit.rlim_cur = std::min(limit.rlim_max, kUsualStackBytes);
  // The main thread's stack grows up to the limit that holds at that time.
  if (limit.rlim_cur < kMinStackBytes || ::setrlimit(RLIMIT_STACK, &limit) != 0) {
    throw Error(ErrorKind::hosts,
                fmt::format("the stack of this process may have {} (ulimit -s, RLIMIT_STACK), and "
                            "it needs {}",
                            format_bytes(static_cast<Bytes>(had)),
                            format_bytes(static_cast<Bytes>(kMinStackBytes))),
                "raise the limit: ulimit -s 8192, LimitSTACK= of the service, or limits.conf");
  }
  // The C library took the old limit for the stacks of new threads.
  pthread_attr_t attributes{};
  if (::pthread_attr_init(&attributes) != 0) return;
  if (::pthread_attr_setstacksize(&attributes, limit.rlim_cur) == 0)
    (void)::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
}

}  // namespace

void prepare_limits() {
  (void)::signal(SIGXFSZ, SIG_IGN);
  require_stack();
}

std::string limit_note(int error) {
  if (error == EMFILE) return open_files_note(error);
  if (error == EFBIG) {
    const std::optional<rlim_t> bytes = soft_limit(RLIMIT_FSIZE);
    if (bytes) {
      return fmt::format("; a file of this process may have {} (ulimit -f, RLIMIT_FSIZE)",
                         format_bytes(static_cast<Bytes>(*bytes)));
    }
  }
  if (error == ENOMEM) return address_space_note();
  if (error == EAGAIN) {  // of a thread or process that cannot be made
    std::string note = address_space_note();
    if (const std::optional<rlim_t> processes = soft_limit(RLIMIT_NPROC)) {
      note += fmt::format("; this user may have {} processes and threads (ulimit -u, RLIMIT_NPROC)",
                          *processes);
    }
    return note;
  }
  return {};
}

std::string system_reason(int error) { return std::strerror(error) + limit_note(error); }

std::optional<Error> address_space_error(const std::error_code& code) {
  const bool memory =
      code == std::errc::not_enough_memory || code == std::errc::resource_unavailable_try_again;
  if (!memory || !soft_limit(RLIMIT_AS)) return std::nullopt;
  return host_memory_error(0);
}

}  // namespace dstrain
