#include "launcher/job/progress_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/json.h"

namespace dstrain::launcher {

void ProgressReport::take(const std::string& line, Console& console, Console::Time now) {
  const nlohmann::json json = json_or_null(line);
  if (json.is_object() && json.value("kind", nlohmann::json()) == "end") {
    console.finish_progress();  // before what is said about the whole, as after the last step
    return;
  }
  const bool known = json.is_object() && json.contains("text") && json["text"].is_string();
  if (!known || json.value("kind", nlohmann::json()) != "progress") {
    console.lines(known ? json["text"].get<std::string>() : line);
    return;
  }
  console.progress(json["text"].get<std::string>(), now);
  if (json.contains("step") && json["step"].is_number_integer()) {
    step_ = std::max(step_, json["step"].get<std::int64_t>());
    if (json.contains("steps") && json["steps"] == json["step"]) console.finish_progress();
  }
  if (json.contains("memory_bytes") && json["memory_bytes"].is_number_integer()) {
    memory_bytes_ = std::max(memory_bytes_, json["memory_bytes"].get<std::int64_t>());
  }
}

}  // namespace dstrain::launcher
