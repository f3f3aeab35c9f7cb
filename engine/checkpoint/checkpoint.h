#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/checkpoint/saved_layout.h"
#include "engine/mesh/pieces.h"
#include "engine/store/store.h"

namespace dstrain {

/// What a checkpoint says beside tensors; all of it is in the manifest.
struct CheckpointState {
  std::int64_t step = 0;             ///< optimizer steps done
  int phase = 0;                     ///< of the run, from 0, in which it was saved
  std::int64_t samples = 0;          ///< global samples consumed since the start
  std::int64_t optimizer_steps = 0;  ///< steps of the phase that were applied (not skipped)
  double loss_scale = 1;
  std::int64_t good_steps = 0;  ///< since the last change of the loss scale
  std::int64_t skipped_steps = 0;
  std::int64_t tolerated_steps = 0;  ///< that the hysteresis of the loss scale has taken up
  int world_size = 1;                ///< of the run that saved
  std::int64_t train_samples = 0;    ///< of its training split; 0: not known
  std::string base;    ///< the frozen weights, which are left out: see base_reference(); or empty
  std::string recipe;  ///< resolved YAML
  std::vector<std::string> class_names = {};  ///< Model::class_names
  std::string origin = {};  ///< the program and layout that it was imported from; or empty
};

/// One rank's part of a save: boxes of fp32 tensors ("vit.embeddings.cls_token",
/// "optimizer.exp_avg/vit.embeddings.cls_token"), whose values the save reads chunk by chunk.
struct CheckpointPart {
  /// Fills `into` with elements `range` of a box; called on the save's thread.
  using Read = std::function<void(Range range, std::span<float> into)>;

  std::vector<Piece> pieces;
  std::vector<Read> reads;  ///< one per piece
  /// The layout that gives the first of the pieces, and this rank's places in it (saved_layout.h):
  /// such pieces need no lines of their own in the manifest. Null: it lists all.
  std::shared_ptr<const SavedLayout> layout = nullptr;
  std::vector<SavedPlace> places = {};
  std::int64_t copied_values = 0;  ///< that the part holds itself
  bool live = false;  ///< some values are read where training changes them: let it wait

