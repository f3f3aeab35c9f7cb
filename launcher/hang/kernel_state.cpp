#include "launcher/hang/kernel_state.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/system_files.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxKernelFrames = 8;

std::string first_line(const fs::path& path) {
  std::string text = read_system_file(path);
  return text.substr(0, text.find('\n'));
}

/// State of a thread or process folder of /proc.
char state_in(const fs::path& folder) {
  const std::string stat = read_system_file(folder / "stat");
  // The name may hold anything, parentheses too: the fields begin after the last one.
  const auto close = stat.rfind(')');
  return close == std::string::npos || close + 2 >= stat.size() ? '?' : stat[close + 2];
}

fs::path folder_of(pid_t process, pid_t thread) {
  return fmt::format("/proc/{}/task/{}", process, thread);
}

/// Where calls that take a file descriptor or a path first have it.
enum class First { nothing, descriptor, path, second_path };
struct SystemCall {
  long number;
  const char* name;
  First first;
};
/// Those that a program may wait in.
constexpr std::array kSystemCalls = {
    SystemCall{SYS_read, "read", First::descriptor},
    SystemCall{SYS_write, "write", First::descriptor},
    SystemCall{SYS_readv, "readv", First::descriptor},
    SystemCall{SYS_writev, "writev", First::descriptor},
    SystemCall{SYS_pread64, "pread64", First::descriptor},
    SystemCall{SYS_pwrite64, "pwrite64", First::descriptor},
    SystemCall{SYS_sendmsg, "sendmsg", First::descriptor},
    SystemCall{SYS_sendto, "sendto", First::descriptor},
    SystemCall{SYS_recvmsg, "recvmsg", First::descriptor},
    SystemCall{SYS_recvfrom, "recvfrom", First::descriptor},
    SystemCall{SYS_accept, "accept", First::descriptor},
    SystemCall{SYS_accept4, "accept4", First::descriptor},
    SystemCall{SYS_connect, "connect", First::descriptor},
    SystemCall{SYS_fsync, "fsync", First::descriptor},
    SystemCall{SYS_fdatasync, "fdatasync", First::descriptor},
    SystemCall{SYS_ftruncate, "ftruncate", First::descriptor},
    SystemCall{SYS_fallocate, "fallocate", First::descriptor},
    SystemCall{SYS_flock, "flock", First::descriptor},
    SystemCall{SYS_fcntl, "fcntl", First::descriptor},
    SystemCall{SYS_ioctl, "ioctl", First::descriptor},
    SystemCall{SYS_getdents64, "getdents64", First::descriptor},
    SystemCall{SYS_close, "close", First::descriptor},
    SystemCall{SYS_openat, "openat", First::second_path},
    SystemCall{SYS_unlinkat, "unlinkat", First::second_path},
    SystemCall{SYS_mkdirat, "mkdirat", First::second_path},
    SystemCall{SYS_newfstatat, "fstatat", First::second_path},
    SystemCall{SYS_statx, "statx", First::second_path},
    SystemCall{SYS_renameat2, "renameat2", First::second_path},
    SystemCall{SYS_futex, "futex", First::nothing},
    SystemCall{SYS_ppoll, "ppoll", First::nothing},
    SystemCall{SYS_pselect6, "pselect6", First::nothing},
    SystemCall{SYS_epoll_pwait, "epoll_pwait", First::nothing},
    SystemCall{SYS_nanosleep, "nanosleep", First::nothing},
    SystemCall{SYS_clock_nanosleep, "clock_nanosleep", First::nothing},
    SystemCall{SYS_wait4, "wait4", First::nothing},
    SystemCall{SYS_waitid, "waitid", First::nothing},
    SystemCall{SYS_munmap, "munmap", First::nothing},
    SystemCall{SYS_mmap, "mmap", First::nothing},
    SystemCall{SYS_exit_group, "exit_group", First::nothing},
#ifdef __x86_64__  // newer machines have only the calls above
    SystemCall{SYS_open, "open", First::path},
    SystemCall{SYS_stat, "stat", First::path},
    SystemCall{SYS_mkdir, "mkdir", First::path},
    SystemCall{SYS_rename, "rename", First::path},
    SystemCall{SYS_unlink, "unlink", First::path},
    SystemCall{SYS_poll, "poll", First::nothing},
    SystemCall{SYS_select, "select", First::nothing},
    SystemCall{SYS_epoll_wait, "epoll_wait", First::nothing},
    SystemCall{SYS_pause, "pause", First::nothing},
    SystemCall{SYS_vfork, "vfork", First::nothing},
#endif
};

