#include "engine/device/built_gpus.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace dstrain {

std::string_view built_gpus() { return DSTRAIN_BUILT_GPUS; }

bool runs_kernels_of(std::string_view built, int major, int minor) {
  std::pair<int, int> newest{};
  while (!built.empty()) {
    const std::string_view one = built.substr(0, built.find(','));
    built.remove_prefix(one.size() < built.size() ? one.size() + 1 : one.size());
    const auto point = one.find('.');
    std::pair<int, int> code{};
    std::from_chars(one.data(), one.data() + point, code.first);
    std::from_chars(one.data() + point + 1, one.data() + one.size(), code.second);
    if (code.first == major && code.second <= minor) return true;
    newest = std::max(newest, code);
  }
  return std::pair(major, minor) > newest;
}

}  // namespace dstrain
