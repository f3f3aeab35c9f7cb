#include "engine/store/store_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/socket.h"
#include "engine/store/store_frames.h"
#include "engine/store/store_output.h"
#include "engine/store/store_table.h"

namespace dstrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How old a connection must be before it makes room for another: one that has said nothing at all
/// goes first, since a client speaks as soon as it is connected.
constexpr milliseconds kSilentPatience{100};
constexpr milliseconds kSpeakingPatience{1000};
/// Pause of accepting when there is no room.
constexpr milliseconds kAcceptPause{20};
constexpr int kAcceptsAtOnce = 64;
/// A client that does not read its answers is not read either.
constexpr std::size_t kMaxOwedBytes = 2 * kMaxValueBytes;
constexpr std::size_t kMaxWaits = 4096;
constexpr milliseconds kLastWords{1000};

struct Connection {
  UniqueFd fd;
  std::optional<Handshake> handshake;  ///< until it has proven itself
  Clock::time_point since{};
  bool has_spoken = false;
  bool dead = false;
  FrameReader input = make_frame_reader();
  StoreOutput output;
  std::map<std::uint32_t, std::string> waits;  ///< request -> key
  std::uint32_t events = 0;                    ///< what epoll watches
};

/// Lives on the server's thread alone. Connections have serial numbers, so that an event of one
/// that was closed is never taken for its successor's.
class Service {
 public:
  /// Runs until the eventfd `stop` is written to.
  Service(UniqueFd listener, int stop, UniqueFd own, const JobSecret& secret, std::string purpose,
          const StoreLimits& limits)
      : listener_(std::move(listener)),
        stop_(stop),
        secret_(secret),
        purpose_(std::move(purpose)),
        limits_(limits),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        table_(limits.store_bytes) {
    watch(listener_.get(), kListener, EPOLLIN, EPOLL_CTL_ADD);
    watch(stop_, kStop, EPOLLIN, EPOLL_CTL_ADD);
    add(std::move(own), std::nullopt);
  }

