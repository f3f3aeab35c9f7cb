#pragma once

#include <filesystem>

#include "engine/report/run_data.h"

namespace dstrain::report {

/// Reads gpu.csv, else memory.csv, and cpu.txt of the first host into `run.gpus` and `run.cpu`, and
/// the files of the other hosts (cpu-HOST.txt, gpu-HOST.csv, else memory-HOST.csv) into
/// `run.other_hosts`. What cannot be read becomes a problem of the run.
void read_samples(RunData& run);

/// Reads the last offset of each host into `run.clocks`; a run of one host has no such file.
void read_clocks(RunData& run, const std::filesystem::path& path);

}  // namespace dstrain::report
