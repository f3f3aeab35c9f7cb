#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/base/unique_fd.h"

namespace dstrain {

/// A file of answers, a JSON object in each line.
class JsonLines {
 public:
  /// Without a name lines go to standard output. What is in `file` stays until the first line, so
  /// that a command that is refused loses nothing. Error{usage} where it cannot be written, or is
  /// one of `inputs`.
  JsonLines(std::string file, const std::vector<std::string>& inputs);
  void write(const nlohmann::ordered_json& line);

 private:
  std::string name_;
  UniqueFd out_;
  bool emptied_ = false;
};

}  // namespace dstrain
