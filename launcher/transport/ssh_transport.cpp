#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>

#include "engine/base/error.h"
#include "launcher/base/child_process.h"
#include "launcher/base/words.h"
#include "launcher/hosts/placement.h"
#include "launcher/protocol/protocol.h"
#include "launcher/transport/ship.h"
#include "launcher/transport/ssh_login.h"

namespace dstrain::launcher {
namespace {

using std::chrono::milliseconds;
using Time = Transport::Time;

constexpr int kTries = 3;  ///< of connections that sshd dropped because too many came at once
constexpr milliseconds kLookAgain{10};
constexpr milliseconds kExitLimit{2000};   ///< from the end of ssh's output to its exit
constexpr milliseconds kBannerLimit{500};  ///< for the rest of a line that is no hello
constexpr std::chrono::seconds kCopyLimit{600};
constexpr int kDirectCopies = 4;  ///< at once over our own link; the others come from host to host

class SshTransport final : public Transport {
 public:
  SshTransport(std::vector<NodeHost> nodes, SshOptions options)
      : options_(std::move(options)), random_(std::random_device{}()) {
    DSTRAIN_CHECK(!options_.agent_command.empty(), "the agent needs a command");
    for (NodeHost& node : nodes) {
      logins_.emplace_back();
      logins_.back().host = std::move(node);
    }
    if (options_.ship) ship_ = ship_tree(options_.agent_command.front());
  }

  void add_polls(std::vector<pollfd>& fds) const override {
    if (hash_output_) fds.push_back({hash_output_.get(), POLLIN, 0});
    for (const SshLogin& login : logins_) {
      if (login.standard_error.fd() >= 0) fds.push_back({login.standard_error.fd(), POLLIN, 0});
      if (login.socket && !login.look_again && !login.closed_at)
        fds.push_back({login.socket.get(), POLLIN, 0});
    }
  }

  void advance(std::vector<AgentLink>& links, Time now) override {
    next_look_.reset();
    if (ship_ && hash_.empty() && !hash_tree()) return;
    int num_running = 0;
    for (SshLogin& login : logins_) {
      step(login, links, now);
      num_running += login.stage == Stage::opening || login.stage == Stage::copying ? 1 : 0;
    }
    // A host beyond the window has its turn when another one's end is taken in here.
    for (SshLogin& login : logins_) {
      if (login.stage != Stage::waiting || num_running >= options_.window) continue;
      if (login.due > now) {
        look_at(login.due);
        continue;
      }
      if (login.task == Task::copy && !choose_source(login)) continue;
      start(login, now);
      look_at(login.limit);
      ++num_running;
    }
  }

  [[nodiscard]] std::optional<Time> deadline() const override { return next_look_; }

  AgentEnding end(int node, milliseconds limit) override {
    SshLogin* login = find(node);
    if (login == nullptr) return {};
    AgentEnding ending;
    if (login->stage == Stage::open) {
      // What it still says must not fill the pipe and keep it from ending.
      const Time until = std::chrono::steady_clock::now() + limit;
      while (!login->ssh.ended() && std::chrono::steady_clock::now() < until) {
        login->standard_error.read();
        ::poll(nullptr, 0, 1);
      }
      login->ssh.end(milliseconds(0));
      login->standard_error.read();
      ending = {login->ssh.exit_code(), login->ssh.signal(),
                quote_output(login->standard_error.last_line())};
    }
    drop(*login);
    return ending;
  }

  void kill(int node) override {
    SshLogin* login = find(node);
    if (login == nullptr) return;
    login->ssh.kill();
    if (login->stage != Stage::open) drop(*login);
  }

 private:
  using Stage = SshLogin::Stage;
  using Task = SshLogin::Task;

  SshLogin* find(int node) {
    for (SshLogin& login : logins_) {
      if (login.host.node == node) return &login;
    }
    return nullptr;
  }

  void look_at(Time time) {
    if (!next_look_ || time < *next_look_) next_look_ = time;
  }

