#include "engine/store/job_store.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/socket.h"
#include "engine/base/units.h"
#include "engine/store/route.h"
#include "engine/store/store_frames.h"
#include "engine/store/store_server.h"

namespace dstrain {
namespace {

using comm::StoreReply;
using comm::StoreRequest;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Longest wait that a clock can add to now.
constexpr milliseconds kMaxWait = std::chrono::hours(24 * 365);

std::string seconds(milliseconds time) {
  return format_duration(static_cast<double>(time.count()) * 1e-3);
}

std::string purpose_of(int attempt) { return fmt::format("store, attempt {}", attempt); }

/// Tries until `options.timeout` is over: rank 0 may come later than this process.
UniqueFd connect(const StoreOptions& options, const std::string& name, const JobSecret& secret,
                 int attempt) {
  constexpr milliseconds kFirstPause{10};
  constexpr milliseconds kLastPause{500};
  const Clock::time_point deadline = Clock::now() + std::min(options.timeout, kMaxWait);
  std::minstd_rand random(std::random_device{}());
  for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLastPause)) {
    std::string reason;
    try {
      UniqueFd fd = connect_to(options.address, options.port, deadline);
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      shake_hands(fd.get(), Handshake::Side::client, secret, purpose_of(attempt),
                  static_cast<int>(std::clamp<std::int64_t>(left.count(), 1, 1 << 30)));
      return fd;
    } catch (const Error& error) {
      reason = error.what();
      // No time mends this, and ranks of one machine would wait for half an hour.
      if (reason == std::strerror(ENETUNREACH) && options.address.starts_with("127."))
        throw Error(ErrorKind::hosts, fmt::format("no way to {}: {}", name, reason),
                    "the loopback interface of this machine is down: ip link set lo up");
      if (error.kind() != ErrorKind::again || Clock::now() + pause >= deadline) {
        throw Error(ErrorKind::hosts,
                    fmt::format("no store of the job at {} within {}: {}", name,
                                seconds(options.timeout), reason),
                    error.kind() == ErrorKind::again || error.hint().empty()
                        ? "rank 0 serves it: see its log, and check MASTER_ADDR, MASTER_PORT and "
                          "firewalls"
                        : error.hint());
      }
    }
    // Ranks that were turned away together must not come back together.
    std::this_thread::sleep_for(pause / 2 + milliseconds(random() % (pause.count() / 2 + 1)));
  }
}

/// Requests of any threads over one connection; one more thread reads the answers.
class JobStore final : public Store {
 public:
  JobStore(const StoreOptions& options, const JobSecret& secret, int attempt)
      : name_(fmt::format("{}:{}", options.address, options.port)),
        local_address_(local_address_towards(options.address)),
        patience_(std::min(options.timeout, kMaxWait)) {
    if (options.serve) {
      serve(options, secret, attempt);
    } else {
      fd_ = connect(options, name_, secret, attempt);
    }
    reader_ = std::thread([this] { read_answers(); });
  }

  ~JobStore() override {
    ::shutdown(fd_.get(), SHUT_RDWR);
    reader_.join();
  }
  JobStore(const JobStore&) = delete;
  JobStore& operator=(const JobStore&) = delete;

  void set(const std::string& key, const std::string& value) override {
    StoreRequest request{.id = 0,
                         .operation = StoreRequest::Operation::set,
                         .amount = 0,
                         .key = key,
                         .value = value};
    (void)ask("set", std::move(request));
  }

  std::string get(const std::string& key, milliseconds timeout) override {
    const StoreRequest request{
        .id = 0, .operation = StoreRequest::Operation::get, .amount = 0, .key = key, .value = {}};
    if (auto reply = call("get", request, std::clamp(timeout, milliseconds(0), kMaxWait))) {
      return std::move(reply->value);
    }
    // It may have come in this moment, and a wait of no time at all still looks.
    if (auto value = try_get(key)) return *std::move(value);
    throw Error(ErrorKind::hosts,
                fmt::format("key '{}' did not come to the store at {} within {}", key, name_,
                            seconds(timeout)),
                "a rank that should have set it has ended or is late; see its log");
  }

  std::optional<std::string> try_get(const std::string& key) override {
    StoreReply reply = ask("get", {.id = 0,
                                   .operation = StoreRequest::Operation::try_get,
                                   .amount = 0,
                                   .key = key,
                                   .value = {}});
    if (reply.status == StoreReply::Status::absent) return std::nullopt;
    return std::move(reply.value);
  }

  std::int64_t add(const std::string& key, std::int64_t amount) override {
    const StoreReply reply = ask("add", {.id = 0,
                                         .operation = StoreRequest::Operation::add,
                                         .amount = amount,
                                         .key = key,
                                         .value = {}});
    return reply.sum;
  }

  std::string local_address() const override { return local_address_; }

 private:
  struct Call {
    std::optional<StoreReply> reply;
    std::condition_variable answered;
  };

  void serve(const StoreOptions& options, const JobSecret& secret, int attempt) {
    try {
      UniqueFd listener = options.listen_fd >= 0 ? UniqueFd(options.listen_fd)
                                                 : listen_on(options.address, options.port).fd;
      server_.emplace(std::move(listener), secret, purpose_of(attempt));
    } catch (const Error& error) {
      throw Error(error.kind(),
                  fmt::format("cannot serve the store of the job on {}: {}", name_, error.what()),
                  "another process may hold the port: choose another MASTER_PORT");
    }
    fd_ = server_->take_own_connection();
  }

