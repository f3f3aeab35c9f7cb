#pragma once

namespace dstrain {

/// What `dstrain --version` prints: version and commit, compilers, LibTorch, GPUs. A program, its
/// engine and the agents on other hosts belong together where it is the same.
extern const char* const kVersion;

}  // namespace dstrain
