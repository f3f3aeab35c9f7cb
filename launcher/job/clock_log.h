#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/append_file.h"
#include "engine/base/background_queue.h"
#include "launcher/base/background_writes.h"
#include "launcher/base/console.h"
#include "launcher/job/clock_offset.h"

namespace dstrain::launcher {

/// clocks.jsonl of a run: how far the clocks of its hosts are from the controller's, for readers
/// that put their times side by side (engine/trace/README.md). On many hosts a reading that the one
/// before foretells is left out for ten minutes, since thousands of clocks would make a gigabyte a
/// day. A file that is not writable is given up with one warning; the job goes on. The controller
/// never waits for the disk.
class ClockLog {
 public:
  static constexpr std::size_t kManyHosts = 64;
  static constexpr std::int64_t kQuietNs = 600'000'000'000;

  ClockLog(std::filesystem::path path, std::size_t hosts, Console& console)
      : many_(hosts > kManyHosts),
        console_(console),
        file_(std::make_shared<File>(std::move(path))) {}

  /// `host`: its own name for itself, which its traces say.
  void add(const std::string& host, const ClockReading& reading);
  /// The last one of a host: written in any case.
  void add_last(const std::string& host, const ClockReading& reading);

 private:
  void write(const std::string& host, const ClockReading& reading);

  /// What the thread that writes has.
  struct File {
    std::filesystem::path path;
    AppendFile file = {};
    bool open = false;
  };

  bool many_;
  Console& console_;
  std::shared_ptr<File> file_;  ///< null: given up
  std::optional<BackgroundQueue> writer_;
  std::optional<BackgroundWrites> writes_;       ///< of writer_
  std::map<std::string, ClockReading> written_;  ///< by host, the last; of many hosts
};

}  // namespace dstrain::launcher
