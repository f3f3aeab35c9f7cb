#include "launcher/transport/dial.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "launcher/hosts/machine.h"

namespace dstrain::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::string_view kLineStart = "dstrain-dial-1 ";
constexpr std::size_t kMaxDialLineBytes = 4096;
constexpr milliseconds kBootstrapLimit{60'000};  ///< srun's standard input may come late
constexpr milliseconds kRoundLimit{5'000};       ///< for all addresses at once
constexpr milliseconds kHandshakeLimit{5'000};   ///< a stranger may listen there and say nothing
constexpr milliseconds kRetryInterval{200};
/// For a controller that has closed a connection to take another.
constexpr milliseconds kCloseLimit{10'000};

int milliseconds_until(Clock::time_point time) {
  const auto left = std::chrono::ceil<milliseconds>(time - Clock::now()).count();
  return left < 0 ? 0 : static_cast<int>(left);
}

/// Whether the other end of the lifeline is gone. What still comes through it is of no interest.
bool lifeline_cut(int lifeline) {
  std::array<char, 256> rest{};
  const ssize_t got = ::read(lifeline, rest.data(), rest.size());
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

/// Waits for `events` on `fd` until `deadline`; false when the time is up. Error when the lifeline
/// is cut meanwhile.
bool wait_for(int fd, short events, int lifeline, std::optional<Clock::time_point> deadline) {
  for (;;) {
    std::array<pollfd, 2> fds = {{{fd, events, 0}, {lifeline, POLLIN, 0}}};
    const int ready = ::poll(fds.data(), fds.size(), deadline ? milliseconds_until(*deadline) : -1);
    if (fds[1].revents != 0 && lifeline_cut(lifeline)) {
      throw Error(ErrorKind::hosts, "the process that started this agent exited");
    }
    if (fds[0].revents != 0) return true;
    if (deadline && ready <= 0 && Clock::now() >= *deadline) return false;
  }
}

/// Empty where nobody can answer.
UniqueFd start_dialling(const std::string& address, int port) {
  int error = 0;
  UniqueFd fd = start_connecting(address, port, error);
  if (!fd && (error == EMFILE || error == ENFILE)) {
    errno = error;
    fail_system("make a socket");
  }
  if (!fd || (error != 0 && error != EINPROGRESS)) return {};
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

/// False when the other end is gone.
bool send_all(int fd, std::string_view text, int lifeline, Clock::time_point deadline) {
  while (!text.empty()) {
    const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      text.remove_prefix(static_cast<std::size_t>(sent));
    } else if ((errno != EAGAIN && errno != EINTR) || !wait_for(fd, POLLOUT, lifeline, deadline)) {
      return false;
    }
  }
  return true;
}

/// What one round of attempts has found.
struct Round {
  UniqueFd socket;                   ///< of somebody who knows the secret
  std::vector<std::string> reasons;  ///< why the others were none
  /// One of them may yet answer, or has closed the connection in the middle of a handshake: it had
  /// no room for one more at that moment.
  bool again = false;
  std::string stranger;  ///< address of one who has another secret; empty without
};

std::string place_of(const DialTarget& target, std::size_t i) {
  const std::string& address = target.addresses[i];
  const bool six = address.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", six ? "[" : "", address, six ? "]" : "", target.port);
}

/// Tries all addresses at once.
Round connect_to_one(const DialTarget& target, int lifeline, Clock::time_point deadline) {
  Round round;
  std::vector<UniqueFd> sockets;
  for (const std::string& address : target.addresses) {
    sockets.push_back(start_dialling(address, target.port));
  }
  const auto give_up = [&](std::size_t i, std::string_view reason) {
    sockets[i].reset();
    round.reasons.push_back(fmt::format("{} {}", place_of(target, i), reason));
  };
  for (;;) {
    std::vector<pollfd> fds = {{lifeline, POLLIN, 0}};
    for (const UniqueFd& socket : sockets) fds.push_back({socket.get(), POLLOUT, 0});
    const bool open = std::any_of(sockets.begin(), sockets.end(),
                                  [](const UniqueFd& socket) { return static_cast<bool>(socket); });
    if (!open) return round;
    ::poll(fds.data(), fds.size(), milliseconds_until(deadline));
    if (fds[0].revents != 0 && lifeline_cut(lifeline)) {
      throw Error(ErrorKind::hosts, "the process that started this agent exited");
    }
    for (std::size_t i = 0; i < sockets.size(); ++i) {
      if (!sockets[i] || fds[i + 1].revents == 0) continue;
      int error = 0;
      socklen_t size = sizeof(error);
      ::getsockopt(sockets[i].get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) {
        give_up(i, std::strerror(error));
        continue;
      }
      const auto begin = Clock::now();
      try {
        shake_hands(sockets[i].get(), Handshake::Side::client, target.secret, kDialPurpose,
                    static_cast<int>(kHandshakeLimit.count()));
        round.socket = std::move(sockets[i]);
        return round;
      } catch (const Error& refusal) {
        const bool other_secret =
            refusal.kind() != ErrorKind::again && Clock::now() - begin < kHandshakeLimit;
        round.again = round.again || !other_secret;
        if (other_secret) round.stranger = place_of(target, i);
        give_up(i, refusal.what());
      }
    }
    if (Clock::now() >= deadline) {
      for (std::size_t i = 0; i < sockets.size(); ++i) {
        if (sockets[i]) give_up(i, "does not answer");
      }
      round.again = true;
      return round;
    }
  }
}

/// Introduces this agent to who knows the secret and waits, as long as it takes, to be welcomed.
/// False when the other end closes the connection instead.
bool await_welcome(int socket, const Introduction& introduction, int lifeline,
                   Clock::time_point deadline) {
  if (!send_all(socket, to_line(introduction) + "\n", lifeline, deadline)) return false;
  std::string welcome;
  while (welcome.size() < kDialWelcome.size()) {
    (void)wait_for(socket, POLLIN, lifeline, std::nullopt);
    std::array<char, 16> bytes{};
    const ssize_t got =
        ::recv(socket, bytes.data(), kDialWelcome.size() - welcome.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got > 0) welcome.append(bytes.data(), static_cast<std::size_t>(got));
  }
  if (welcome != kDialWelcome) {
    throw Error(ErrorKind::hosts, "the controller speaks otherwise",
                "use the same build of dstrain on every host");
  }
  return true;
}

/// The line that the controller wrote, without its newline.
std::string read_dial_line(int fd, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::string line;
  while (line.size() < kMaxDialLineBytes) {
    char c = 0;
    const ssize_t got = ::read(fd, &c, 1);
    if (got == 1) {
      if (c == '\n') return line;
      line += c;
    } else if (got == 0) {
      throw Error(ErrorKind::hosts, "the process that started this agent exited");
    } else if (errno == EAGAIN || errno == EINTR) {
      pollfd entry{fd, POLLIN, 0};
      if (::poll(&entry, 1, milliseconds_until(deadline)) == 0) break;
    } else {
      fail_system("read the controller's address");
    }
  }
  throw Error(ErrorKind::hosts, "the controller's address did not come through standard input",
              "`dstrain launch` starts agents; they are not for the command line");
}

int port_from(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool good = error == std::errc{} && end == text.data() + text.size();
  return good && port > 0 && port < 65536 ? port : 0;
}

}  // namespace

std::string to_line(const DialTarget& target) {
  return fmt::format("{}{} {} {}", kLineStart, target.port, to_hex(target.secret),
                     fmt::join(target.addresses, ","));
}

DialTarget dial_target_from(std::string_view line) {
  DialTarget target;
  bool good = line.starts_with(kLineStart) && line.size() < kMaxDialLineBytes;
  if (good) line.remove_prefix(kLineStart.size());
  const auto word = [&line] {
    const std::string_view found = line.substr(0, line.find(' '));
    line.remove_prefix(std::min(line.size(), found.size() + 1));
    return found;
  };
  target.port = good ? port_from(word()) : 0;
  good = target.port != 0;
  if (good) target.secret = secret_from_hex(word());
  while (good && !line.empty()) {
    const std::string address(line.substr(0, line.find(',')));
    in_addr parsed{};
    good = ::inet_pton(AF_INET, address.c_str(), &parsed) == 1;
    target.addresses.push_back(address);
    line.remove_prefix(std::min(line.size(), address.size() + 1));
  }
  if (!good || target.addresses.empty()) {
    throw Error(ErrorKind::hosts, "what should name the controller is no address of one",
                "use the same build of dstrain on every host");
  }
  return target;
}

std::string to_line(const Introduction& introduction) {
  return nlohmann::json{{"name", introduction.name},
                        {"host", introduction.host},
                        {"cores", introduction.cores},
                        {"gpus", introduction.gpus}}
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

Introduction introduction_from(std::string_view line) {
  const nlohmann::json json = json_or_null(line);
  try {
    Introduction introduction{json.at("name"), json.at("host"), json.at("cores"), json.at("gpus")};
    introduction.cores = std::max(1, introduction.cores);
    introduction.gpus = std::max(0, introduction.gpus);
    return introduction;
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::hosts, "an agent's introduction is not one",
                "use the same build of dstrain on every host");
  }
}

UniqueFd dial(const DialTarget& target, const Introduction& introduction,
              const DialOptions& options) {
  const int lifeline = options.lifeline;
  if (lifeline >= 0) set_nonblocking(lifeline);
  auto deadline = Clock::now() + options.limit;
  for (bool known = options.again;;) {
    Round round = connect_to_one(target, lifeline, std::min(deadline, Clock::now() + kRoundLimit));
    if (round.socket) {
      if (await_welcome(round.socket.get(), introduction, lifeline, deadline))
        return std::move(round.socket);
      // It may have made room for others: only a closed port means that it has ended. A spare may
      // have waited for hours by now.
      known = true;
      deadline = std::max(deadline, Clock::now() + std::min(options.limit, kCloseLimit));
      round.reasons = {"it closed the connection instead of welcoming this agent"};
    } else if (options.alone && !round.stranger.empty()) {
      throw Error(ErrorKind::usage,
                  fmt::format("{} has another secret than this process", round.stranger),
                  "give all processes of the start the same one; where another job listens there, "
                  "choose another port");
    } else if (known && !round.again) {
      return {};
    }
    if (Clock::now() + kRetryInterval >= deadline) {
      throw Error(known ? ErrorKind::again : ErrorKind::hosts,
                  fmt::format("cannot reach the controller: {}", fmt::join(round.reasons, "; ")),
                  "open the network between the nodes: any TCP port, as MPI needs it too");
    }
    (void)wait_for(-1, 0, lifeline, Clock::now() + kRetryInterval);
  }
}

UniqueFd dial_as_slurm_node(int bootstrap) {
  set_nonblocking(bootstrap);
  DialTarget target = dial_target_from(read_dial_line(bootstrap, kBootstrapLimit));
  // Slurm's own connection back to srun, which runs beside the controller, came this way.
  for (const char* name : {"SRUN_COMM_HOST", "SLURM_LAUNCH_NODE_IPADDR"}) {
    const char* address = std::getenv(name);
    const auto begin = target.addresses.begin();
    if (address != nullptr &&
        std::find(begin, target.addresses.end(), address) == target.addresses.end()) {
      target.addresses.insert(begin, address);
    }
  }
  const Machine machine = probe_machine();
  const char* node = std::getenv("SLURMD_NODENAME");
  UniqueFd socket = dial(target,
                         {.name = node != nullptr ? node : machine.host,
                          .host = machine.host,
                          .cores = machine.cores,
                          .gpus = machine.gpus},
                         {.lifeline = bootstrap});
  if (!socket) throw Error(ErrorKind::hosts, "the controller has no use for this agent");
  return socket;
}

}  // namespace dstrain::launcher
