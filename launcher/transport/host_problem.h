#pragma once

#include <string>
#include <string_view>

namespace dstrain::launcher {

/// Why a host has no agent; each kind has its own advice.
struct HostProblem {
  enum class Kind {
    name,            ///< the name does not resolve
    refused,         ///< no process listens on the port
    timeout,         ///< no answer, or no route
    host_key,        ///< the key changed or is unknown
    authentication,  ///< no key of ours was taken
    connection,      ///< the connection was dropped (MaxStartups, a firewall)
    no_binary,       ///< dstrain is not there
    cannot_run,      ///< it is there and does not start: other architecture, library missing
    version,         ///< it is another version
    directory,       ///< working or run directory is not there
    other
  };
  Kind kind = Kind::other;
  std::string text;  ///< one line, without the host's name
  std::string hint;
};

[[nodiscard]] const char* kind_name(HostProblem::Kind kind);
/// What ssh's exit code and standard error say about a connection that gave no hello.
[[nodiscard]] HostProblem classify_ssh(int exit_code, std::string_view standard_error);

}  // namespace dstrain::launcher