  static void drop(SshLogin& login) {
    login.stage = Stage::over;
    login.ssh = {};
    login.packer = {};
    login.socket.reset();
    login.standard_error = {};
  }

  /// Once for all hosts, in a child, since large libraries take a while. False while it runs.
  bool hash_tree() {
    if (!hash_output_) {
      Pipe pipe = make_pipe();
      const UniqueFd null = open_null();
      hasher_ = ChildProcess({"sh", "-c", ship_hash_command(*ship_)},
                             {null.get(), pipe.write.get(), null.get()});
      set_nonblocking(pipe.read.get());
      hash_output_ = std::move(pipe.read);
    }
    std::array<char, 128> block{};
    ssize_t got = 0;
    while ((got = ::read(hash_output_.get(), block.data(), block.size())) > 0)
      hash_text_.append(block.data(), static_cast<std::size_t>(got));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    hasher_.end(kExitLimit);
    hash_output_.reset();
    if (hasher_.exit_code() != 0 || hash_text_.size() != 65) {
      throw Error(ErrorKind::hosts,
                  fmt::format("cannot hash our own files in {}", ship_->root.string()),
                  "--ship needs find, sort, cut and sha256sum, here and there");
    }
    hash_ = hash_text_.substr(0, 64);
    return true;
  }

  [[nodiscard]] std::vector<std::string> ssh_command(const Host& host,
                                                     const std::string& remote) const {
    std::vector<std::string> words = ssh_words(options_.connect_timeout, options_.config);
    for (std::string& word : ssh_destination(host)) words.push_back(std::move(word));
    words.push_back(remote);
    return words;
  }

  [[nodiscard]] std::string agent_command() const {
    std::vector<std::string> words;
    if (!options_.environment.empty()) {
      words = {"env"};
      words.insert(words.end(), options_.environment.begin(), options_.environment.end());
    }
    const std::vector<std::string>& command = options_.agent_command;
    if (ship_)
      return ship_agent_command(*ship_, hash_, words, {command.begin() + 1, command.end()});
    words.insert(words.end(), command.begin(), command.end());
    std::string text = "exec";
    for (const std::string& word : words) text += " " + shell_quote(word);
    return text;
  }

  /// A tree of copies: a host that has one sends it to one more at a time, so their number doubles;
  /// where hosts may not log in to each other, all copies come from here. False: not its turn yet.
  bool choose_source(SshLogin& login) {
    int num_direct = 0;
    std::vector<bool> busy(logins_.size());
    for (const SshLogin& other : logins_) {
      if (other.stage != Stage::copying) continue;
      if (other.source < 0) {
        ++num_direct;
      } else {
        busy[static_cast<std::size_t>(other.source)] = true;
      }
    }
    login.source = -1;
    for (std::size_t i = 0; i < logins_.size() && forwards_; ++i) {
      if (!logins_[i].copied || busy[i]) continue;
      login.source = static_cast<int>(i);
      return true;
    }
    return num_direct < kDirectCopies;
  }

  [[nodiscard]] std::vector<std::string> forward_command(const SshLogin& login) const {
    std::vector<std::string> words = {
        "ssh", "-T",
        "-x",  "-a",
        "-o",  "BatchMode=yes",
        "-o",  fmt::format("ConnectTimeout={}", options_.connect_timeout.count())};
    for (std::string& word : ssh_destination(login.host.host)) words.push_back(std::move(word));
    return ssh_command(logins_[static_cast<std::size_t>(login.source)].host.host,
                       ship_forward_command(*ship_, hash_, std::move(words)));
  }