  [[noreturn]] void fail(const char* operation, const std::string& key, const std::string& reason,
                         ErrorKind kind = ErrorKind::again) const {
    throw Error(kind, fmt::format("store at {}: {} '{}' failed: {}", name_, operation, key, reason),
                kind == ErrorKind::again
                    ? "rank 0 serves the store and has probably ended; see its log"
                    : "");
  }

  /// For what is answered at once.
  StoreReply ask(const char* operation, const StoreRequest& request) {
    std::optional<StoreReply> reply = call(operation, request, patience_);
    if (!reply)
      fail(operation, request.key, fmt::format("no answer within {}", seconds(patience_)));
    switch (reply->status) {
      case StoreReply::Status::good:
      case StoreReply::Status::absent:
        break;
      case StoreReply::Status::full:
        fail(operation, request.key, "the store is full", ErrorKind::internal);
      case StoreReply::Status::no_number:
        fail(operation, request.key, "the value is no number, or the sum has over 64 bits",
             ErrorKind::internal);
    }
    return *std::move(reply);
  }

  /// Nothing when no answer comes in time; the request is then taken back.
  std::optional<StoreReply> call(const char* operation, StoreRequest request, milliseconds limit) {
    DSTRAIN_CHECK(request.key.size() <= comm::kMaxKeyBytes,
                  fmt::format("a key of {} bytes for the store", request.key.size()));
    DSTRAIN_CHECK(
        request.value.size() <= comm::kMaxValueBytes,
        fmt::format("{} bytes for the store's key '{}'", request.value.size(), request.key));
    const Clock::time_point deadline = Clock::now() + limit;
    Call call;
    std::unique_lock lock(mutex_);
    if (!end_.empty()) fail(operation, request.key, end_);
    request.id = next_id_++;
    calls_.emplace(request.id, &call);
    lock.unlock();
    send(request);
    lock.lock();
    call.answered.wait_until(lock, deadline, [&] { return call.reply || !end_.empty(); });
    calls_.erase(request.id);
    if (call.reply) return std::move(call.reply);
    if (!end_.empty()) fail(operation, request.key, end_);
    lock.unlock();
    if (request.operation == StoreRequest::Operation::get) {
      request.operation = StoreRequest::Operation::forget;
      request.key.clear();
      send(request);
    }
    return std::nullopt;
  }

  /// What cannot be sent is the end of the connection, which the reader tells to all callers.
  void send(const StoreRequest& request) {
    const std::string frame = encode(request);
    const std::lock_guard lock(sending_);
    for (std::string_view rest = frame; !rest.empty();) {
      const ssize_t sent = ::send(fd_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        rest.remove_prefix(static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN) {
        wait_until_ready(POLLOUT);
      } else if (errno != EINTR) {
        ::shutdown(fd_.get(), SHUT_RDWR);
        return;
      }
    }
  }

  void wait_until_ready(short events) const {
    pollfd entry{.fd = fd_.get(), .events = events, .revents = 0};
    (void)::poll(&entry, 1, -1);
  }

  void read_answers() {
    FrameReader input = comm::make_frame_reader();
    std::array<char, std::size_t{64} << 10U> buffer{};
    std::string reason = "rank 0 has closed the connection";
    for (;;) {
      const ssize_t count = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
      if (count == 0) break;
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) {
        wait_until_ready(POLLIN);
        continue;
      }
      if (count < 0) {
        reason = std::strerror(errno);
        break;
      }
      input.append({buffer.data(), static_cast<std::size_t>(count)});
      for (; input.state() == FrameReader::State::complete; input.pop()) {
        if (auto reply = comm::decode_reply(input.front())) hand_out(*std::move(reply));
      }
      input.compact();
      if (input.state() == FrameReader::State::too_long) {
        reason = "rank 0 sent what is no answer";
        break;
      }
    }
    const std::lock_guard lock(mutex_);
    end_ = std::move(reason);
    for (const auto& [id, call] : calls_) call->answered.notify_all();
  }

  /// The answer to a call that was given up is dropped.
  void hand_out(StoreReply reply) {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(reply.id);
    if (found == calls_.end()) return;
    found->second->reply = std::move(reply);
    found->second->answered.notify_all();
  }

  std::string name_;
  std::string local_address_;
  milliseconds patience_;
  std::optional<comm::StoreServer> server_;  ///< of rank 0
  UniqueFd fd_;
  std::mutex sending_;
  std::mutex mutex_;  ///< of the following
  std::map<std::uint32_t, Call*> calls_;
  std::uint32_t next_id_ = 0;
  std::string end_;  ///< why the connection has ended; empty while it stands
  std::thread reader_;
};

}  // namespace

std::shared_ptr<Store> make_job_store(const StoreOptions& options, const JobSecret& secret,
                                      int attempt) {
  DSTRAIN_CHECK(options.port >= 0 && options.port <= 65535, fmt::format("port {}", options.port));
  return std::make_shared<JobStore>(options, secret, attempt);
}

}  // namespace dstrain
