#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/allocation.h"

namespace dstrain::launcher {

/// Largest hostfile, in bytes; a larger one is refused unread.
inline constexpr std::size_t kHostfileLimit = 1U << 20;

/// Text of a hostfile -> hosts in file order (reach ssh, or local for this machine's own name and
/// localhost). Grammar in hostfiles/README.md. `name` is what errors call the text. Error{usage}
/// lists every bad line as "name:line:column: found, expected"; nothing is ever executed or
/// resolved.
[[nodiscard]] std::vector<Host> parse_hostfile(std::string_view text, const std::string& name,
                                               const std::string& this_host);
/// Whether a hostfile says slots=, port= and gpus= nowhere, as those that PBS and LSF write: each
/// line is a slot then, and a host stands as often as it takes ranks.
[[nodiscard]] bool is_list_of_names(std::string_view text);
/// "a:8,user@b:4": the same for --hosts, places as "--hosts:column".
[[nodiscard]] std::vector<Host> parse_hosts(std::string_view text, const std::string& this_host);
/// Applies --include, then --exclude ("a@b:0,2"); a host with listed GPUs has that many slots. The
/// order of `hosts` stays. Error{usage} for a host or GPU that is none of theirs, or when none is
/// left.
[[nodiscard]] std::vector<Host> filter_hosts(std::vector<Host> hosts, std::string_view include,
                                             std::string_view exclude);

/// Slurm's node list syntax, "n[1-3,07],login,r[1-2]u[01-04]" -> names in order, at most `limit`.
/// Error{usage} with the column, also for a name that stands twice. See slurm/README.md.
[[nodiscard]] std::vector<std::string> expand_node_list(std::string_view list,
                                                        std::size_t limit = 65536);
/// Slurm's repeated counts, "2(x3),1" -> {2, 2, 2, 1}; at most `limit`, Error{usage} as above.
[[nodiscard]] std::vector<int> expand_counts(std::string_view counts, std::size_t limit = 65536);

}  // namespace dstrain::launcher