/// "5: /data/train.jsonl"; the number of a socket or pipe would only make equal stacks differ.
std::string describe_descriptor(const fs::path& process, std::uint64_t descriptor) {
  std::error_code error;
  const std::string target =
      fs::read_symlink(process / "fd" / std::to_string(descriptor), error).string();
  if (target.starts_with("socket:")) return "a socket";
  if (target.starts_with("pipe:")) return "a pipe";
  return target.empty() ? fmt::format("{}", descriptor) : fmt::format("{}: {}", descriptor, target);
}

std::string read_string(pid_t process, std::uint64_t address) {
  std::array<char, 256> text{};
  const iovec to{text.data(), text.size() - 1};
  // The address is the other process's.
  const iovec from{reinterpret_cast<void*>(address), text.size() - 1};  // NOLINT
  const ssize_t got = ::process_vm_readv(process, &to, 1, &from, 1, 0);
  return got > 0 ? std::string(text.data()) : "?";
}

/// "read(5: /data/train.jsonl)"; empty for a thread that runs.
std::string describe_call(pid_t process, const fs::path& thread) {
  std::istringstream fields(first_line(thread / "syscall"));
  long number = -1;
  std::string first;
  std::string second;
  if (!(fields >> number >> first >> second) || number < 0) return {};
  const auto* call = std::ranges::find(kSystemCalls, number, &SystemCall::number);
  if (call == kSystemCalls.end()) return fmt::format("system call {}", number);
  const auto value = [](const std::string& text) {
    return static_cast<std::uint64_t>(std::strtoull(text.c_str(), nullptr, 16));
  };
  switch (call->first) {
    case First::nothing:
      return fmt::format("{}()", call->name);
    case First::descriptor:
      return fmt::format("{}({})", call->name,
                         describe_descriptor(fmt::format("/proc/{}", process), value(first)));
    case First::path:
      return fmt::format("{}({})", call->name, read_string(process, value(first)));
    case First::second_path:
      return fmt::format("{}({})", call->name, read_string(process, value(second)));
  }
  return {};
}

}  // namespace

char process_state(pid_t process) { return state_in(fmt::format("/proc/{}", process)); }

char thread_state(pid_t process, pid_t thread) { return state_in(folder_of(process, thread)); }

std::string describe_kernel(pid_t process, pid_t number) {
  const fs::path thread = folder_of(process, number);
  const char state = state_in(thread);
  const std::string call = describe_call(process, thread);
  const std::string where = first_line(thread / "wchan");
  std::string text;
  if (state == 'D' || state == 'T') text = fmt::format("state {}", state);
  if (!call.empty()) text += (text.empty() ? "" : ", ") + call;
  if (!where.empty() && where != "0") text += (text.empty() ? "in " : " in ") + where;
  if (state != 'D') return text;
  std::istringstream frames(read_system_file(thread / "stack"));
  std::string frame;
  for (std::size_t i = 0; i < kMaxKernelFrames && std::getline(frames, frame); ++i) {
    // "[<0>] folio_wait_bit_common+0x13a/0x320"
    const auto begin = frame.find("] ");
    if (begin == std::string::npos) continue;
    text += "\n" + frame.substr(begin + 2, frame.find('+') - begin - 2);
  }
  return text;
}

}  // namespace dstrain::launcher
