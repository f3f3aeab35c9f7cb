#include <ATen/ops/ones.h>
#include <arpa/inet.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/store/route.h"
#include "test/comm/operations.h"
#include "test/store/store_semantics.h"
#include "test/support/catch.h"

// By which address Gloo's connections go, as the kernel lists the sockets of this process.

namespace dstrain {
namespace {

/// A memory store that says where this process is.
class StoreAt final : public Store {
 public:
  explicit StoreAt(std::string address) : address_(std::move(address)) {}
  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return store_->get(key, timeout);
  }
  std::optional<std::string> try_get(const std::string& key) override {
    return store_->try_get(key);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return store_->add(key, amount);
  }
  std::string local_address() const override { return address_; }

 private:
  std::shared_ptr<Store> store_ = make_memory_store();
  std::string address_;
};

/// Inodes of the sockets that this process holds.
std::set<std::string> own_sockets() {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

/// IPv4 addresses of both ends of this process's TCP sockets, of listening ones the own end.
std::set<std::string> own_tcp_addresses() {
  const std::set<std::string> sockets = own_sockets();
  std::set<std::string> addresses;
  std::ifstream file("/proc/net/tcp");
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::vector<std::string> fields;
    for (std::string word; words >> word;) fields.push_back(word);
    if (fields.size() < 10 || !sockets.contains(fields[9])) continue;
    for (const std::size_t end : {std::size_t{1}, std::size_t{2}}) {
      if (end == 2 && fields[3] == "0A") continue;  // listens
      in_addr address{};
      address.s_addr = static_cast<in_addr_t>(std::stoul(fields[end].substr(0, 8), nullptr, 16));
      addresses.insert(::inet_ntoa(address));
    }
  }
  return addresses;
}

/// What two ranks of a Gloo group in this process connect by.
std::set<std::string> addresses_of_group(const std::string& local_address) {
  const auto store = std::make_shared<StoreAt>(local_address);
  std::vector<std::unique_ptr<Communicator>> ranks(2);
  std::vector<std::string> errors(2);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto index = static_cast<std::size_t>(rank);
        try {
          ranks[index] = make_communicator(
              store, {.name = "pair", .ranks = test::all_ranks(2), .rank = rank, .timeout_s = 20});
          at::Tensor x = at::ones({8});
          ranks[index]->all_reduce(x, ReduceOp::sum);
        } catch (const std::exception& error) {
          errors[index] = error.what();
        }
      });
    }
  }
  REQUIRE(errors == std::vector<std::string>(2));
  return own_tcp_addresses();
}

struct InterfaceVariable {
  explicit InterfaceVariable(const char* name) { ::setenv("GLOO_SOCKET_IFNAME", name, 1); }
  ~InterfaceVariable() { ::unsetenv("GLOO_SOCKET_IFNAME"); }
  InterfaceVariable(const InterfaceVariable&) = delete;
  InterfaceVariable& operator=(const InterfaceVariable&) = delete;
};

TEST_CASE("Gloo's connections go by the address that the store names", "[comm]") {
  REQUIRE(own_tcp_addresses().empty());
  REQUIRE(addresses_of_group("127.0.0.1") == std::set<std::string>{"127.0.0.1"});
  // 192.0.2.0/24 is kept for documentation: the way there is the default route, where there is one.
  const std::string outside = local_address_towards("192.0.2.1");
  if (outside.find(':') != std::string::npos)
    return;  // an address that /proc/net/tcp does not list
  REQUIRE(addresses_of_group(outside) == std::set<std::string>{outside});
}

TEST_CASE("GLOO_SOCKET_IFNAME names the interface of Gloo's connections", "[comm]") {
  const InterfaceVariable variable("lo");
  const std::string outside = local_address_towards("192.0.2.1");
  REQUIRE(addresses_of_group(outside) == std::set<std::string>{"127.0.0.1"});
}

TEST_CASE("what is no interface in GLOO_SOCKET_IFNAME is an error that says so", "[comm]") {
  const char* name = GENERATE("^lo,docker0", "no-such-nic");
  const InterfaceVariable variable(name);
  const auto store = std::make_shared<StoreAt>("127.0.0.1");
  (void)store->add("comm/pair/arrived", 1);
  const Error error = test::error_of([&] {
    (void)make_communicator(
        store, {.name = "pair", .ranks = test::all_ranks(2), .rank = 0, .timeout_s = 5});
  });
  REQUIRE(error.kind() == ErrorKind::usage);
  REQUIRE(
      test::contains(error, fmt::format("GLOO_SOCKET_IFNAME='{}' is no network interface", name)));
}

}  // namespace
}  // namespace dstrain
