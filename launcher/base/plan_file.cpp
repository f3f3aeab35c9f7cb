#include "launcher/base/plan_file.h"

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/run_layout.h"

namespace dstrain::launcher {

PlanFile read_plan(const std::filesystem::path& run) {
  PlanFile plan;
  try {
    const std::filesystem::path path = RunLayout(run).plan();
    if (!path_exists(path)) return plan;
    const nlohmann::json json = read_json_object(path);
    const nlohmann::json memory = json.value("memory", nlohmann::json());
    const nlohmann::json bytes =
        memory.is_object() ? memory.value("allocated_bytes", nlohmann::json()) : nlohmann::json();
    const nlohmann::json seconds = json.value("step_s", nlohmann::json());
    if (bytes.is_number_integer()) plan.allocated_bytes = bytes.get<std::int64_t>();
    if (seconds.is_number()) plan.step_s = seconds.get<double>();
  } catch (const Error&) {
    return plan;
  }
  return plan;
}

}  // namespace dstrain::launcher
