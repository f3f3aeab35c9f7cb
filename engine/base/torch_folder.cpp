#include "engine/base/torch_folder.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <cstdlib>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/module.h"
#include "engine/base/program_output.h"

namespace dstrain {

namespace fs = std::filesystem;

namespace {

constexpr double kPythonLimit_s = 20;  ///< a first start from a network disk is slow

/// What the engine names directly; the rest follows by the paths inside the wheels. Those of CUDA
/// are named with the major version that the build wants.
std::vector<std::string> engine_needs(const TorchVersion& wanted) {
  const std::string major = wanted.cuda.substr(0, wanted.cuda.find('.'));
  std::vector<std::string> files = {"torch/lib/libtorch.so", "torch/lib/libtorch_cuda.so",
                                    "torch/lib/libgomp.so.1", "nvidia/nccl/lib/libnccl.so.2",
                                    "nvidia/cudnn/lib/libcudnn.so.9"};
  for (const char* name : {"cudart", "cublas", "cublasLt", "nvrtc"})
    files.push_back(fmt::format("nvidia/cu{}/lib/lib{}.so.{}", major, name, major));
  return files;
}

/// The words in quotes of `name = 'words'`, a line of torch/version.py.
std::string value_of(const std::string& line) {
  const auto first = line.find('\'');
  const auto last = line.rfind('\'');
  return first == std::string::npos || last == first ? ""
                                                     : line.substr(first + 1, last - first - 1);
}

std::string before(const std::string& text, char end) { return text.substr(0, text.find(end)); }

/// What the python3 at `python`, searched in PATH, says of where it finds torch: the folder above
/// the package; empty where it finds none or cannot be started.
fs::path site_of_python(const std::string& python) {
  constexpr const char* kQuestion =
      "import sys, importlib.util as u; sys.path = [p for p in sys.path if p]; "
      "s = u.find_spec('torch'); print(s.origin if s and s.origin else '')";
  const auto text = output_of({python, "-c", kQuestion}, kPythonLimit_s);
  if (!text) return {};
  const fs::path origin = before(*text, '\n');
  return origin.has_parent_path() ? origin.parent_path().parent_path() : fs::path();
}

/// The site-packages of a Python environment that has torch; else the first that it has.
fs::path site_of_environment(const fs::path& prefix) {
  std::error_code none;
  fs::path first;
  for (const auto& entry : fs::directory_iterator(prefix / "lib", none)) {
    if (!entry.path().filename().string().starts_with("python3")) continue;
    const fs::path site = entry.path() / "site-packages";
    if (fs::exists(site / "torch", none)) return site;
    if (first.empty()) first = site;
  }
  return first;
}

/// Empty where there is no such file, or no file that can be read.
std::string text_of(const fs::path& file) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 10;
  try {
    return read_file(file, kMaxBytes);
  } catch (const Error&) {
    return {};
  }
}

class Search {
 public:
  explicit Search(const TorchPlaces& places) : places_(places) {}

  TorchSearch run() {
    const fs::path beside = places_.program.parent_path() / "python3";
    const fs::path tree = tree_of(places_.program);
    std::error_code none;
    if (const char* named = variable("DSTRAIN_SITE_PACKAGES")) {
      (void)serves("DSTRAIN_SITE_PACKAGES", named);
      return found_;
    }
    for (const fs::path& file : {remembered_torch(tree), users_torch(places_)}) {
      const std::string line = before(text_of(file), '\n');
      if (!line.empty() && serves(file.string(), line)) return found_;
    }
    if (tree.filename() == "dstrain" && fs::exists(tree.parent_path() / "torch", none)) {
      if (serves("the folder beside dstrain's own", tree.parent_path())) return found_;
    }
    if (fs::exists(beside, none) && serves(beside.string(), site_of_python(beside))) return found_;
    for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
      const char* prefix = variable(name);
      if (prefix != nullptr && serves(name, site_of_environment(prefix))) return found_;
    }
    (void)serves("python3 in PATH", site_of_python("python3"));
    return found_;
  }

 private:
  /// A variable that is set and not empty.
  [[nodiscard]] const char* variable(const char* name) const {
    const char* value = places_.variable(name);
    return value == nullptr || *value == '\0' ? nullptr : value;
  }

  bool serves(const std::string& place, const fs::path& site) {
    if (site.empty()) {
      found_.refused.push_back(fmt::format("{}: finds no torch", place));
      return false;
    }
    const std::string reason = why_torch_does_not_serve(site, places_.wanted);
    if (reason.empty()) {
      found_.site = site;
      found_.place = place;
    } else {
      found_.refused.push_back(fmt::format("{}: {} {}", place, site.string(), reason));
    }
    return reason.empty();
  }

