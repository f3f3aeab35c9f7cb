#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/make_folder.h"
#include "engine/base/module.h"
#include "engine/base/output.h"
#include "engine/base/program_output.h"
#include "engine/base/torch_folder.h"
#include "engine/base/units.h"
#include "engine/base/user_folders.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// The wheels of torch and CUDA unpacked, 5 GB, and as pip keeps them until all are unpacked.
constexpr Bytes kTorchBytes = 8'000'000'000;
constexpr Bytes kSpaceStep = 100'000'000;
constexpr double kPipLimit_s = 4 * 3600;
/// No Python runs LibTorch here: wheels of one version serve beside a python3 of any age.
constexpr const char* kPythonOfWheels = "3.12";
/// In a folder that pip has not finished: what is in it is ours and may go.
constexpr const char* kUnfinished = ".dstrain-unfinished";

struct SetupOptions {
  fs::path torch_dir;
  bool parquet = false;
};

/// Where pip puts LibTorch when nobody says.
fs::path default_folder() {
  if (const char* cache = std::getenv("DSTRAIN_CACHE")) return fs::path(cache) / "torch";
  const fs::path caches = user_cache_folder(::getenv);
  if (!caches.empty()) return caches / "dstrain/torch";
  throw Error(ErrorKind::usage, "neither HOME nor DSTRAIN_CACHE is set",
              "--torch-dir says where LibTorch shall lie");
}

/// A folder of site-packages below `folder` whose torch serves: itself, or that of a Python
/// environment. What is there and does not serve ends in `reason`.
std::optional<fs::path> serving_below(const fs::path& folder, std::string& reason) {
  std::vector<fs::path> sites = {folder};
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder / "lib", none))
    sites.push_back(entry.path() / "site-packages");
  for (const fs::path& site : sites) {
    if (!fs::exists(site / "torch", none)) continue;
    reason = why_torch_does_not_serve(site, built_torch_version());
    if (reason.empty()) return fs::canonical(site);
    reason = fmt::format("{} {}", site.string(), reason);
  }
  return std::nullopt;
}

/// Takes `kTorchBytes` of the disk for a moment and says how many of them were granted: a quota is
/// in no figure of free bytes. `reason` is then EDQUOT or ENOSPC, and 0 where all were granted or
/// the file system does not say.
Bytes granted_bytes(const fs::path& folder, int& reason) {
  reason = 0;
  const fs::path file = folder / fmt::format(".dstrain-space-{}", ::getpid());
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return 0;
  ::unlink(file.c_str());
  const auto limit_of_files = ::signal(SIGXFSZ, SIG_IGN);  // else ulimit -f ends us
  Bytes granted = 0;
  while (granted < kTorchBytes && reason == 0) {
    if (::fallocate(fd, 0, granted, kSpaceStep) == 0) {
      granted += kSpaceStep;
    } else if (errno != EINTR) {
      reason = errno;
    }
  }
  ::signal(SIGXFSZ, limit_of_files);
  ::close(fd);
  if (reason != EDQUOT && reason != ENOSPC) reason = 0;
  return granted;
}

void require_space(const fs::path& folder) {
  Bytes free = free_disk_bytes(folder);
  int reason = free >= 0 && free < kTorchBytes ? ENOSPC : 0;
  if (reason == 0) free = granted_bytes(folder, reason);
  if (reason == 0) return;
  throw Error(ErrorKind::checkpoint,
              fmt::format("{} in {}, LibTorch needs {}",
                          reason == EDQUOT ? fmt::format("a quota leaves {}", format_bytes(free))
                                           : fmt::format("{} are free", format_bytes(free)),
                          folder.string(), format_bytes(kTorchBytes)),
              "--torch-dir names a folder on another disk");
}

/// Words that start pip for `python3`, or uv, which does the same.
std::vector<std::string> installer() {
  if (output_of({"python3", "-m", "pip", "--version"}, 60))
    // pip of Debian 11 holds its own Python, not that of the wheels, against what they require.
    return {"python3",
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-cache-dir",
            "--ignore-requires-python"};
  if (output_of({"uv", "--version"}, 60)) return {"uv", "pip", "install", "--no-cache"};
  throw Error(ErrorKind::hosts, "neither `python3 -m pip` nor `uv` works here",
              "install python3-pip, or uv as an ordinary user; or name a folder that has torch by "
              "--torch-dir");
}

