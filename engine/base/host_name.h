#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace dstrain {

/// Name of this machine, as gethostname() says; empty where it does not.
[[nodiscard]] inline std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace dstrain
