#include "launcher/job/tree_agent.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <vector>

#include "engine/base/error.h"
#include "launcher/base/child_process.h"
#include "launcher/base/child_stderr.h"
#include "launcher/hosts/machine.h"
#include "launcher/job/agent.h"
#include "launcher/protocol/channel.h"
#include "launcher/protocol/protocol.h"
#include "launcher/transport/dial.h"

namespace dstrain::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kOrderLimit{60'000};
constexpr milliseconds kMaxDialTime{10'000};
constexpr int kTurn_ms = 20;  ///< the end of an ssh is no descriptor to wait for
constexpr std::size_t kSentWords = 2 << 10;

UniqueFd duplicate(const UniqueFd& fd) {
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  if (!copy) fail_system("duplicate a descriptor");
  return copy;
}

[[noreturn]] void fail_gone() {
  throw Error(ErrorKind::hosts, "the process that started this agent exited");
}

TreeOrder read_order(Channel& channel) {
  const auto deadline = Clock::now() + kOrderLimit;
  while (true) {
    if (const auto frame = channel.next()) {
      if (frame->type == FrameType::tree) return unpack<TreeOrder>(*frame);
      break;
    }
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    pollfd entry{channel.in(), POLLIN, 0};
    if (left <= 0 || ::poll(&entry, 1, static_cast<int>(left)) == 0) break;
    if (!channel.receive()) fail_gone();
  }
  throw Error(ErrorKind::hosts, "no order came through standard input",
              "`dstrain launch` starts agents; they are not for the command line");
}

/// One agent on another host that is being started.
struct Child {
  std::string name;
  UniqueFd input;  ///< its order and its lifeline
  ChildProcess ssh;
  ChildStderr standard_error;
};

Child start_child(const TreeOrder& order, const TreeChild& child) {
  std::vector<std::string> words = order.ssh;
  words.insert(words.end(), child.destination.begin(), child.destination.end());
  words.push_back(order.command);
  Pipe input = make_pipe();
  Pipe errors = make_pipe();
  const UniqueFd null = open_null();
  Child result;
  result.name = child.name;
  result.ssh = ChildProcess(words, {input.read.get(), null.get(), errors.write.get()});
  result.standard_error.open(std::move(errors.read));
  TreeOrder own;
  own.name = child.name;
  own.target = order.target;
  own.limit_ms = order.limit_ms;
  const std::string frame = encode(own);
  // Shorter than PIPE_BUF and the pipe is empty: written whole, at once.
  if (::write(input.write.get(), frame.data(), frame.size()) < 0) fail_system("write to ssh");
  result.input = std::move(input.write);
  return result;
}

void report(Channel& channel, const Child& child, int exit_code) {
  const std::string& text = child.standard_error.text();
  channel.send(TreeProblem{child.name, exit_code,
                           text.substr(text.size() - std::min(text.size(), kSentWords))});
}

/// Until each has been welcomed, has failed or has used up the limit. Children that are not through
/// end with this scope, whatever ends it.
void start_children(const TreeOrder& order, Channel& channel) {
  const auto deadline = Clock::now() + milliseconds(order.limit_ms);
  std::vector<Child> children;
  for (const TreeChild& child : order.children) children.push_back(start_child(order, child));
  while (!children.empty()) {
    std::vector<pollfd> fds = {{channel.in(), POLLIN, 0}};
    if (channel.wants_write()) fds.push_back({channel.out(), POLLOUT, 0});
    ::poll(fds.data(), fds.size(), kTurn_ms);
    if (fds[0].revents != 0 && !channel.receive()) fail_gone();
    channel.flush();
    const bool late = Clock::now() >= deadline;
    std::erase_if(children, [&](Child& child) {
      child.standard_error.read();
      const bool ended = child.ssh.ended();
      if (!ended && !late) return false;
      child.standard_error.read();
      const int code = child.ssh.signal() != 0 ? 255 : child.ssh.exit_code();
      if (!ended || code != 0) report(channel, child, ended ? code : 0);
      return true;
    });
  }
  while (channel.wants_write()) {
    pollfd entry{channel.out(), POLLOUT, 0};
    ::poll(&entry, 1, kTurn_ms);
    channel.flush();
  }
}

/// The ssh that started this process ends with it, and tells the waiting agent that all is
/// well; a copy of this process goes on.
void leave_session() {
  Pipe left = make_pipe();
  const pid_t copy = ::fork();
  if (copy < 0) fail_system("fork");
  if (copy > 0) {
    // What ends the session's processes with its first one must not find the copy in it.
    left.write.reset();
    char none = 0;
    while (::read(left.read.get(), &none, 1) < 0 && errno == EINTR) {
    }
    ::_exit(0);
  }
  ::setsid();
  const UniqueFd null = open_null();
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null.get(), stream);
}

}  // namespace

int run_tree_agent(UniqueFd in, UniqueFd out, std::string build) {
  ::signal(SIGPIPE, SIG_IGN);
  TreeOrder order;
  {
    Channel channel(duplicate(in), duplicate(out));
    order = read_order(channel);
    // The controller as this host sees it, which its own list may lack behind a translated address.
    const AgentIdentity identity = identity_over_ssh(build);
    DialTarget target = dial_target_from(order.target);
    in_addr parsed{};
    if (order.name.empty() && ::inet_pton(AF_INET, identity.peer_address.c_str(), &parsed) == 1 &&
        std::find(target.addresses.begin(), target.addresses.end(), identity.peer_address) ==
            target.addresses.end()) {
      target.addresses.push_back(identity.peer_address);
      order.target = to_line(target);
    }
    start_children(order, channel);
    if (order.name.empty()) return run_agent(std::move(in), std::move(out), identity);
  }
  const Machine machine = probe_machine();
  UniqueFd socket = dial(
      dial_target_from(order.target),
      {.name = order.name, .host = machine.host, .cores = machine.cores, .gpus = machine.gpus},
      {.lifeline = in.get(), .limit = std::min(kMaxDialTime, milliseconds(order.limit_ms) / 2)});
  if (!socket) throw Error(ErrorKind::hosts, "the controller has no use for this agent");
  leave_session();
  in.reset();
  out.reset();
  return run_dialled_agent(std::move(socket), std::move(build));
}

}  // namespace dstrain::launcher
