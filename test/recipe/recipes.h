#pragma once

#include <string>

namespace dstrain::test {

/// A small good recipe; `more` is appended as further lines.
inline std::string small_recipe(const std::string& more = {}) {
  return "model: { name: vit-tiny }\n"
         "data: { name: digits }\n"
         "batch: { global: 64, micro: 16 }\n"
         "run: { epochs: 1 }\n" +
         (more.find("optimizer:") == std::string::npos ? "optimizer: { lr: 1e-3 }\n"
                                                       : std::string()) +
         more;
}

}  // namespace dstrain::test