  void run() {
    std::array<epoll_event, 128> events{};
    while (!stopping_ || (owes() && Clock::now() < last_words_until_)) {
      const int count =
          ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms());
      if (count < 0 && errno != EINTR) fail("wait for");
      for (int i = 0; i < count; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        handle(event.data.u64, event.events);
      }
      drop_late();
      bury();
    }
  }

 private:
  using Serial = std::uint64_t;
  static constexpr Serial kListener = 0;
  static constexpr Serial kStop = 1;

  [[noreturn]] static void fail(std::string_view action) {
    throw Error(ErrorKind::internal,
                fmt::format("the store cannot {} connections: {}", action, std::strerror(errno)));
  }

  void watch(int fd, Serial serial, std::uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = serial;
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) fail("watch");
  }

  int timeout_ms() const {
    Clock::time_point until = Clock::time_point::max();
    if (!strangers_.empty()) {
      until = connections_.at(*strangers_.begin()).since + limits_.handshake;
    }
    if (accepting_paused_) until = std::min(until, Clock::now() + kAcceptPause);
    if (stopping_) until = std::min(until, last_words_until_);
    if (until == Clock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    return static_cast<int>(std::max<std::int64_t>(left, 0));
  }

  void handle(Serial serial, std::uint32_t events) {
    if (serial == kStop) {
      stopping_ = true;
      last_words_until_ = Clock::now() + kLastWords;
      watch(stop_, kStop, 0, EPOLL_CTL_DEL);
      if (!accepting_paused_) watch(listener_.get(), kListener, 0, EPOLL_CTL_DEL);
      return;
    }
    if (serial == kListener) {
      accept_some();
      return;
    }
    const auto found = connections_.find(serial);
    if (found == connections_.end() || found->second.dead) return;
    Connection& connection = found->second;
    if ((events & EPOLLIN) != 0) {
      read(serial, connection);
    } else if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
      kill(serial, connection);
    }
    if (!connection.dead && (events & EPOLLOUT) != 0) flush(serial, connection);
  }

  void add(UniqueFd fd, std::optional<Handshake> handshake) {
    const Serial serial = next_serial_++;
    Connection& connection = connections_[serial];
    connection.fd = std::move(fd);
    if (handshake) strangers_.insert(serial);
    connection.handshake = std::move(handshake);
    connection.since = Clock::now();
    connection.events = EPOLLIN;
    watch(connection.fd.get(), serial, EPOLLIN, EPOLL_CTL_ADD);
  }

  void accept_some() {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
      if (!make_room()) {
        pause_accepting();
        return;
      }
      const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
          if (!strangers_.empty()) kill(*strangers_.begin());
          pause_accepting();
        }
        return;  // EAGAIN, or a connection that has ended already
      }
      UniqueFd owned(fd);
      prepare_stream(fd);
      add(std::move(owned), Handshake(Handshake::Side::server, secret_, purpose_));
    }
  }

  /// Level-triggered events of the listener would keep the thread busy while there is no room.
  void pause_accepting() {
    if (stopping_ || accepting_paused_) return;
    watch(listener_.get(), kListener, 0, EPOLL_CTL_DEL);
    accepting_paused_ = true;
    accept_again_ = Clock::now() + kAcceptPause;
  }

  /// Room for one more connection that has not proven itself yet.
  bool make_room() {
    if (strangers_.size() < limits_.strangers) return true;
    const Clock::time_point now = Clock::now();
    for (const Serial serial : strangers_) {
      const Connection& stranger = connections_.at(serial);
      if (now - stranger.since < kSilentPatience) break;
      if (stranger.has_spoken) continue;
      kill(serial);
      return true;
    }
    if (now - connections_.at(*strangers_.begin()).since < kSpeakingPatience) return false;
    kill(*strangers_.begin());
    return true;
  }

  void drop_late() {
    const Clock::time_point now = Clock::now();
    while (!strangers_.empty()) {
      const Serial oldest = *strangers_.begin();
      if (now - connections_.at(oldest).since < limits_.handshake) break;
      kill(oldest);
    }
    if (accepting_paused_ && !stopping_ && now >= accept_again_) {
      watch(listener_.get(), kListener, EPOLLIN, EPOLL_CTL_ADD);
      accepting_paused_ = false;
    }
  }

  void kill(Serial serial) { kill(serial, connections_.at(serial)); }

  /// Closes at the end of the round: others may be looking at it. Does not touch waiting_ itself,
  /// which may be walked over.
  void kill(Serial serial, Connection& connection) {
    if (connection.dead) return;
    connection.dead = true;
    strangers_.erase(serial);
    dead_.push_back(serial);
  }

  void bury() {
    for (const Serial serial : dead_) {
      const auto found = connections_.find(serial);
      for (const auto& [id, key] : found->second.waits) stop_waiting(serial, id, key);
      connections_.erase(found);
    }
    dead_.clear();
  }

  void read(Serial serial, Connection& connection) {
    const ssize_t count = ::recv(connection.fd.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      kill(serial, connection);
      return;
    }
    std::string_view bytes(buffer_.data(), static_cast<std::size_t>(count));
    connection.has_spoken = true;
    if (connection.handshake) {
      if (!continue_handshake(serial, connection, bytes)) return;
    }
    connection.input.append(bytes);
    using enum FrameReader::State;
    while (!connection.dead && connection.input.state() == complete) {
      answer(serial, connection, connection.input.front());
      connection.input.pop();
    }
    if (connection.input.state() == too_long) kill(serial, connection);
    connection.input.compact();
    if (!connection.dead) flush(serial, connection);
  }

  /// True when the connection has proven itself; `bytes` are then those behind the handshake.
  bool continue_handshake(Serial serial, Connection& connection, std::string_view& bytes) {
    Handshake& handshake = *connection.handshake;
    bytes.remove_prefix(handshake.receive(bytes));
    if (std::string output = handshake.take_output(); !output.empty()) {
      connection.output.add(std::move(output));
      flush(serial, connection);
    }
    switch (handshake.state()) {
      case Handshake::State::going_on:
        return false;
      case Handshake::State::refused:
        if (!connection.dead) tell_refused(connection);
        kill(serial, connection);
        return false;
      case Handshake::State::done:
        break;
    }
    connection.handshake.reset();
    strangers_.erase(serial);
    return !connection.dead;
  }

  /// Once: a scanner must not fill the log.
  void tell_refused(const Connection& connection) {
    if (std::exchange(told_refused_, true)) return;
    log_warning(
        "the job's store refused {}, which does not know the job's secret (later ones are not "
        "reported)",
        peer_name(connection.fd.get()));
  }

  void answer(Serial serial, Connection& connection, std::string_view frame) {
    std::optional<StoreRequest> request = decode_request(frame);
    if (!request) {
      kill(serial, connection);
      return;
    }
    using enum StoreRequest::Operation;
    using enum StoreReply::Status;
    switch (request->operation) {
      case set: {
        auto value = std::make_shared<const std::string>(std::move(request->value));
        const bool fits = put(request->key, std::move(value));
        reply(connection, {.id = request->id, .status = fits ? good : full, .sum = 0, .value = {}});
        return;
      }
      case get:
        if (StoreValue value = table_.find(request->key)) {
          reply(connection, {.id = request->id, .status = good, .sum = 0, .value = {}},
                std::move(value));
        } else if (connection.waits.size() >= kMaxWaits ||
                   !connection.waits.emplace(request->id, request->key).second) {
          kill(serial, connection);
        } else {
          waiting_[request->key].emplace_back(serial, request->id);
        }
        return;
      case try_get: {
        const StoreValue value = table_.find(request->key);
        reply(connection,
              {.id = request->id, .status = value ? good : absent, .sum = 0, .value = {}}, value);
        return;
      }
      case add:
        reply(connection, sum_of(*request));
        return;
      case forget:
        if (const auto node = connection.waits.extract(request->id); !node.empty()) {
          stop_waiting(serial, request->id, node.mapped());
        }
        return;
    }
  }

  StoreReply sum_of(const StoreRequest& request) {
    using enum StoreReply::Status;
    StoreReply reply{.id = request.id, .status = good, .sum = 0, .value = {}};
    const std::optional<std::int64_t> sum = table_.sum(request.key, request.amount);
    reply.sum = sum.value_or(0);
    if (!sum) {
      reply.status = no_number;
    } else if (!put(request.key, std::make_shared<const std::string>(std::to_string(*sum)))) {
      reply.status = full;
    }
    return reply;
  }

  /// Keeps the value and gives it to those who wait for it; false when there is no room.
  bool put(const std::string& key, const StoreValue& value) {
    if (!table_.put(key, value)) return false;
    const auto node = waiting_.extract(key);
    if (node.empty()) return true;
    for (const auto& [serial, id] : node.mapped()) {
      Connection& waiter = connections_.at(serial);
      waiter.waits.erase(id);
      if (waiter.dead) continue;
      reply(waiter, {.id = id, .status = StoreReply::Status::good, .sum = 0, .value = {}}, value);
      flush(serial, waiter);
    }
    return true;
  }

  void stop_waiting(Serial serial, std::uint32_t id, const std::string& key) {
    const auto found = waiting_.find(key);
    if (found == waiting_.end()) return;
    std::erase(found->second, std::pair{serial, id});
    if (found->second.empty()) waiting_.erase(found);
  }

  static void reply(Connection& connection, const StoreReply& reply, StoreValue value = nullptr) {
    std::string head = encode_head(reply, value ? value->size() : 0);
    connection.output.add(std::move(head), std::move(value));
  }

  void flush(Serial serial, Connection& connection) {
    if (!connection.output.send(connection.fd.get())) {
      kill(serial, connection);
      return;
    }
    const std::uint32_t in = connection.output.bytes() < kMaxOwedBytes ? EPOLLIN : 0U;
    const std::uint32_t out = connection.output.empty() ? 0U : EPOLLOUT;
    if (std::exchange(connection.events, in | out) != (in | out)) {
      watch(connection.fd.get(), serial, in | out, EPOLL_CTL_MOD);
    }
  }

  bool owes() const {
    return std::any_of(connections_.begin(), connections_.end(), [](const auto& entry) {
      return !entry.second.handshake && !entry.second.output.empty();
    });
  }

  UniqueFd listener_;
  int stop_;
  JobSecret secret_;
  std::string purpose_;
  StoreLimits limits_;
  UniqueFd epoll_;

  std::map<Serial, Connection> connections_;
  std::set<Serial> strangers_;  ///< oldest first
  std::vector<Serial> dead_;
  Serial next_serial_ = kStop + 1;
  bool accepting_paused_ = false;
  Clock::time_point accept_again_{};
  bool stopping_ = false;
  Clock::time_point last_words_until_{};
  bool told_refused_ = false;

  StoreTable table_;
  std::unordered_map<std::string, std::vector<std::pair<Serial, std::uint32_t>>> waiting_;
  std::array<char, std::size_t{64} << 10U> buffer_{};
};