  void start(SshLogin& login, Time now) {
    ++login.tries;
    login.closed_at.reset();
    login.banner_at.reset();
    login.banner.clear();
    login.look_again = false;
    Pipe errors = make_pipe();
    const Host& host = login.host.host;
    if (login.task == Task::agent) {
      std::array<int, 2> ends{};
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
        fail_system("make a socketpair");
      login.socket = UniqueFd(ends[0]);
      const UniqueFd theirs(ends[1]);
      login.ssh = ChildProcess(ssh_command(host, agent_command()),
                               {theirs.get(), theirs.get(), errors.write.get()});
      login.stage = Stage::opening;
      login.limit = now + options_.hello_limit;
    } else if (login.source >= 0) {
      const UniqueFd null = open_null();
      login.ssh =
          ChildProcess(forward_command(login), {null.get(), null.get(), errors.write.get()});
      login.stage = Stage::copying;
      login.limit = now + kCopyLimit;
    } else {
      const Pipe archive = make_pipe();
      const UniqueFd null = open_null();
      login.packer = ChildProcess(ship_pack_command(*ship_),
                                  {null.get(), archive.write.get(), errors.write.get()});
      login.ssh = ChildProcess(ssh_command(host, ship_unpack_command(*ship_, hash_)),
                               {archive.read.get(), null.get(), errors.write.get()});
      login.stage = Stage::copying;
      login.limit = now + kCopyLimit;
    }
    login.standard_error.open(std::move(errors.read));
  }

  void step(SshLogin& login, std::vector<AgentLink>& links, Time now) {
    if (login.stage == Stage::waiting || login.stage == Stage::over) return;
    login.standard_error.read();
    if (login.stage == Stage::opening) {
      listen(login, links, now);
    } else if (login.stage == Stage::copying) {
      if (login.ssh.ended()) {
        finish_copy(login, links, now);
      } else {
        look_at(now + kLookAgain);
      }
    }
    if (login.stage != Stage::opening && login.stage != Stage::copying) return;
    if (now >= login.limit) {
      const std::string last = quote_output(login.standard_error.last_line());
      refuse(login, links,
             {HostProblem::Kind::timeout,
              fmt::format("{} within {} s{}{}",
                          login.stage == Stage::opening ? "no word from dstrain there"
                                                        : "our files were not taken in",
                          std::chrono::duration_cast<std::chrono::seconds>(
                              login.stage == Stage::opening ? options_.hello_limit : kCopyLimit)
                              .count(),
                          last.empty() ? "" : "; ssh said: ", last),
              "log in by hand and look whether its shell or a file system hangs"});
    } else {
      look_at(login.limit);
    }
  }

  /// Looks at the first bytes without taking them, so that the channel gets the hello whole.
  void listen(SshLogin& login, std::vector<AgentLink>& links, Time now) {
    std::array<char, 8192> block{};
    login.look_again = false;
    const ssize_t got =
        ::recv(login.socket.get(), block.data(), block.size(), MSG_PEEK | MSG_DONTWAIT);
    if (got > 0) {
      const std::string_view bytes(block.data(), static_cast<std::size_t>(got));
      const FirstFrame first =
          login.banner.empty() ? first_frame(bytes, login.ssh.ended()) : FirstFrame::none;
      if (first == FirstFrame::hello) {
        hand_over(login, links);
        return;
      }
      if (first == FirstFrame::unfinished) {
        login.look_again = true;
        look_at(now + kLookAgain);
      } else if (::recv(login.socket.get(), block.data(), bytes.size(), MSG_DONTWAIT) == got) {
        if (login.banner.size() < block.size()) login.banner += bytes;
        if (!login.banner_at) login.banner_at = now;
      }
    } else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      if (!login.closed_at) login.closed_at = now;
    }
    if (login.closed_at) {
      if (!login.ssh.ended() && now >= *login.closed_at + kExitLimit)
        login.ssh.end(milliseconds(0));
      if (login.ssh.ended()) {
        login.standard_error.read();
        fail(login, links, now);
      } else {
        look_at(now + kLookAgain);
      }
    } else if (login.banner_at) {
      if (now >= *login.banner_at + kBannerLimit) {
        fail(login, links, now);
      } else {
        look_at(*login.banner_at + kBannerLimit);
      }
    }
  }

