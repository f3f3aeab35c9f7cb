#include <fstream>
#include <map>

#include "launcher/hosts/network_interface.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace dstrain;
using namespace dstrain::launcher;
using InterfaceKind = NetworkInterface::Kind;

namespace {

const Variables kNothingSet = [](const char*) -> const char* { return nullptr; };

void write_line(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text << "\n";
}

}  // namespace

TEST_CASE("an address of this machine is reached by loopback", "[launcher][network]") {
  for (const char* peer : {"127.0.0.1", "127.0.1.1"}) {
    const auto interface = interface_towards(peer);
    REQUIRE(interface);
    CHECK(interface->kind == InterfaceKind::loopback);
    CHECK(interface_variables(peer, kNothingSet).empty());
  }
  for (const NetworkInterface& own : list_interfaces()) {
    const auto interface = interface_towards(own.address);
    CAPTURE(own.name, own.address);
    REQUIRE(interface);
    CHECK(interface->kind == InterfaceKind::loopback);
  }
}

TEST_CASE("what is no address has no interface, and is never resolved", "[launcher][network]") {
  for (const char* peer : {"", "localhost", "h1;x", "1.2.3.4.5", "[::1", "-oProxyCommand"}) {
    CAPTURE(peer);
    CHECK_FALSE(interface_towards(peer));
    CHECK(interface_variables(peer, kNothingSet).empty());
  }
}

TEST_CASE("another machine is reached by an interface of ours with its own address",
          "[launcher][network]") {
  // TEST-NET-1 of RFC 5737: nothing is sent to it. A machine without a route has no answer.
  const auto interface = interface_towards("192.0.2.1");
  if (!interface) return;
  CHECK(interface->kind != InterfaceKind::loopback);
  bool found = false;
  for (const NetworkInterface& own : list_interfaces()) {
    found = found || (own.name == interface->name && own.address == interface->address);
  }
  CHECK(found);
  CHECK(interface_variables("192.0.2.1", kNothingSet) ==
        std::vector<std::string>{"GLOO_SOCKET_IFNAME=" + interface->name,
                                 "NCCL_SOCKET_IFNAME==" + interface->name});
  const Variables nccl_set = [](const char* name) {
    return std::string_view(name) == "NCCL_SOCKET_IFNAME" ? "ib0" : nullptr;
  };
  CHECK(interface_variables("192.0.2.1", nccl_set) ==
        std::vector<std::string>{"GLOO_SOCKET_IFNAME=" + interface->name});
}

TEST_CASE("kind and rate come from /sys/class/net", "[launcher][network]") {
  dstrain::test::TempDir folder;
  const SystemRoots roots{.sys = folder.path()};
  const auto net = folder / "class" / "net";
  write_line(net / "lo" / "type", "772");
  write_line(net / "eth0" / "type", "1");
  write_line(net / "eth0" / "device" / "vendor", "0x15b3");
  write_line(net / "eth0" / "speed", "200000");
  write_line(net / "ib0" / "type", "32");
  write_line(net / "br0" / "type", "1");
  write_line(net / "br0" / "speed", "-1");
  write_line(net / "veth" / "type", "1");
  write_line(net / "veth" / "speed", "4294967295");
  write_line(net / "wlan0" / "type", "1");
  std::filesystem::create_directories(net / "wlan0" / "wireless");
  CHECK(describe_interface("lo", roots).kind == InterfaceKind::loopback);
  CHECK(describe_interface("eth0", roots).kind == InterfaceKind::ethernet);
  CHECK(describe_interface("eth0", roots).mbit_per_s == 200000);
  CHECK(describe_interface("ib0", roots).kind == InterfaceKind::infiniband);
  CHECK(describe_interface("br0", roots).kind == InterfaceKind::virtual_link);
  CHECK(describe_interface("br0", roots).mbit_per_s == 0);
  CHECK(describe_interface("veth", roots).mbit_per_s == 0);
  CHECK(describe_interface("wlan0", roots).kind == InterfaceKind::wireless);
  CHECK(describe_interface("absent", roots).kind == InterfaceKind::other);
}
