#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

#include "engine/base/handshake.h"
#include "engine/base/unique_fd.h"

namespace dstrain::comm {

/// What strangers and clients may use up at most.
struct StoreLimits {
  /// A connection that has not proven itself by then is closed.
  std::chrono::milliseconds handshake{10'000};
  /// Connections that have not proven themselves yet; beyond, the oldest makes room for the next.
  std::size_t strangers = 256;
  std::size_t store_bytes = std::size_t{1} << 30U;  ///< keys and values together
};

/// The store of a job: keys, values and who waits for them, held and served by one thread. A client
/// is heard once it has proven that it knows the secret and means this purpose.
class StoreServer {
 public:
  /// `listener`: a bound stream socket. Error{hosts} when it does not listen.
  StoreServer(UniqueFd listener, const JobSecret& secret, std::string purpose,
              const StoreLimits& limits = {});
  /// Sends what it owes, for a second at most, and closes all connections.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// A connection for this process, which needs no handshake. To be taken once.
  [[nodiscard]] UniqueFd take_own_connection() { return std::move(own_); }

 private:
  UniqueFd own_;
  UniqueFd stop_;  ///< eventfd
  std::thread thread_;
};

}  // namespace dstrain::comm
