#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace dstrain {

/// What a rank is doing right now, in a small file mapped by the rank and read by its agent. The
/// page outlives a SIGKILL of the rank, so the failure report can say "rank 5 stopped in
/// reduce(layer.7), micro-batch 2".
struct RankRecord {
  static constexpr std::uint64_t kMagic = 0x32636572'72747364;  // "dstrrec2"

  std::uint64_t magic = kMagic;
  std::atomic<std::int64_t> step{-1};     ///< optimizer step, -1 before the first
  std::atomic<std::int64_t> progress{0};  ///< grows with every action; a stalled rank stops it
  std::atomic<std::int64_t> time_ns{0};   ///< CLOCK_REALTIME of the last change
  std::array<char, 128> action{};         ///< "backward(layer.7), micro-batch 2", NUL-terminated
  std::atomic<std::int64_t> error_time_ns{0};  ///< CLOCK_REALTIME of `error`; 0 without one
  std::atomic<std::int32_t> error_code{0};     ///< exit code that the rank means to end with
  std::array<char, 512> error{};  ///< first line of the error that ends the rank, or empty
};

/// Maps (and creates when asked) the record file; Error{internal} when that fails.
class RankRecordFile {
 public:
  /// Creates or truncates `path`; used by the agent before it forks the rank.
  static RankRecordFile create(const std::filesystem::path& path);
  /// Opens what the agent made. A rank without an agent uses a record of its own memory:
  /// `anonymous()`.
  static RankRecordFile open(const std::filesystem::path& path);
  static RankRecordFile anonymous();

  ~RankRecordFile();
  RankRecordFile(RankRecordFile&& other) noexcept;
  RankRecordFile& operator=(RankRecordFile&& other) noexcept;
  RankRecordFile(const RankRecordFile&) = delete;
  RankRecordFile& operator=(const RankRecordFile&) = delete;

  /// Cheap enough for every action of a step.
  void enter(std::int64_t step, std::string_view action);
  /// Before the rank ends by an error: what a person reads, and the exit code that follows. Code 75
  /// (ErrorKind::again) says that only a peer was lost, so that the report looks for the cause
  /// elsewhere. The first call counts, later ones are echoes.
  void fail(std::string_view error, int exit_code = 70);
  [[nodiscard]] const RankRecord& get() const { return *record_; }

 private:
  explicit RankRecordFile(RankRecord* record) : record_(record) {}
  RankRecord* record_ = nullptr;
};

}  // namespace dstrain
