#include "engine/base/open_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "engine/base/error.h"

namespace dstrain {

void require_open_files(std::int64_t needed, const std::string& what) {
  rlimit limit{};
  const auto wanted = static_cast<rlim_t>(needed);
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(limit.rlim_max, wanted);
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= wanted) return;
  throw Error(ErrorKind::hosts,
              fmt::format("{} may need {} open files, and a process here may have {} (ulimit -n, "
                          "RLIMIT_NOFILE)",
                          what, needed, limit.rlim_max),
              fmt::format("raise the limit: ulimit -n {}, LimitNOFILE= of the service, or "
                          "limits.conf",
                          std::max<std::int64_t>(1024, needed)));
}

std::int64_t open_files_of_rank(bool all_pairs, int rank, int ranks) {
  constexpr int kManyRanks = 128;
  const std::int64_t peers = all_pairs ? ranks : std::min(ranks, kManyRanks);
  const std::int64_t served = rank == 0 && !all_pairs ? ranks : 0;
  return 64 + 4 * peers + served;
}

std::string open_files_note(int error) {
  rlimit limit{};
  if (error != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  return fmt::format("; this process may open {} files (ulimit -n, RLIMIT_NOFILE)", limit.rlim_cur);
}

}  // namespace dstrain
