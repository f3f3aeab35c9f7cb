#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace dstrain::text {

/// One sample as its file has it, put into words.
struct Record {
  std::int64_t number = 0;  ///< from 1 in its file; of a file of lines: the line
  std::string prompt = {};
  std::string response = {};
  std::string group = {};    ///< samples of one group are never split between training and test
  std::string problem = {};  ///< why it cannot be used; empty: it can
  double share = 0;          ///< of the file that has been read
};

using RecordSink = std::function<void(Record&&)>;

}  // namespace dstrain::text
