#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dstrain::text {

/// By what rule an answer to a sample is right.
enum class AnswerRule {
  words,  ///< SQuAD's: exact match and F1 of words
  gsm,    ///< of MetaMathQA, questions like GSM8K's: the number
  math    ///< of MetaMathQA, questions like MATH's: the expression
};

/// One sample as its file has it, put into words.
struct Record {
  std::int64_t number = 0;  ///< from 1 in its file; of a file of lines: the line
  std::string prompt = {};
  std::string response = {};
  std::string group = {};    ///< samples of one group are never split between training and test
  /// Every right answer, where a data set has them beside `response`; an empty one: there is none.
  std::vector<std::string> answers = {};
  AnswerRule rule = AnswerRule::words;
  std::string problem = {};  ///< why it cannot be used; empty: it can
  double share = 0;          ///< of the file that has been read
};

/// Bytes of a record's text, and of its line in a file of lines; a longer one cannot be used.
inline constexpr std::size_t kMaxRecordBytes = std::size_t{16} << 20;
/// "40000000 bytes, a record has at most 16777216".
[[nodiscard]] inline std::string too_long(std::size_t bytes) {
  return std::to_string(bytes) + " bytes, a record has at most " + std::to_string(kMaxRecordBytes);
}

using RecordSink = std::function<void(Record&&)>;

}  // namespace dstrain::text
