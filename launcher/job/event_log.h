#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "launcher/base/console.h"

namespace dstrain::launcher {

/// What the launcher adds to events.jsonl of a run, which rank 0 writes while it runs: when the job
/// was launched and what stopped it, for reports over days of restarts. A file that is not writable
/// costs one warning; the job goes on.
class EventLog {
 public:
  explicit EventLog(Console& console) : console_(console) {}

  /// `fields`: an object whose members follow kind, step and time.
  void add(const std::filesystem::path& file, std::string_view kind, std::int64_t step,
           const nlohmann::ordered_json& fields);

 private:
  Console& console_;
  bool given_up_ = false;
};

}  // namespace dstrain::launcher
