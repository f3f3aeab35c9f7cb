#pragma once

#include <string>

namespace dstrain {

/// This machine's address as a host at `address` sees it: loopback when `address` is loopback, else
/// the source address of the route there. A machine whose own name stands for 127.0.1.1 in its
/// hosts file still gives the address of a network interface. Sends nothing.
[[nodiscard]] std::string local_address_towards(const std::string& address);

}  // namespace dstrain
