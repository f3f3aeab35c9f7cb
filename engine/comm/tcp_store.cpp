#include "engine/comm/tcp_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <type_traits>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/store/route.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Pause between two looks for a key: short at first, so that a start is quick, and long when many
/// ranks wait for a late one. c10d's own wait would shut out the thread that sets the key or
/// watches another, and logs every timeout.
milliseconds pause_after(Clock::duration waited) {
  const auto eighth = std::chrono::duration_cast<milliseconds>(waited / 8);
  return std::clamp(eighth, milliseconds{1}, milliseconds{250});
}

/// First line: c10 appends a stack to its messages.
std::string first_line(const char* text) {
  const std::string_view view(text);
  return std::string(view.substr(0, view.find('\n')));
}

std::string duration_text(milliseconds time) {
  return format_duration(static_cast<double>(time.count()) * 1e-3);
}

class TcpStore final : public Store {
 public:
  explicit TcpStore(const StoreOptions& options)
      : name_(fmt::format("{}:{}", options.address, options.port)),
        local_address_(local_address_towards(options.address)) {
    c10d::TCPStoreOptions c10d_options;
    c10d_options.port = static_cast<std::uint16_t>(options.port);
    c10d_options.isServer = options.serve;
    c10d_options.waitWorkers = false;
    c10d_options.timeout = options.timeout;
    if (options.serve && options.listen_fd >= 0) c10d_options.masterListenFd = options.listen_fd;
    try {
      store_ = c10::make_intrusive<c10d::TCPStore>(options.address, c10d_options);
    } catch (const std::exception& error) {
      if (options.serve) {
        throw Error(ErrorKind::hosts,
                    fmt::format("cannot serve the store of the job on {}: {}", name_,
                                first_line(error.what())),
                    "another process may hold the port: choose another MASTER_PORT");
      }
      throw Error(
          ErrorKind::hosts,
          fmt::format("no store of the job at {} within {}: {}", name_,
                      duration_text(options.timeout), first_line(error.what())),
          "rank 0 serves it: see its log, and check MASTER_ADDR, MASTER_PORT and firewalls");
    }
  }

  void set(const std::string& key, const std::string& value) override {
    guarded("set", key,
            [&] { store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
  }

  std::string get(const std::string& key, milliseconds timeout) override {
    const Clock::time_point start = Clock::now();
    for (;;) {
      if (std::optional<std::string> value = try_get(key)) return *std::move(value);
      const Clock::duration waited = Clock::now() - start;
      if (waited >= timeout) {
        throw Error(ErrorKind::hosts,
                    fmt::format("key '{}' did not come to the store at {} within {}", key, name_,
                                duration_text(timeout)),
                    "a rank that should have set it has ended or is late; see its log");
      }
      std::this_thread::sleep_for(pause_after(waited));
    }
  }

  std::optional<std::string> try_get(const std::string& key) override {
    return guarded("get", key, [&]() -> std::optional<std::string> {
      if (!store_->check({key})) return std::nullopt;
      return read(key);
    });
  }

  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return guarded("add", key, [&] { return store_->add(key, amount); });
  }

  std::string local_address() const override { return local_address_; }

 private:
  std::string read(const std::string& key) {
    const std::vector<std::uint8_t> value = store_->get(key);
    return {value.begin(), value.end()};
  }

  template <class Call>
  std::invoke_result_t<Call> guarded(const char* operation, const std::string& key, Call&& call) {
    try {
      return call();
    } catch (const std::exception& error) {
      throw Error(ErrorKind::again,
                  fmt::format("store at {}: {} '{}' failed: {}", name_, operation, key,
                              first_line(error.what())),
                  "rank 0 serves the store and has probably ended; see its log");
    }
  }

  std::string name_;
  std::string local_address_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::shared_ptr<Store> make_tcp_store(const StoreOptions& options) {
  DSTRAIN_CHECK(options.port >= 0 && options.port <= 65535, fmt::format("port {}", options.port));
  return std::make_shared<TcpStore>(options);
}

}  // namespace dstrain
