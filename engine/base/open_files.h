#pragma once

#include <cstdint>
#include <string>

namespace dstrain {

/// Lets this process open `needed` files at once, as far as its hard limit allows. Error{hosts}
/// that names the limit and `what` needs them when it does not.
void require_open_files(std::int64_t needed, const std::string& what);

/// What a rank of `ranks` may need: its connections to other ranks, beside files of data, logs and
/// devices. Gloo (`all_pairs`) connects each pair, some times over; NCCL has rings and trees, whose
/// number does not grow with the ranks of a large job. Rank 0 serves a connection to each.
[[nodiscard]] std::int64_t open_files_of_rank(bool all_pairs, int rank, int ranks);

/// "; this process may open 16 files (ulimit -n, RLIMIT_NOFILE)" when `error` (an errno) says that
/// this limit was met, else empty.
[[nodiscard]] std::string open_files_note(int error);

}  // namespace dstrain