/// One descriptor per rank of the job and some for strangers: the usual soft limit of 1024 is low.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

[[noreturn]] void fail_making(std::string_view what) {
  throw Error(ErrorKind::internal,
              fmt::format("the store cannot make {}: {}", what, std::strerror(errno)));
}

}  // namespace

StoreServer::StoreServer(UniqueFd listener, const JobSecret& secret, std::string purpose,
                         const StoreLimits& limits)
    : stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_) fail_making("an eventfd");
  // All ranks of a large job come in the same moment.
  constexpr int kBacklog = 4096;
  if (::listen(listener.get(), kBacklog) != 0) {
    throw Error(ErrorKind::hosts, fmt::format("cannot listen: {}", std::strerror(errno)));
  }
  set_nonblocking(listener.get());
  (void)::fcntl(listener.get(), F_SETFD, FD_CLOEXEC);
  raise_descriptor_limit();
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fail_making("a socket pair");
  }
  own_ = UniqueFd(ends[0]);
  UniqueFd served(ends[1]);
  auto service = std::make_unique<Service>(std::move(listener), stop_.get(), std::move(served),
                                           secret, std::move(purpose), limits);
  thread_ = std::thread([service = std::move(service)] {
    try {
      service->run();
    } catch (const std::exception& error) {
      // The clients see the end of their connections, this process's own among them.
      log_line(LogLevel::error, error.what());
    }
  });
}

StoreServer::~StoreServer() {
  const std::uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

}  // namespace dstrain::comm
