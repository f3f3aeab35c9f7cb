#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace dstrain {

/// Small key-value store that all ranks of a job reach; for rendezvous and votes, not for tensors.
/// Thread-safe.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until the key exists; Error{hosts} naming key and time when it does not come.
  [[nodiscard]] virtual std::string get(const std::string& key,
                                        std::chrono::milliseconds timeout) = 0;
  /// The value, or nothing when the key is not there yet.
  [[nodiscard]] virtual std::optional<std::string> try_get(const std::string& key) = 0;
  /// Adds to a counter (from 0) and returns the new value.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  /// Address by which the other ranks of the store reach this process: loopback where all are on
  /// one machine.
  [[nodiscard]] virtual std::string local_address() const { return "127.0.0.1"; }
};

struct StoreOptions {
  std::string address = "127.0.0.1";
  int port = 0;
  bool serve = false;  ///< this process is the server (rank 0)
  int listen_fd = -1;  ///< inherited listening socket for the server, -1: bind `port`
  std::chrono::milliseconds timeout{300'000};
};
/// For ranks that are threads of one process, and for a single rank.
[[nodiscard]] std::shared_ptr<Store> make_memory_store();
/// The same store under keys that begin with `prefix`: what is agreed on again is not found there.
[[nodiscard]] std::shared_ptr<Store> make_prefixed_store(std::shared_ptr<Store> store,
                                                         std::string prefix);

}  // namespace dstrain
