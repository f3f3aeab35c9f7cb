#include "launcher/job/event_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "engine/base/append_file.h"
#include "engine/base/error.h"
#include "engine/base/json.h"

namespace dstrain::launcher {

void EventLog::add(const std::filesystem::path& file, std::string_view kind, std::int64_t step,
                   const nlohmann::ordered_json& fields) {
  if (given_up_) return;
  nlohmann::ordered_json line = {
      {"kind", kind},
      {"step", std::max<std::int64_t>(step, 0)},
      {"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))}};
  line.update(fields);
  try {
    // Rank 0 writes to it, too, on another host perhaps: it is open for this line alone.
    AppendFile log;
    log.open(file);
    log.append(json_text(line) + "\n");
  } catch (const Error& error) {
    given_up_ = true;
    console_.lines(
        fmt::format("warning: starts and stops of the job are not written down: {}", error.what()));
  }
}

}  // namespace dstrain::launcher
