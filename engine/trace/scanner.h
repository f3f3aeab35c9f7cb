#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/trace/json_text.h"

namespace dstrain::trace {

/// One object of "traceEvents". Views hold until the next event is read. Texts are as they stand in
/// the file, between the quotes: unescape() makes them readable. json_text.h reads `args`.
struct Event {
  char phase = 0;  ///< "X", "i", "M", "s", "t", "f", "C", ...
  std::string_view name = {};
  std::string_view category = {};
  std::string_view pid = {};  ///< number or text without quotes
  std::string_view tid = {};
  std::string_view id = {};    ///< of a flow
  std::string_view time = {};  ///< "ts" as it stands there
  /// Exact: the file's decimal microseconds, plus its baseTimeNanoseconds where it stands before
  /// the events (else Scanner::late_base_ns has to be added).
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;  ///< may be negative in a broken trace
  std::string_view args = {};    ///< with its braces; empty: none
  std::string_view object = {};  ///< the whole event, with its braces
  std::uint64_t offset = 0;      ///< of `object`, in the text that was decompressed
};

/// What was wrong with a file and left out.
struct ScanProblem {
  std::uint64_t offset = 0;  ///< bytes from the begin of the text
  std::string what;          ///< "an event is cut off"
};

/// Reads a trace file in bounded memory: .json, .gz (zlib) or .zst, told by its first bytes. Goes
/// on at the next event where one is broken. Error{data} with the path where nothing can be read.
class Scanner {
 public:
  explicit Scanner(const std::filesystem::path& path);
  ~Scanner();
  Scanner(Scanner&&) noexcept;
  Scanner& operator=(Scanner&&) noexcept;

  /// False at the end.
  [[nodiscard]] bool next(Event& event);
  /// The value of a key of the outermost object as it stands in the file, e.g. "distributedInfo";
  /// keys behind the events are known at the end. At most 1 MiB is kept of one.
  [[nodiscard]] std::optional<std::string> top(std::string_view key) const;
  [[nodiscard]] std::int64_t base_ns() const;       ///< baseTimeNanoseconds, or 0
  [[nodiscard]] std::int64_t late_base_ns() const;  ///< the part that no event's start has
  [[nodiscard]] std::uint64_t problems() const;
  /// The first 20.
  [[nodiscard]] const std::vector<ScanProblem>& first_problems() const;
  /// "rank 3: 2 events of FILE have a negative \"dur\" ..."; empty where none has. Profilers write
  /// such slices where a clock was set back.
  [[nodiscard]] std::string negative_durations(int rank) const;
  [[nodiscard]] std::uint64_t bytes() const;       ///< of decompressed text, so far
  [[nodiscard]] std::uint64_t file_bytes() const;  ///< of the file, so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dstrain::trace
