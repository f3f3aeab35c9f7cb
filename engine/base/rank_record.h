#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dstrain {

/// The part of a run that a rank is in; how long it may stand still depends on it
/// (launcher/hang/stall_watch.h).
enum class RankSection : std::int32_t {
  init,        ///< until the first step, beside what is `data`
  data,        ///< opening and preparing data sets
  step,        ///< training
  evaluate,    ///< evaluation and generated answers
  checkpoint,  ///< a save that training waits for, or a resume
  finish,      ///< after the last step
};
/// "step".
[[nodiscard]] std::string_view name_of(RankSection section);

/// What a rank is doing right now, in a small file mapped by the rank and read by its agent. The
/// page outlives a SIGKILL of the rank, so the failure report can say "rank 5 stopped in
/// reduce(layer.7), micro-batch 2". The texts are read while they change, so a reader may find the
/// head of one and the tail of another.
struct RankRecord {
  static constexpr std::uint64_t kMagic = 0x34636572'72747364;  // "dstrrec4"

  std::uint64_t magic = kMagic;
  std::atomic<std::int64_t> step{-1};     ///< optimizer step, -1 before the first
  std::atomic<std::int64_t> progress{0};  ///< grows with every action; a stalled rank stops it
  std::atomic<std::int64_t> time_ns{0};   ///< CLOCK_REALTIME of the last change
  std::array<char, 128> action{};         ///< "backward(layer.7), micro-batch 2", NUL-terminated
  std::atomic<RankSection> section{RankSection::init};
  std::atomic<std::int32_t> stage{0};  ///< of a pipeline; ranks of one stage have equal work

  /// Calls in which ranks wait for each other, in the order in which all ranks make them; two ranks
  /// of one program are compared by these. On a GPU a call only enqueues, so `left` follows at once
  /// and both say how far the host has come, not the device.
  std::atomic<std::int64_t> collectives{0};
  std::atomic<std::int64_t> collectives_left{0};  ///< one less than `collectives` while inside one
  std::array<char, 128> collective{};  ///< the last: "reduce_scatter(layer.7), 4 ranks, 1.50 MiB"
  std::atomic<std::int64_t> waited_ns{0};  ///< inside collectives, since start

  /// Training steps measured, and the sums of their times; `steps` is written last.
  std::atomic<std::int64_t> steps{0};
  std::atomic<std::int64_t> steps_ns{0};
  std::atomic<std::int64_t> steps_waited_ns{0};  ///< of `steps_ns`, for other ranks

  std::atomic<std::int64_t> error_time_ns{0};  ///< CLOCK_REALTIME of `error`; 0 without one
  std::atomic<std::int32_t> error_code{0};     ///< exit code that the rank means to end with
  std::array<char, 512> error{};  ///< first line of the error that ends the rank, or empty
};

/// Maps (and creates when asked) the record file; Error{internal} when that fails. One thread of
/// the rank, the one that trains, writes it.
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

  /// Cheap enough for every action of a step. A step below 0 is before the first.
  void enter(std::int64_t step, std::string_view action);
  /// What the process did before its first step, in order, with the seconds of each; the first is
  /// what came before any entry, counted from the start of the process.
  [[nodiscard]] std::vector<std::pair<std::string, double>> start_parts() const;
  void set_stage(int stage);
  /// Progress within a long action, such as the preparation of data.
  void tick();
  /// Returns the section that it was in.
  RankSection enter_section(RankSection section);
  /// Around every call in which ranks wait for each other: its name, how many ranks take part, and
  /// the bytes of its buffer (0: none). Not nested.
  void enter_collective(std::string_view operation, int ranks, std::int64_t bytes);
  void leave_collective();
  /// Around each training step whose collectives wait in their calls.
  void begin_step();
  void end_step();
  /// A training step that was measured elsewhere, and the part of it that waited for other ranks.
  void add_step(std::chrono::nanoseconds time, std::chrono::nanoseconds waited);
  /// Before the rank ends by an error: what a person reads, and the exit code that follows. Code 75
  /// (ErrorKind::again) says that only a peer was lost, so that the report looks for the cause
  /// elsewhere. The first call counts, later ones are echoes.
  void fail(std::string_view error, int exit_code = 70);
  [[nodiscard]] const RankRecord& get() const { return *record_; }

 private:
  explicit RankRecordFile(RankRecord* record) : record_(record) {}
  RankRecord* record_ = nullptr;
  std::int64_t collective_began_ns_ = 0;
  std::int64_t step_began_ns_ = 0;
  std::int64_t waited_before_step_ns_ = 0;
  std::vector<std::pair<std::string, std::int64_t>> starts_;  ///< and when, by steady_ns()
  bool stepping_ = false;  ///< the last of `starts_` is the first step
};

/// A section for the length of a scope.
class SectionScope {
 public:
  SectionScope(RankRecordFile& record, RankSection section)
      : record_(record), before_(record.enter_section(section)) {}
  ~SectionScope() { record_.enter_section(before_); }
  SectionScope(const SectionScope&) = delete;
  SectionScope& operator=(const SectionScope&) = delete;

 private:
  RankRecordFile& record_;
  RankSection before_;
};

/// A collective for the length of a scope; nothing in a group of one, which waits for no other
/// rank.
class CollectiveScope {
 public:
  CollectiveScope(RankRecordFile* record, std::string_view operation, int ranks,
                  std::int64_t bytes = 0)
      : record_(ranks > 1 ? record : nullptr) {
    if (record_ != nullptr) record_->enter_collective(operation, ranks, bytes);
  }
  ~CollectiveScope() {
    if (record_ != nullptr) record_->leave_collective();
  }
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;

 private:
  RankRecordFile* record_;
};

}  // namespace dstrain
