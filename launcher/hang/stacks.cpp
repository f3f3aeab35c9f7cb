#include "launcher/hang/stacks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "launcher/base/child_process.h"
#include "launcher/hang/kernel_state.h"
#include "launcher/hang/stacks_libdw.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxThreadFrames = 24;  ///< of a thread beside the main one
constexpr std::size_t kMaxThreadGroups = 6;
constexpr std::size_t kMaxTextBytes = 32 << 10;
constexpr int kKillMs = 500;

/// All threads of the process, the main one first, without frames.
std::vector<ThreadStack> list_threads(pid_t process) {
  std::vector<ThreadStack> threads;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/task", process), error)) {
    const std::string number = entry.path().filename().string();
    ThreadStack thread;
    std::from_chars(number.data(), number.data() + number.size(), thread.thread);
    std::getline(std::ifstream(entry.path() / "comm"), thread.name);
    thread.kernel = describe_kernel(process, thread.thread);
    threads.push_back(std::move(thread));
  }
  std::ranges::sort(threads, {}, [process](const ThreadStack& thread) {
    return std::pair(thread.thread != process, thread.thread);
  });
  return threads;
}

/// What a tool prints; empty when there is none.
std::string run_tool(const std::vector<std::string>& command) {
  Pipe pipe = make_pipe();
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const ChildProcess tool(command,
                          {.in = null.get(), .out = pipe.write.get(), .error = null.get()});
  pipe.write.reset();
  std::string text;
  std::array<char, 4096> block{};
  ssize_t got = 0;
  while ((got = ::read(pipe.read.get(), block.data(), block.size())) != 0) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) text.append(block.data(), static_cast<std::size_t>(got));
  }
  return text;
}

bool trace_with_tools(pid_t process, std::vector<ThreadStack>& threads) {
  const std::string pid = std::to_string(process);
  const std::array<std::vector<std::string>, 2> tools = {
      {{"eu-stack", "-p", pid},
       {"gdb", "-p", pid, "-batch", "-nx", "-ex", "set debuginfod enabled off", "-ex",
        "thread apply all bt 64"}}};
  for (const auto& command : tools) {
    bool found = false;
    for (ThreadStack& traced : parse_stacks(run_tool(command))) {
      const auto thread = std::ranges::find(threads, traced.thread, &ThreadStack::thread);
      if (thread == threads.end() || traced.frames.empty()) continue;
      thread->frames = std::move(traced.frames);
      found = true;
    }
    if (found) return true;
  }
  return false;
}

bool is_ours(const ThreadStack& thread) {
  return std::ranges::any_of(thread.frames, [](const std::string& frame) {
    return frame.find("dstrain") != std::string::npos;
  });
}

std::string kernel_lines(const ThreadStack& thread) {
  std::string lines;
  std::istringstream kernel(thread.kernel);
  for (std::string line; std::getline(kernel, line);) lines += "[kernel] " + line + "\n";
  return lines;
}

std::string frame_lines(const ThreadStack& thread, std::size_t max) {
  std::string lines;
  std::string_view last;
  std::size_t shown = 0;
  for (const std::string& frame : thread.frames) {
    if (shown == max) break;
    // Frames without names of one library say as much as one of them.
    if (frame.starts_with("?? in ") && frame == last) continue;
    last = frame;
    ++shown;
    lines += frame + "\n";
    // Below it is only how the C library starts a program.
    if (frame == "main" || frame.starts_with("main ")) break;
  }
  return lines;
}

