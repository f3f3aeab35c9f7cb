#include "engine/train/measure/profile.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <map>
#include <set>

namespace dstrain {

std::vector<KernelTime> profile_kernels(const std::function<void()>& work) {
  using torch::profiler::impl::ActivityType;
  namespace profiler = torch::autograd::profiler;
  const profiler::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  work();
  const auto result = profiler::disableProfiler();
  std::map<std::string, KernelTime> by_name;
  for (const auto& event : result->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    KernelTime& kernel = by_name[event.name()];
    kernel.name = event.name();
    ++kernel.runs;
    kernel.seconds += static_cast<double>(event.durationNs()) * 1e-9;
  }
  std::vector<KernelTime> list;
  for (auto& [name, kernel] : by_name) list.push_back(std::move(kernel));
  std::ranges::sort(list, std::greater{}, &KernelTime::seconds);
  return list;
}

}  // namespace dstrain
