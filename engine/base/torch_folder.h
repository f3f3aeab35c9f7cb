#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/user_folders.h"

namespace dstrain {

/// The torch wheel that a build wants; empty: no build with LibTorch, nothing is compared.
struct TorchVersion {
  std::string torch;  ///< "2.11.0"
  std::string cuda;   ///< "13.0"; wheels of one major version serve
};
[[nodiscard]] TorchVersion built_torch_version();
/// "LibTorch 2.11.0 for CUDA 13".
[[nodiscard]] std::string torch_words(const TorchVersion& wanted);

/// Where LibTorch was looked for.
struct TorchSearch {
  std::filesystem::path site;        ///< site-packages folder that serves; empty: none
  std::string place;                 ///< what named it, "VIRTUAL_ENV" for one
  std::vector<std::string> refused;  ///< the places before it, each with the reason: "PLACE: ..."
};

/// What a search depends on.
struct TorchPlaces {
  std::filesystem::path program;  ///< bin/dstrain
  Variable variable;
  TorchVersion wanted;
};
/// Those of this process.
[[nodiscard]] TorchPlaces own_torch_places();

/// The file in which `dstrain setup` remembers a folder for a user whose tree cannot be written;
/// empty without a home.
[[nodiscard]] std::filesystem::path users_torch(const TorchPlaces& places);

/// Why the torch of a site-packages folder does not serve, as "has torch 2.10.0 ..."; empty where
/// it does.
[[nodiscard]] std::string why_torch_does_not_serve(const std::filesystem::path& site,
                                                   const TorchVersion& wanted);

/// The first that serves of: $DSTRAIN_SITE_PACKAGES, which ends the search; the folder that the
/// tree remembers (module.h), then the user; the site-packages that the tree lies in; that of the
/// python3 beside the program; of $VIRTUAL_ENV; of $CONDA_PREFIX; of the python3 in PATH. Python is
/// asked where torch is, without importing it.
[[nodiscard]] TorchSearch locate_torch(const TorchPlaces& places);

/// Loads an engine library, the LibTorch of `site` before it, so that no variable of the loader is
/// needed and none that is set leads to another LibTorch; with an empty `site` what the loader
/// finds. Null, and why in `error`, when it cannot be loaded or is of another build than `build`,
/// which its dstrain_engine_build() returns; an empty `build` compares nothing.
[[nodiscard]] void* load_engine(const std::filesystem::path& library,
                                const std::filesystem::path& site, const std::string& build,
                                std::string& error);
/// Begins the error of an engine of another build.
inline constexpr const char* kOtherBuild = "it is of another build: ";

/// The sentence for a search that found nothing, and what to do about it.
[[nodiscard]] std::string no_torch_text(const TorchSearch& search, const TorchVersion& wanted);
[[nodiscard]] std::string no_torch_advice(const TorchVersion& wanted);

/// A library of the site-packages folder that this process' LibTorch came from, as
/// "nvidia/cu13/lib/libnvjpeg.so.13"; the file's name alone, so that the loader searches, where it
/// is not there.
[[nodiscard]] std::filesystem::path beside_torch(const std::filesystem::path& library);

}  // namespace dstrain