void write_version(int fd, const std::string& text) {
  // Its end is the NUL; a reader takes nothing that has none.
  std::string_view rest(text.c_str(), text.size() + 1);
  while (!rest.empty()) {
    const ssize_t written = ::write(fd, rest.data(), rest.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// Adds the frames of the main thread, or of the others; false when none could be traced.
bool trace(pid_t process, std::vector<ThreadStack>& threads, bool main_thread) {
  std::string error;
  std::vector<ThreadStack> traced;
  bool all = true;
  for (const ThreadStack& thread : threads) {
    if ((thread.thread == process) != main_thread) continue;
    const char state = thread_state(process, thread.thread);
    // Stopping a thread that the kernel does not let go would take this child with it.
    const bool traceable = state != 'D' && state != 'Z' && state != '?';
    if (traceable) traced.push_back(thread);
    all = all && traceable;
  }
  if (traced.empty()) return false;
  // The tools stop every thread.
  if (!trace_with_libdw(process, traced, error) && !(all && trace_with_tools(process, traced))) {
    if (main_thread) {
      std::string& kernel = threads.front().kernel;
      kernel += fmt::format(
          "{}no frames of the program: {} (eu-stack or gdb on this host may find some)",
          kernel.empty() ? "" : "\n", error);
    }
    return main_thread;
  }
  for (ThreadStack& thread : traced) {
    std::ranges::find(threads, thread.thread, &ThreadStack::thread)->frames =
        std::move(thread.frames);
  }
  return true;
}

/// In the child: each version of the text holds more, and may be the last that there is time for.
void take(pid_t process, int fd) {
  std::vector<ThreadStack> threads = list_threads(process);
  write_version(fd, to_text(process, threads));
  for (const bool main_thread : {true, false}) {
    if (trace(process, threads, main_thread)) write_version(fd, to_text(process, threads));
  }
}

}  // namespace

std::string to_text(pid_t process, const std::vector<ThreadStack>& threads) {
  std::string text;
  std::map<std::string, std::vector<const ThreadStack*>> groups;
  int num_others = 0;
  for (const ThreadStack& thread : threads) {
    if (thread.thread == process) {
      text = kernel_lines(thread) + frame_lines(thread, thread.frames.size());
    } else if (is_ours(thread)) {
      groups[frame_lines(thread, kMaxThreadFrames)].push_back(&thread);
    } else {
      ++num_others;
    }
  }
  std::size_t num_shown = 0;
  for (const auto& [frames, members] : groups) {
    if (++num_shown > kMaxThreadGroups) {
      text += fmt::format("-- {} more groups of threads\n", groups.size() - kMaxThreadGroups);
      break;
    }
    text +=
        members.size() == 1
            ? fmt::format("-- thread {}\n{}", members.front()->name, kernel_lines(*members.front()))
            : fmt::format("-- {} threads {}\n", members.size(), members.front()->name);
    text += frames;
  }
  if (num_others > 0) text += fmt::format("-- {} threads of libraries\n", num_others);
  if (text.size() > kMaxTextBytes) text.resize(text.rfind('\n', kMaxTextBytes) + 1);
  return text;
}

std::vector<ThreadStack> parse_stacks(std::string_view text) {
  std::vector<ThreadStack> threads;
  const auto number_after = [](std::string_view line, std::string_view mark) {
    pid_t number = 0;
    const auto at = line.find(mark);
    if (at == std::string_view::npos) return number;
    line.remove_prefix(at + mark.size());
    std::from_chars(line.data(), line.data() + line.size(), number);
    return number;
  };
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("TID ")) {
      threads.push_back({.thread = number_after(line, "TID ")});
    } else if (line.starts_with("Thread ") && line.find("LWP ") != std::string::npos) {
      threads.push_back({.thread = number_after(line, "LWP ")});
    } else if (line.starts_with('#') && !threads.empty()) {
      // "#0  0x00007f12 read" of eu-stack; "#0  0x00007f12 in read () from /lib/libc.so.6" and
      // "#1  main () at x.cpp:3" of gdb.
      std::string_view frame(line);
      const auto skip_word = [&frame] {
        frame.remove_prefix(std::min(frame.find(' '), frame.size()));
        frame.remove_prefix(std::min(frame.find_first_not_of(' '), frame.size()));
      };
      skip_word();
      if (frame.starts_with("0x")) skip_word();
      if (frame.starts_with("in ")) skip_word();
      if (frame.starts_with("- 1 ")) {  // eu-stack marks return addresses
        skip_word();
        skip_word();
      }
      if (!frame.empty()) threads.back().frames.emplace_back(frame);
    }
  }
  return threads;
}

StackTaker::StackTaker(pid_t process, std::chrono::milliseconds limit)
    : process_(process), state_(process_state(process)), deadline_(Clock::now() + limit) {
  Pipe pipe = make_pipe();
  const auto limit_s =
      static_cast<unsigned>(std::max<std::int64_t>(1, (limit.count() + 999) / 1000));
  const pid_t child = ::fork();
  if (child < 0) return;  // no text then
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // A session of its own: Ctrl-C and the job's signals are not for it.
    ::setsid();
    for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
    ::signal(SIGPIPE, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::alarm(limit_s);
    try {
      take(process, pipe.write.get());
    } catch (const std::exception&) {
      ::_exit(1);  // the version that was written stands
    }
    ::_exit(0);
  }
  child_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pipe_ = std::move(pipe.read);
  set_nonblocking(pipe_.get());
}

StackTaker::~StackTaker() {
  if (child_) ::syscall(SYS_pidfd_send_signal, child_.get(), SIGKILL, nullptr, 0);
}

bool StackTaker::advance(Clock::time_point now) {
  std::array<char, 16384> block{};
  while (pipe_) {
    const ssize_t got = ::read(pipe_.get(), block.data(), block.size());
    if (got > 0) {
      bytes_.append(block.data(), static_cast<std::size_t>(got));
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else if (got < 0 && errno == EAGAIN) {
      break;
    } else {
      pipe_.reset();
    }
  }
  if (pipe_ && now < deadline_) return false;
  const bool cut_off = static_cast<bool>(pipe_);
  pipe_.reset();
  if (cut_off && child_) {
    ::syscall(SYS_pidfd_send_signal, child_.get(), SIGKILL, nullptr, 0);
    // Until it is gone it may still stop the process.
    pollfd gone{child_.get(), POLLIN, 0};
    ::poll(&gone, 1, kKillMs);
  }
  // A tracer that was cut off may leave the process stopped, or about to stop.
  if (state_ != 'T' && (cut_off || process_state(process_) == 'T')) ::kill(process_, SIGCONT);
  return true;
}

std::string StackTaker::text() const {
  const auto end = bytes_.rfind('\0');
  if (end == std::string::npos) return {};
  const auto begin = end == 0 ? std::string::npos : bytes_.rfind('\0', end - 1);
  return bytes_.substr(begin == std::string::npos ? 0 : begin + 1,
                       end - (begin == std::string::npos ? 0 : begin + 1));
}

}  // namespace dstrain::launcher