  /// A box whose values the part holds.
  void add(Piece box, std::vector<float> values);
};

/// Name of the average of a tensor over the steps.
[[nodiscard]] inline std::string average_name(const std::string& tensor) {
  return "optimizer.ema/" + tensor;
}

struct SaveResult {
  bool ok = false;
  /// The error is `stop` where some value is nan or infinite, `again` where rank 0 is lost.
  ErrorKind kind = ErrorKind::checkpoint;
  std::filesystem::path path;  ///< committed directory
  /// What failed on which rank, and the newest checkpoint that there is, or that there is none; the
  /// same text on every rank, unless rank 0 is lost.
  std::string error;
  double seconds = 0;
  std::int64_t bytes = 0;
};

/// What the ranks have found in the files of a checkpoint after its save.
struct VerifyResult {
  std::filesystem::path path;
  int files = 0;
  double seconds = 0;
  std::vector<std::string> damaged;  ///< file, rank and host that wrote it, what was found, by whom
};

/// Saves checkpoints of one run as `root`/step-00000100. Collective over all ranks through `store`:
/// each writes one safetensors shard (O_EXCL, fsync, xxh3-128), then all vote; rank 0 writes
/// MANIFEST.json last and renames the directory. A failed vote removes the temporary directory and
/// leaves everything saved before untouched; a rank votes against values that are not finite. Its
/// end while a save runs gives up waiting for the other ranks: `wait` first where the save shall
/// count.
class CheckpointSaver {
 public:
  virtual ~CheckpointSaver() = default;
  /// Starts a save on a background thread. One at a time: waits for the one before, whose result is
  /// kept for `wait` or `poll`. A failed save is a result, never an exception. Without `prune` no
  /// older checkpoint goes.
  virtual void start(CheckpointState state, CheckpointPart part, bool prune = true) = 0;
  [[nodiscard]] virtual bool busy() const = 0;
  /// Waits until the running save, if any, reads its part no more: this rank's file is written, or
  /// never will be.
  virtual void wait_until_read() = 0;
  /// Waits for the running save, if any, and returns the oldest result not returned yet; nothing
  /// when there is none.
  [[nodiscard]] virtual std::optional<SaveResult> wait() = 0;
  /// The oldest result of the saves that have ended meanwhile, once; never waits.
  [[nodiscard]] virtual std::optional<SaveResult> poll() = 0;
  /// On rank 0 the oldest verification that has ended meanwhile, once; never waits. One begins with
  /// each save that counts and ends the one before, which then has no result.
  [[nodiscard]] virtual std::optional<VerifyResult> verified() = 0;
};
struct SaverOptions {
  std::filesystem::path root;
  int rank = 0;
  int world_size = 1;
  int keep =
      2;  ///< newest valid checkpoints kept; older ones go after the new one is committed; 0: all
  std::string
      attempt;  ///< makes the temporary name unique per start of the job; the same on all ranks
  std::chrono::milliseconds timeout{
      600'000};  ///< for the votes of the other ranks, once our own shard is written
  double verify_bytes_per_s = 0;  ///< read at most after a save; 0: no verification
  int local_ranks = 1;            ///< of this host
  std::string host = {};
};
[[nodiscard]] std::unique_ptr<CheckpointSaver> make_saver(const std::shared_ptr<Store>& store,
                                                          const SaverOptions& options);

struct CheckpointInfo {
  std::filesystem::path path;
  std::int64_t step = -1;
  bool valid = false;
  std::string problem;  ///< why not: file, what was found
  std::int64_t bytes = 0;
  int files = 0;
  int world_size = 0;
  bool verified = false;  ///< all files were read from the disk after the save, and were sound
  std::string damage;     ///< else what was found; it may have been one host's fault
};
/// Newest first; hashes are checked when `full`, else manifest and file sizes only. Temporary
/// directories and those that a later save moved aside are no checkpoints. Nothing when `root` does
/// not exist.
[[nodiscard]] std::vector<CheckpointInfo> list_checkpoints(const std::filesystem::path& root,
                                                           bool full);

/// The same for one directory; never throws for a broken checkpoint.
[[nodiscard]] CheckpointInfo inspect_checkpoint(const std::filesystem::path& path, bool full);

/// The newest checkpoint whose every byte is as written; adds a line to `problems` for each newer
/// one that is not.
[[nodiscard]] std::optional<CheckpointInfo> newest_valid(const std::filesystem::path& root,
                                                         std::vector<std::string>& problems);

/// The valid ones that follow the `keep` newest valid ones without damage in a list that is newest
/// first.
[[nodiscard]] std::vector<CheckpointInfo> beyond_newest(
    const std::vector<CheckpointInfo>& newest_first, int keep);

/// Directories with the name of a checkpoint, newest first, whatever is in them. Empty when `root`
/// does not exist; Error{checkpoint} when it cannot be listed.
[[nodiscard]] std::vector<std::filesystem::path> checkpoints_by_name(
    const std::filesystem::path& root);

/// Renames the directory to a temporary name before it deletes it, so that a crash leaves no half
/// checkpoint.
void remove_checkpoint(const std::filesystem::path& path);

/// An opened checkpoint; every file it reads is hashed before the first value is handed out.
class CheckpointReader {
 public:
  /// Error{checkpoint} names file and what is wrong. With `verify` all files' hashes are checked
  /// now.
  static std::unique_ptr<CheckpointReader> open(const std::filesystem::path& path, bool verify);
  /// For one rank of many: looks at no file but the manifest until it is read, since thousands of
  /// ranks that look at thousands of files keep a file system busy for minutes.
  static std::unique_ptr<CheckpointReader> open_manifest(const std::filesystem::path& path);
  virtual ~CheckpointReader() = default;
  [[nodiscard]] virtual const CheckpointState& state() const = 0;
  [[nodiscard]] virtual std::vector<Piece> tensors() const = 0;  ///< whole tensors
  /// Hashes the files that fall to `rank` of `ranks`: those of all ranks are the whole checkpoint,
  /// and that of a rank the file that it saved itself where the ranks are as many.
  /// Error{checkpoint}.
  virtual void verify_share(int rank, int ranks) const = 0;
  /// Bytes of the largest share.
  [[nodiscard]] virtual std::int64_t share_bytes(int ranks) const = 0;
  /// Fills `out` with a box of a tensor, however the ranks that saved had cut it; Error{checkpoint}
  /// when name, shape or box do not match, or a value is not finite.
  virtual void read(const Piece& wanted, std::span<float> out) const = 0;
};

}  // namespace dstrain
