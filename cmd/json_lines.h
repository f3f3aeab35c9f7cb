#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/base/unique_fd.h"

namespace dstrain {

/// A file of answers, a JSON object in each line.
class JsonLines {
 public:
  /// Empties `file`; without a name lines go to standard output. Error{usage} where it cannot be
  /// written.
  explicit JsonLines(std::string file);
  void write(const nlohmann::ordered_json& line);

 private:
  std::string name_;
  UniqueFd out_;
};

}  // namespace dstrain
