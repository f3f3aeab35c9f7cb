#include "launcher/doctor/engine_probe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>

#include "engine/base/torch_folder.h"
#include "launcher/base/fd.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Known {
  const char* file;      ///< its name begins with it
  const char* name;      ///< for people
  const char* function;  ///< int f(int*) that gives the version; null: see torch_version()
};
constexpr std::array kKnown = {Known{"libtorch_cpu.so", "LibTorch", nullptr},
                               Known{"libnccl.so", "NCCL", "ncclGetVersion"},
                               Known{"libcudart.so", "CUDA runtime", "cudaRuntimeGetVersion"}};

/// The wheel's own version.py, two folders above the library.
std::string torch_version(const fs::path& library) {
  std::ifstream file(library.parent_path().parent_path() / "version.py");
  std::string line;
  while (std::getline(file, line)) {
    const auto first = line.find('\'');
    const auto last = line.rfind('\'');
    if (line.starts_with("__version__") && last > first)
      return line.substr(first + 1, last - first - 1);
  }
  return {};
}

/// NCCL counts 22809 as 2.28.9, CUDA 13000 as 13.0.
std::string format_version(const std::string& name, int number) {
  return name == "NCCL" ? fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100)
                        : fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

int collect_path(dl_phdr_info* info, std::size_t, void* list) {
  static_cast<std::vector<std::string>*>(list)->emplace_back(info->dlpi_name);
  return 0;
}

/// In the child: one line "kind\tname\tversion\tpath" per fact.
std::string load(const fs::path& library, const fs::path& site, const std::string& build) {
  std::string error;
  void* handle = load_engine(library, site, build, error);
  if (handle == nullptr) return fmt::format("error\t{}\t\t\n", error);
  std::string text = "loads\t\t\t\n";
  std::vector<std::string> paths;
  ::dl_iterate_phdr(&collect_path, &paths);
  for (const std::string& path : paths) {
    const std::string file = fs::path(path).filename();
    for (const Known& known : kKnown) {
      if (!file.starts_with(known.file)) continue;
      std::string version;
      int number = 0;
      using Function = int (*)(int*);
      // The cast is how POSIX hands out functions.
      const auto function = known.function == nullptr
                                ? nullptr
                                : reinterpret_cast<Function>(::dlsym(handle, known.function));
      if (known.function == nullptr) version = torch_version(path);
      if (function != nullptr && function(&number) == 0)
        version = format_version(known.name, number);
      text += fmt::format("library\t{}\t{}\t{}\n", known.name, version, path);
    }
  }
  return text;
}

/// "libtorch.so: cannot open shared object file: ..." -> "libtorch.so".
std::string missing_library(const std::string& error) {
  const auto end = error.find(": cannot open shared object file");
  return end == std::string::npos ? "" : fs::path(error.substr(0, end)).filename().string();
}

EngineFacts parse(const std::string& text, const fs::path& library) {
  EngineFacts facts;
  facts.path = library.string();
  std::size_t start = 0;
  for (auto end = text.find('\n'); end != std::string::npos; end = text.find('\n', start)) {
    std::array<std::string, 4> words;
    std::string_view line = std::string_view(text).substr(start, end - start);
    for (std::string& word : words) {
      const auto tab = line.find('\t');
      word = line.substr(0, tab);
      line = tab == std::string_view::npos ? std::string_view() : line.substr(tab + 1);
    }
    if (words[0] == "loads") facts.loads = true;
    if (words[0] == "error") facts.error = words[1];
    if (words[0] == "library") facts.libraries.push_back({words[1], words[2], words[3]});
    start = end + 1;
  }
  facts.missing = missing_library(facts.error);
  return facts;
}

}  // namespace

EngineFacts probe_engine(const fs::path& library, const std::string& build,
                         std::chrono::milliseconds limit) {
  const TorchSearch search = locate_torch(own_torch_places());
  Pipe pipe = make_pipe();
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) fail_system("start a child that loads the engine library");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, fd);
    const std::string text = load(library, search.site, build);
    const bool written =
        ::write(pipe.write.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
    // Without the libraries' own endings: they are none of this child's business.
    ::_exit(written ? 0 : 1);
  }
  pipe.write.reset();
  std::string text;
  const auto deadline = Clock::now() + limit;
  bool late = false;
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{pipe.read.get(), POLLIN, 0};
    const int ready = left > 0 ? ::poll(&wait, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    late = ready == 0;
    if (ready <= 0) break;
    std::array<char, 4096> block{};
    const ssize_t got = ::read(pipe.read.get(), block.data(), block.size());
    if (got <= 0) break;
    text.append(block.data(), static_cast<std::size_t>(got));
  }
  if (late) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  EngineFacts facts = parse(text, library);
  if (search.site.empty()) facts.torch = no_torch_text(search, built_torch_version());
  if (late) facts.error = fmt::format("not loaded within {} s", limit.count() / 1000);
  if (!facts.loads && facts.error.empty()) {
    facts.error = WIFSIGNALED(status)
                      ? fmt::format("the loader died of signal {}", WTERMSIG(status))
                      : "the loader ended without a word";
  }
  return facts;
}

}  // namespace dstrain::launcher