  void hand_over(SshLogin& login, std::vector<AgentLink>& links) {
    UniqueFd out(::fcntl(login.socket.get(), F_DUPFD_CLOEXEC, 3));
    if (!out) fail_system("duplicate a socket");
    links[static_cast<std::size_t>(login.host.node)].channel.emplace(std::move(login.socket),
                                                                     std::move(out));
    login.socket = {};
    login.stage = Stage::open;
  }

  static void refuse(SshLogin& login, std::vector<AgentLink>& links, HostProblem problem) {
    links[static_cast<std::size_t>(login.host.node)].problem = std::move(problem);
    drop(login);
  }

  void again(SshLogin& login, Task task, Time due) {
    if (login.task != task) login.tries = 0;
    login.task = task;
    login.socket.reset();
    login.stage = Stage::waiting;
    login.due = due;
    look_at(due);
  }

  /// ssh has ended without a hello, or something else came in its place.
  void fail(SshLogin& login, std::vector<AgentLink>& links, Time now) {
    if (!login.banner.empty()) {
      const std::string line = quote_output(login.banner);
      const bool ended = login.closed_at.has_value();
      refuse(login, links,
             {HostProblem::Kind::other,
              ended ? fmt::format("the login prints '{}' and ends", line)
                    : fmt::format("the shell start-up there prints to standard output: '{}'", line),
              ended ? "may this user log in and run commands there?"
                    : "let ~/.bashrc and the like print only in interactive shells"});
      return;
    }
    HostProblem problem = classify_ssh(ending_code(login.ssh), login.standard_error.text());
    if (tried_again(login, problem, now)) return;
    if (problem.kind == HostProblem::Kind::no_binary && ship_ && !login.copied) {
      again(login, Task::copy, now);
      return;
    }
    refuse(login, links, std::move(problem));
  }

  void finish_copy(SshLogin& login, std::vector<AgentLink>& links, Time now) {
    login.standard_error.read();
    const int code = ending_code(login.ssh);
    if (code == 0) {
      login.copied = true;
      again(login, Task::agent, now);
      return;
    }
    if (login.source >= 0) {
      forwards_ = false;
      again(login, Task::copy, now);
      return;
    }
    if (code == 255) {
      HostProblem problem = classify_ssh(code, login.standard_error.text());
      if (!tried_again(login, problem, now)) refuse(login, links, std::move(problem));
      return;
    }
    std::string words;
    for (const char c : login.standard_error.text()) words += c == '\n' ? ';' : c;
    refuse(login, links,
           {HostProblem::Kind::no_binary,
            fmt::format("dstrain is not there and could not be copied: {}", quote_output(words)),
            "copying needs tar, find, sha256sum and room in ~/.cache (or XDG_CACHE_HOME) there"});
  }

  /// sshd drops connections at random when many come at once (MaxStartups): come again, and not
  /// all together.
  bool tried_again(SshLogin& login, const HostProblem& problem, Time now) {
    if (problem.kind != HostProblem::Kind::connection || login.tries >= kTries) return false;
    std::uniform_int_distribution<int> jitter(100, 500);
    again(login, login.task, now + login.tries * milliseconds(jitter(random_)));
    return true;
  }

  static int ending_code(const ChildProcess& ssh) {
    return ssh.signal() != 0 ? 255 : ssh.exit_code();
  }

  SshOptions options_;
  std::vector<SshLogin> logins_;
  std::optional<Time> next_look_;
  std::minstd_rand random_;
  std::optional<ShipTree> ship_;
  std::string hash_;  ///< of ship_; empty until it is known
  std::string hash_text_;
  UniqueFd hash_output_;
  ChildProcess hasher_;
  bool forwards_ = true;  ///< as far as we know, hosts may log in to each other
};

}  // namespace

std::unique_ptr<Transport> make_ssh_transport(std::vector<NodeHost> nodes, SshOptions options) {
  return std::make_unique<SshTransport>(std::move(nodes), std::move(options));
}

}  // namespace dstrain::launcher
