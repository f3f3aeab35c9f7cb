#pragma once

#include <map>
#include <string>

#include "engine/base/error.h"
#include "engine/import/import.h"

namespace dstrain::test {

/// Options whose files are texts in memory: "ds.json", "args.json", "accelerate.yaml", "job.sbatch"
/// are given where they are there.
inline importing::ImportOptions options_of(std::map<std::string, std::string> files) {
  importing::ImportOptions options;
  if (files.contains("ds.json")) options.deepspeed = "ds.json";
  if (files.contains("args.json")) options.trainer = "args.json";
  if (files.contains("accelerate.yaml")) options.accelerate = "accelerate.yaml";
  if (files.contains("job.sbatch")) options.sbatch = "job.sbatch";
  options.open = [files = std::move(files)](const std::string& path) {
    const auto found = files.find(path);
    if (found == files.end()) throw Error(ErrorKind::usage, "there is no file " + path);
    return found->second;
  };
  return options;
}

/// The messages of what is refused; "ok" when nothing is.
inline std::string refusal(const importing::ImportOptions& options) {
  try {
    (void)importing::import_settings(options);
    return "ok";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace dstrain::test
