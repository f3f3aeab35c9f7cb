#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/append_file.h"

namespace dstrain {

/// A run of Weights & Biases as its program writes it in offline mode: a log in LevelDB's format of
/// blocks (wandb/sdk/internal/datastore.py) of protocol buffers (wandb/proto/wandb_internal.proto).
/// Each call writes one record at once. Values are JSON texts.
class WandbFile {
 public:
  using Items = std::vector<std::pair<std::string, std::string>>;  ///< key, JSON

  struct Run {
    std::string id;  ///< letters and digits
    std::string project;
    std::string entity;
    std::string group;
    std::string name;
    std::string host;
    Items config;
    double start_time_s = 0;  ///< since 1970
    bool resumes = false;     ///< goes on with a run of this id, of which there is a file already
  };

  /// Begins the file; Error{checkpoint} as AppendFile.
  void open(const std::filesystem::path& path, const Run& run);
  void history(std::int64_t step, const Items& items);
  void summary(const Items& items);
  void stats(double time_s, const Items& items);
  /// Says that the run has ended.
  void exit(int code, double runtime_s);

 private:
  void record(unsigned field, std::string_view message);
  void append(std::string_view data);

  AppendFile file_;
  std::uint64_t size_ = 0;  ///< of the file
  std::int64_t records_ = 0;
};

}  // namespace dstrain
