#include "launcher/job/clock_log.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/json.h"

namespace dstrain::launcher {

void ClockLog::add(const std::string& host, const ClockReading& reading) {
  if (many_) {
    const auto [last, is_new] = written_.try_emplace(host, reading);
    const bool moved = std::abs(reading.offset_ns - last->second.offset_ns) >
                       reading.bound_ns + last->second.bound_ns;
    if (!is_new && !moved && reading.t_ns - last->second.t_ns < kQuietNs) return;
    last->second = reading;
  }
  write(host, reading);
}

void ClockLog::add_last(const std::string& host, const ClockReading& reading) {
  write(host, reading);
}

void ClockLog::write(const std::string& host, const ClockReading& reading) {
  if (!file_) return;
  if (!writer_) writes_.emplace(writer_.emplace([] {}, BackgroundQueue::kUnlimited));
  if (const std::string error = writes_->error(); !error.empty()) {
    console_.lines(fmt::format("warning: the clocks of the hosts are not written down: {}", error));
    file_.reset();
    return;
  }
  nlohmann::ordered_json line;
  line["t_ns"] = reading.t_ns;
  line["host"] = host;
  line["offset_ns"] = reading.offset_ns;
  line["bound_ns"] = reading.bound_ns;
  std::string text = json_text(line) + "\n";
  writes_->push(text.size(), [file = file_, text = std::move(text)] {
    if (!file->open) file->file.open(file->path);
    file->open = true;
    file->file.append(text);
  });
}

}  // namespace dstrain::launcher
