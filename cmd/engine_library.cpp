#include "cmd/engine_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "cmd/version.h"
#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/job_environment.h"
#include "engine/base/limits.h"
#include "engine/base/module.h"
#include "engine/base/rank_record.h"
#include "engine/base/torch_folder.h"

namespace dstrain {
namespace {

/// OpenMP's threads sleep while they wait, unless the user says otherwise: on a machine where
/// others compute, spinning ones keep the work from the cores. Read by libgomp when it is loaded.
void choose_waiting() {
  if (std::getenv("GOMP_SPINCOUNT") == nullptr) ::setenv("OMP_WAIT_POLICY", "passive", 0);
  // A hardware queue for each lane: one that waits for the host must not hold up another.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
}

/// Segments that grow leave hardly any memory free between tensors of different sizes: the driver
/// then sees what the plan says.
void choose_segments() {
  if (std::getenv("PYTORCH_ALLOC_CONF") == nullptr)
    ::setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", /*overwrite=*/0);
}

/// The loader has no error codes; these are its words for memory that cannot be had.
Error loading_error(const std::filesystem::path& library, const std::string& reason,
                    const TorchSearch& search) {
  if (!path_exists(library)) {
    return {ErrorKind::hosts, fmt::format("the engine is not there: {}", library.string()),
            "install dstrain anew: bin/dstrain and lib/dstrain belong together"};
  }
  if (reason.starts_with(kOtherBuild)) {
    return {ErrorKind::hosts, fmt::format("cannot load {}: {}", library.string(), reason),
            "install dstrain anew: bin/dstrain and lib/dstrain belong together"};
  }
  if (search.site.empty()) {
    const TorchVersion wanted = built_torch_version();
    return {ErrorKind::hosts, no_torch_text(search, wanted), no_torch_advice(wanted)};
  }
  for (const char* words : {"Cannot allocate memory", "failed to map segment", "cannot allocate"}) {
    if (reason.find(words) == std::string::npos) continue;
    if (auto error = address_space_error(std::make_error_code(std::errc::not_enough_memory)))
      return *error;
  }
  return {ErrorKind::internal, fmt::format("cannot load {}: {}", library.string(), reason),
          fmt::format("LibTorch is that of {}, named by {}; install it and dstrain anew",
                      search.site.string(), search.place)};
}

/// For the agent, where this process is a rank; train() records what comes later.
void record_failure(const Error& error) {
  if (const char* record = std::getenv(job_environment::kRankRecord))
    RankRecordFile::open(record).fail(error.what(), exit_code(error.kind()));
}

}  // namespace

bool has_engine_library() { return path_exists(engine_library_path()); }

int run_engine_library(int argc, char** argv) {
  choose_waiting();
  choose_segments();
  const std::filesystem::path library = engine_library_path();
  const TorchSearch search = locate_torch(own_torch_places());
  std::string reason;
  // Without a wheel that serves, LibTorch may still be where the loader looks.
  void* handle = load_engine(library, search.site, kVersion, reason);
  if (handle == nullptr) {
    const Error error = loading_error(library, reason, search);
    record_failure(error);
    throw error;
  }
  using Entry = int (*)(int, char**);
  // The cast is how POSIX hands out functions.
  const auto entry = reinterpret_cast<Entry>(::dlsym(handle, "dstrain_engine_main"));
  DSTRAIN_CHECK(entry != nullptr, library.string() + " lacks dstrain_engine_main");
  return entry(argc, argv);
}

bool recipe_fits(const std::string& recipe, const std::vector<std::string>& overrides, int ranks,
                 bool gpus) {
  if (!has_engine_library()) return true;
  std::vector<std::string> words = {"dstrain", "fits", recipe};
  if (ranks > 0) words.insert(words.end(), {"--ranks", fmt::to_string(ranks)});
  if (gpus) words.emplace_back("--gpus");
  for (const std::string& override : overrides) words.insert(words.end(), {"--set", override});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  return run_engine_library(static_cast<int>(words.size()), arguments.data()) == 0;
}

}  // namespace dstrain
