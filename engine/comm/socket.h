#pragma once

#include <chrono>
#include <string>

#include "engine/base/unique_fd.h"

namespace dstrain::comm {

struct ListeningSocket {
  UniqueFd fd;
  int port = 0;
};
/// Bound to that address only; port 0: a free one. Error{hosts} says what the system says.
[[nodiscard]] ListeningSocket listen_on(const std::string& address, int port);

/// One attempt to connect to each address of the host's name. Error{hosts} with the reason when the
/// name stands for no address; Error{again} when no address answers before `deadline`.
[[nodiscard]] UniqueFd connect_to(const std::string& host, int port,
                                  std::chrono::steady_clock::time_point deadline);

/// Small messages at once, and the end of the other side's machine noticed within a minute.
void prepare_stream(int fd);
void set_nonblocking(int fd);
/// "10.0.0.7:41234" of the other side, for messages.
[[nodiscard]] std::string peer_address(int fd);

}  // namespace dstrain::comm
