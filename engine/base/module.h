#pragma once

#include <filesystem>
#include <string>

namespace dstrain {

/// One layout for what is built, installed, unpacked or copied to a host: bin/dstrain, beside it
/// lib/dstrain/ with the engine, modules, helpers and bundled libraries, and share/dstrain/. In a
/// wheel the last two are below site-packages/dstrain, and bin/ is that of the environment.

/// Where a shared library or helper of dstrain's own lies that is opened only when it is needed:
/// beside the binary that holds this function, else in lib/dstrain of its tree, or of a folder
/// above it (programs of tests). `name` alone, so that the system searches, when it is nowhere.
[[nodiscard]] std::filesystem::path find_module(const std::string& name);

/// The folder that holds lib/dstrain and share/dstrain of the tree of `program`, a file in bin/;
/// the folder above bin/ where there is no lib/dstrain at all.
[[nodiscard]] std::filesystem::path tree_of(const std::filesystem::path& program);

/// libdstrain_engine.so of this program: beside it, else in its tree, where it may be missing.
[[nodiscard]] std::filesystem::path engine_library_path();

/// The file in which a tree remembers the site-packages folder with its LibTorch: written by a build
/// and by `dstrain setup`, one line.
[[nodiscard]] std::filesystem::path remembered_torch(const std::filesystem::path& tree);

}  // namespace dstrain
