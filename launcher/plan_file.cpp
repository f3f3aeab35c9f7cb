#include "launcher/plan_file.h"

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/file.h"

namespace dstrain::launcher {

PlanFile read_plan(const std::filesystem::path& run) {
  PlanFile plan;
  const std::filesystem::path path = run / "plan.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return plan;
  try {
    constexpr std::uint64_t kLargest = std::uint64_t{64} << 20;
    const auto json = nlohmann::json::parse(read_file(path, kLargest), nullptr, false);
    if (!json.is_object()) return plan;
    const nlohmann::json memory = json.value("memory", nlohmann::json::object());
    const nlohmann::json bytes = memory.value("allocated_bytes", nlohmann::json());
    const nlohmann::json seconds = json.value("step_s", nlohmann::json());
    if (bytes.is_number_integer()) plan.allocated_bytes = bytes.get<std::int64_t>();
    if (seconds.is_number()) plan.step_s = seconds.get<double>();
  } catch (const Error&) {
    return plan;
  } catch (const nlohmann::json::exception&) {  // memory is no object
    return plan;
  }
  return plan;
}

}  // namespace dstrain::launcher
