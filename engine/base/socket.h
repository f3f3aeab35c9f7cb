#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "engine/base/unique_fd.h"

namespace dstrain {

struct ListeningSocket {
  UniqueFd fd;
  int port = 0;
};
/// Bound to that address only; port 0: a free one. "::" takes IPv4 as well. Error{hosts} says what
/// the system says.
[[nodiscard]] ListeningSocket listen_on(const std::string& address, int port);

/// Returns once the host's name stands for an address: a name server may learn it a little late.
/// Error{hosts} with the reason when it does not within `patience`.
void await_address(const std::string& host, std::chrono::milliseconds patience);

/// Numeric addresses for which the host's name, or number, stands now; empty when it stands for
/// none.
[[nodiscard]] std::vector<std::string> addresses_of(const std::string& host);

/// One attempt to connect to each address of the host's name. Error{hosts} with the reason when the
/// name stands for no address; Error{again} when no address answers before `deadline`.
[[nodiscard]] UniqueFd connect_to(const std::string& host, int port,
                                  std::chrono::steady_clock::time_point deadline);
/// Begins to connect to a numeric address, without waiting. `error` is 0 once connected,
/// EINPROGRESS while it is not known, else why it cannot be. Empty where there is no socket.
[[nodiscard]] UniqueFd start_connecting(const std::string& address, int port, int& error);

/// Small messages at once, and the end of the other side's machine noticed within a minute.
void prepare_stream(int fd);
void set_nonblocking(int fd);

/// Numeric address of this end of a connection, and of the other; empty when it is gone.
[[nodiscard]] std::string own_address(int fd);
[[nodiscard]] std::string peer_address(int fd);
/// "10.0.0.7:41234" of the other side, for messages.
[[nodiscard]] std::string peer_name(int fd);

}  // namespace dstrain
