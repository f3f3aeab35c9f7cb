#pragma once

#include <mutex>
#include <set>
#include <string>

#include "engine/base/error.h"

namespace dstrain {

/// Names each file that is left out, once, on the terminal and in the rank's log. Any thread may
/// call it.
class DamagedFiles {
 public:
  /// `instead` says what takes its place.
  void name(const Error& error, const std::string& instead);

 private:
  std::mutex mutex_;
  std::set<std::string> named_;
};

}  // namespace dstrain
