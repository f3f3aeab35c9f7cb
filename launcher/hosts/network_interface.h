#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/system_files.h"
#include "launcher/hosts/allocation.h"

namespace dstrain::launcher {

/// One network interface with one of its addresses.
struct NetworkInterface {
  enum class Kind {
    loopback,
    ethernet,
    infiniband,  ///< IP over InfiniBand
    wireless,
    virtual_link,  ///< bridge, veth, bond, tunnel: no hardware of its own
    other
  };
  std::string name;     ///< "eth0"
  std::string address;  ///< IPv4 or IPv6, numeric, without a scope
  Kind kind = Kind::other;
  int mbit_per_s = 0;  ///< link rate; 0: not known
};

[[nodiscard]] const char* kind_name(NetworkInterface::Kind kind);

/// Kind and link rate of the interface `name`, without an address.
[[nodiscard]] NetworkInterface describe_interface(const std::string& name,
                                                  const SystemRoots& roots);
/// Interfaces that are up, one entry per IPv4 or IPv6 address; link-local addresses are left out.
[[nodiscard]] std::vector<NetworkInterface> list_interfaces(const SystemRoots& roots = {});

/// The interface, with its address, by which this machine sends to `peer_address` (numeric, IPv4 or
/// IPv6; nothing is resolved and nothing is sent). Loopback for an address of this machine itself;
/// nothing without a route or for what is no address.
[[nodiscard]] std::optional<NetworkInterface> interface_towards(const std::string& peer_address,
                                                                const SystemRoots& roots = {});

/// NAME=VALUE entries for the ranks of a node that reaches the others of its job at `peer_address`:
/// GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME with one concrete name, since Gloo takes nothing else
/// and both guess otherwise. None for a variable that `variables` has, for a job of one node (an
/// empty or local `peer_address`), or without a route.
[[nodiscard]] std::vector<std::string> interface_variables(const std::string& peer_address,
                                                           const Variables& variables,
                                                           const SystemRoots& roots = {});

}  // namespace dstrain::launcher
