#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/base/socket.h"
#include "engine/base/unique_fd.h"

namespace dstrain::launcher {

/// Every descriptor of the launcher is close-on-exec from birth.
using dstrain::set_nonblocking;
using dstrain::UniqueFd;

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

/// Error with errno's text for what the system refuses here: {hosts} where memory, descriptors or
/// processes are short, else {internal}.
[[noreturn]] void fail_system(std::string_view action);
[[nodiscard]] Pipe make_pipe();
/// /dev/null for a stream of a child.
[[nodiscard]] UniqueFd open_null();
/// Opens /dev/null on each of 0, 1, 2 that is closed, so that no later descriptor is taken for a
/// standard stream.
void fill_standard_streams();
/// Lets this process hold what the agents of so many hosts take: at most three descriptors each, by
/// ssh. Error{hosts} of require_open_files().
void require_files_of_hosts(std::size_t hosts);

/// Reads what is there without waiting, at most `limit` bytes. At the end of the file closes `fd`.
[[nodiscard]] std::string read_available(UniqueFd& fd, std::size_t limit);

}  // namespace dstrain::launcher
