// Frames of threads by elfutils' libdw.
#include <cxxabi.h>
#include <elfutils/libdwfl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "launcher/hang/stacks_libdw.h"

namespace dstrain::launcher {
namespace {

constexpr std::size_t kMaxFrames = 64;
constexpr std::size_t kMaxFunctionLength = 200;

struct EndSession {
  void operator()(Dwfl* session) const { ::dwfl_end(session); }
};
using Session = std::unique_ptr<Dwfl, EndSession>;

/// Separate files of debug information are not looked for: that may ask a server on the network.
int no_debug_file(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*,
                  GElf_Word, char**) {
  return -1;
}

/// "void f<int>(int, char) const [clone .cold]" -> "void f<int>": the lists are longer than the
/// names.
std::string without_arguments(std::string text) {
  text.resize(std::min(text.size(), text.find(" [clone ")));
  if (text.ends_with(" const")) text.resize(text.size() - std::strlen(" const"));
  if (!text.ends_with(')')) return text;
  int depth = 0;
  for (std::size_t i = text.size(); i-- > 1;) {
    if (text[i] == ')') ++depth;
    if (text[i] == '(' && --depth == 0) {
      text.resize(i);
      break;
    }
  }
  return text;
}

std::string demangle(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  std::string text = without_arguments(status == 0 && plain ? plain.get() : name);
  if (text.size() > kMaxFunctionLength) text = text.substr(0, kMaxFunctionLength) + "...";
  return text;
}

std::string file_name(const char* path) { return std::filesystem::path(path).filename().string(); }

std::string describe(Dwfl* session, Dwarf_Addr pc) {
  Dwfl_Module* module = ::dwfl_addrmodule(session, pc);
  if (module == nullptr) return fmt::format("{:#x}", pc);
  const char* path =
      ::dwfl_module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  const std::string binary = path == nullptr ? "?" : file_name(path);
  const char* name = ::dwfl_module_addrname(module, pc);
  if (name == nullptr) return fmt::format("?? in {}", binary);
  std::string text = demangle(name);
  int line = 0;
  if (Dwfl_Line* source = ::dwfl_module_getsrc(module, pc); source != nullptr) {
    const char* file = ::dwfl_lineinfo(source, nullptr, &line, nullptr, nullptr, nullptr);
    if (file != nullptr) return fmt::format("{} at {}:{}", text, file_name(file), line);
  }
  return fmt::format("{} in {}", text, binary);
}

struct Frames {
  Dwfl* session = nullptr;
  std::vector<std::string>& lines;
};

int add_frame(Dwfl_Frame* frame, void* argument) {
  auto& frames = *static_cast<Frames*>(argument);
  Dwarf_Addr pc = 0;
  bool is_activation = false;
  if (!::dwfl_frame_pc(frame, &pc, &is_activation)) return DWARF_CB_ABORT;
  // A return address may be that of the next function.
  frames.lines.push_back(describe(frames.session, is_activation ? pc : pc - 1));
  return frames.lines.size() < kMaxFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
}

}  // namespace

bool trace_with_libdw(pid_t process, std::vector<ThreadStack>& threads, std::string& error) {
  const Dwfl_Callbacks callbacks = {.find_elf = ::dwfl_linux_proc_find_elf,
                                    .find_debuginfo = no_debug_file,
                                    .section_address = nullptr,
                                    .debuginfo_path = nullptr};
  const Session session(::dwfl_begin(&callbacks));
  if (!session || ::dwfl_linux_proc_report(session.get(), process) != 0 ||
      ::dwfl_report_end(session.get(), nullptr, nullptr) != 0 ||
      ::dwfl_linux_proc_attach(session.get(), process, /*assume_ptrace_stopped=*/false) != 0) {
    error = ::dwfl_errmsg(-1);
    return false;
  }
  bool found = false;
  for (ThreadStack& thread : threads) {
    Frames frames{session.get(), thread.frames};
    ::dwfl_getthread_frames(session.get(), thread.thread, add_frame, &frames);
    if (thread.frames.empty()) error = ::dwfl_errmsg(-1);
    found = found || !thread.frames.empty();
  }
  return found;
}

}  // namespace dstrain::launcher