/// Several gigabytes go beside the folder while they arrive: /tmp may be small.
void install_torch(const fs::path& folder, bool parquet) {
  require_space(folder);
  std::vector<std::string> command = installer();
  command.insert(command.end(),
                 {"--python-version", kPythonOfWheels, "--only-binary", ":all:", "--target",
                  folder.string(), fmt::format("torch=={}", built_torch_version().torch)});
  if (parquet) command.emplace_back("pyarrow==" DSTRAIN_PYARROW_VERSION);
  write_file_atomically(folder / kUnfinished, "pip puts LibTorch here\n");
  const fs::path temporary = folder / ".tmp";
  make_folder(temporary);
  ::setenv("TMPDIR", temporary.c_str(), /*overwrite=*/1);
  print_error("{} into {}: about 3 GB to fetch\n", command.back(), folder.string());
  const bool done = output_of(command, kPipLimit_s, STDERR_FILENO).has_value();
  std::error_code none;
  fs::remove_all(temporary, none);
  if (!done) {
    throw Error(
        ErrorKind::hosts, fmt::format("pip could not install LibTorch into {}", folder.string()),
        "its last lines say why: a quota that is used up (--torch-dir names another disk), no "
        "network (pip takes mirrors by PIP_INDEX_URL), a pip before 20.3 (uv is one file)");
  }
  fs::remove(folder / kUnfinished, none);
}

/// Empties a folder that an earlier setup has left half finished.
void clear_unfinished(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kUnfinished, error)) return;
  print_error("note: {} was left half finished and is made again\n", folder.string());
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename() != kUnfinished) fs::remove_all(entry.path(), error);
  if (error)
    throw Error(ErrorKind::checkpoint,
                fmt::format("cannot empty {}: {}", folder.string(), error.message()),
                "--torch-dir names another folder");
}

/// In the tree, for all who use it; else for this user.
fs::path remember(const fs::path& site) {
  const TorchPlaces places = own_torch_places();
  std::vector<fs::path> files = {remembered_torch(tree_of(places.program))};
  if (const fs::path own = users_torch(places); !own.empty()) files.push_back(own);
  std::string why;
  for (const fs::path& file : files) {
    try {
      make_folder(file.parent_path());
      write_file_atomically(file, site.string() + "\n");
      return file;
    } catch (const Error& error) {
      why = error.what();
    }
  }
  throw Error(ErrorKind::usage, fmt::format("the folder cannot be remembered: {}", why),
              fmt::format("export DSTRAIN_SITE_PACKAGES={}", site.string()));
}

int setup(const SetupOptions& options) {
  if (options.torch_dir.empty()) {
    const TorchSearch search = locate_torch(own_torch_places());
    if (!search.site.empty()) {
      print_text("{}: {} (by {}); --torch-dir names another\n", torch_words(built_torch_version()),
                 search.site.string(), search.place);
      return 0;
    }
  }
  const fs::path folder =
      options.torch_dir.empty() ? default_folder() : fs::absolute(options.torch_dir);
  clear_unfinished(folder);
  std::string reason;
  auto site = serving_below(folder, reason);
  if (!site) {
    if (!reason.empty()) {
      throw Error(ErrorKind::usage, reason, "--torch-dir names another folder, which may be new");
    }
    make_folder(folder);
    install_torch(folder, options.parquet);
    site = serving_below(folder, reason);
    if (!site)
      throw Error(ErrorKind::hosts, fmt::format("pip left no torch that serves: {}", reason), "");
  }
  const fs::path file = remember(*site);
  print_text("{}: {}, remembered in {}\n", torch_words(built_torch_version()), site->string(),
             file.string());
  return 0;
}

}  // namespace

Command add_setup(CLI::App& root) {
  auto options = std::make_shared<SetupOptions>();
  CLI::App* app = root.add_subcommand("setup",
                                      "Fetch LibTorch for a dstrain that was unpacked, by pip and "
                                      "without root, or take one that is "
                                      "there.");
  app->footer(
      "Python is used now, and not when dstrain runs.\n"
      "Examples:\n"
      "  dstrain setup --torch-dir /scratch/$USER/torch\n"
      "  dstrain setup --torch-dir ~/miniconda3/envs/train");
  app->add_option(
      "--torch-dir", options->torch_dir,
      "Folder for LibTorch, 5 GB and 3 more while pip works; or a site-packages folder or a Python "
      "environment that has it.\n"
      "Default: torch/ in the cache of dstrain ($DSTRAIN_CACHE, ~/.cache/dstrain).");
  app->add_flag("--parquet", options->parquet, "Also pyarrow, to read parquet files.");
  return {app, [options] { return setup(*options); }};
}

}  // namespace dstrain
