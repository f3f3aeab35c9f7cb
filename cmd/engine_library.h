#pragma once

namespace dstrain {

/// Loads libdstrain_engine.so from beside the executable (build tree) or ../lib (installed) and
/// runs one of its commands. Error{internal} says where it was looked for and which library is
/// missing.
int run_engine_library(int argc, char** argv);

}  // namespace dstrain