  const TorchPlaces& places_;
  TorchSearch found_;
};

/// The first line in which two texts of builds differ, of `one`.
std::string differing_line(const std::string& one, const std::string& other) {
  std::istringstream lines(one);
  std::istringstream others(other);
  std::string line;
  std::string beside;
  while (std::getline(lines, line) && std::getline(others, beside) && line == beside) {
  }
  return line;
}

/// The folder that torch/lib/libtorch_cpu.so of this process is in, two above.
int find_torch_site(dl_phdr_info* info, std::size_t, void* site) {
  const fs::path file = info->dlpi_name;
  if (file.filename() != "libtorch_cpu.so") return 0;
  *static_cast<fs::path*>(site) = file.parent_path().parent_path().parent_path();
  return 1;
}

}  // namespace

TorchVersion built_torch_version() { return {DSTRAIN_TORCH_VERSION, DSTRAIN_TORCH_CUDA}; }

std::string torch_words(const TorchVersion& wanted) {
  return fmt::format("LibTorch {} for CUDA {}", wanted.torch, before(wanted.cuda, '.'));
}

TorchPlaces own_torch_places() {
  std::error_code error;
  return {.program = fs::read_symlink("/proc/self/exe", error),
          .variable = [](const char* name) { return std::getenv(name); },
          .wanted = built_torch_version()};
}

fs::path users_torch(const TorchPlaces& places) {
  const fs::path config = user_config_folder(places.variable);
  return config.empty() ? config : config / "dstrain/site-packages";
}

std::string why_torch_does_not_serve(const fs::path& site, const TorchVersion& wanted) {
  std::error_code error;
  if (!fs::is_directory(site, error)) return "is no folder that can be read";
  std::istringstream lines(text_of(site / "torch" / "version.py"));
  std::string version;
  std::string cuda;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("__version__")) version = value_of(line);
    if (line.starts_with("cuda")) cuda = value_of(line);
  }
  if (version.empty()) return "has no torch";
  if (wanted.torch.empty()) return {};
  if (before(version, '+') != wanted.torch)
    return fmt::format("has torch {}, and this build needs {}", version, wanted.torch);
  if (cuda.empty())
    return fmt::format("has torch {} for CPUs alone, and this build needs the one for CUDA {}",
                       version, before(wanted.cuda, '.'));
  if (before(cuda, '.') != before(wanted.cuda, '.'))
    return fmt::format("has torch {} for CUDA {}, and this build needs the one for CUDA {}",
                       version, cuda, before(wanted.cuda, '.'));
  for (const std::string& name : engine_needs(wanted)) {
    if (!fs::exists(site / name, error))
      return fmt::format("has torch {} but no {}: install it anew", version, name);
  }
  return {};
}

TorchSearch locate_torch(const TorchPlaces& places) { return Search(places).run(); }

void* load_engine(const fs::path& library, const fs::path& site, const std::string& build,
                  std::string& error) {
  if (!site.empty()) {
    // The loader takes what is loaded already for any later library that names it.
    for (const std::string& name : engine_needs(built_torch_version())) {
      if (::dlopen((site / name).c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
        error = ::dlerror();
        return nullptr;
      }
    }
  }
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* words = ::dlerror();
    error = words == nullptr ? "unknown" : words;
  }
  if (handle == nullptr || build.empty()) return handle;
  using Function = const char* (*)();
  // The cast is how POSIX hands out functions.
  const auto function = reinterpret_cast<Function>(::dlsym(handle, "dstrain_engine_build"));
  const std::string found = function == nullptr ? "one that does not say which" : function();
  if (found == build) return handle;
  error = fmt::format("{}{}; this program is {}", kOtherBuild, differing_line(found, build),
                      differing_line(build, found));
  return nullptr;
}

std::string no_torch_text(const TorchSearch& search, const TorchVersion& wanted) {
  return fmt::format("no {} was found: {}", torch_words(wanted), fmt::join(search.refused, "; "));
}

std::string no_torch_advice(const TorchVersion& wanted) {
  return fmt::format(
      "dstrain setup fetches it or takes a folder that has it; or pip install torch=={} into a "
      "Python environment that is active, or name its site-packages in DSTRAIN_SITE_PACKAGES",
      wanted.torch);
}

fs::path beside_torch(const fs::path& library) {
  fs::path site;
  ::dl_iterate_phdr(&find_torch_site, &site);
  std::error_code error;
  return !site.empty() && fs::exists(site / library, error) ? site / library : library.filename();
}

}  // namespace dstrain
