#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/finite.h"
#include "engine/base/index.h"
#include "engine/base/log.h"
#include "engine/base/run_layout.h"
#include "engine/checkpoint/best_checkpoint.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_boxes.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_verification.h"
#include "engine/weights/safetensors.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// What travels through the store. A go-ahead is kWrite or already the verdict; a vote says what the
// rank has written, or is kFailed, kRefused (values that are not finite) or kLost (the store) and
// why; once rank 0 has all, it asks with kShow for the layouts that it does not know yet, each of
// one rank, or gives already the verdict, which is kOk and the bytes saved, or one of these and
// why.
constexpr std::string_view kWrite = "write";
constexpr std::string_view kShow = "show ";
constexpr std::string_view kOk = "ok ";
constexpr std::string_view kFailed = "failed ";
constexpr std::string_view kRefused = "refused ";
constexpr std::string_view kLost = "lost ";
constexpr std::array kObjections = {std::pair{kFailed, ErrorKind::checkpoint},
                                    std::pair{kRefused, ErrorKind::stop},
                                    std::pair{kLost, ErrorKind::again}};

/// A vote or verdict against a save, and the error it was made from.
std::string against(const std::exception& error, const std::string& who = "") {
  std::string_view word = kFailed;
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    for (const auto& [known, kind] : kObjections)
      if (ours->kind() == kind) word = known;
  }
  return fmt::format("{}{}{}", word, who, error.what());
}
std::optional<Error> objection(const std::string& text) {
  for (const auto& [word, kind] : kObjections)
    if (text.starts_with(word)) return Error(kind, text.substr(word.size()));
  return std::nullopt;
}

/// A state with a nan or an infinity would spoil every run that goes on from it. `values` begin at
/// element `begin` of the box.
void refuse_non_finite(const Piece& piece, std::int64_t begin, std::span<const float> values) {
  const std::int64_t bad = first_non_finite(values);
  if (bad < 0) return;
  throw Error(ErrorKind::stop, fmt::format("'{}' holds {} at element {}", piece.name,
                                           values[to_index(bad)], piece.whole_index(begin + bad)));
}

/// One rank's view of one save.
class Save {
 public:
  Save(Store& store, const SaverOptions& options, std::int64_t serial, CheckpointState state,
       CheckpointPart part, bool prune, std::stop_token stop, std::function<void()> part_read)
      : store_(store),
        options_(options),
        prefix_(fmt::format("checkpoint/{}/{}-{}", options.attempt, serial, state.step)),
        state_(std::move(state)),
        part_(std::move(part)),
        prune_(prune),
        stop_(std::move(stop)),
        part_read_(std::move(part_read)),
        final_(options.root / checkpoint_name(state_.step)),
        temporary_(options.root / temporary_checkpoint_name(state_.step, options.attempt)) {}

  SaveResult run() {
    const auto start = Clock::now();
    std::string verdict;
    try {
      verdict = options_.rank == 0 ? lead() : follow();
    } catch (const std::exception& error) {
      verdict = against(error, fmt::format("rank {}: ", options_.rank));
    }
    SaveResult result;
    result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (verdict.starts_with(kOk)) {
      result.ok = true;
      result.path = final_;
      std::from_chars(verdict.data() + kOk.size(), verdict.data() + verdict.size(), result.bytes);
    } else {
      const Error why = objection(verdict).value_or(Error(ErrorKind::checkpoint, verdict));
      result.kind = why.kind();
      result.error = why.what();
    }
    return result;
  }

  /// After run(); nothing where the checkpoint was there before.
  [[nodiscard]] std::optional<VerifyTask> verify_task() const {
    if (file_.name.empty()) return std::nullopt;
    return VerifyTask{.path = final_,
                      .prefix = prefix_,
                      .own = file_,
                      .rank = options_.rank,
                      .world_size = options_.world_size,
                      .local_ranks = options_.local_ranks,
                      .host = options_.host,
                      .bytes_per_s = options_.verify_bytes_per_s};
  }

 private:
  std::string follow() {
    // Rank 0 decides; it may itself wait `timeout` for a slow peer before it does.
    std::string go =
        wait("go", Clock::now() + 2 * options_.timeout, "rank 0 did not start the save");
    if (go != kWrite) return go;
    const std::string key = fmt::format("{}/vote/{}", prefix_, options_.rank);
    store_.set(key, write_shard());
    const std::string late = "rank 0 did not finish the save";
    std::string verdict = wait("ask", Clock::now() + 2 * options_.timeout, late);
    const std::string shown = fmt::format("layout/{}", options_.rank);
    const bool asked = verdict.starts_with(kShow) &&
                       (verdict + " ").find(fmt::format(" {} ", options_.rank)) != verdict.npos;
    if (asked) store_.set(fmt::format("{}/{}", prefix_, shown), layout_text_);
    if (verdict.starts_with(kShow))
      verdict = wait("verdict", Clock::now() + 2 * options_.timeout, late);
    try {
      store_.set(key, {});  // votes of thousands of saves would fill the store
      if (asked) store_.set(fmt::format("{}/{}", prefix_, shown), {});
    } catch (const Error&) {
      // Rank 0 may have ended since: the verdict of the last save is its last word.
    }
    return verdict;
  }

  std::string lead() {
    std::string verdict;
    try {
      verdict = prepare();
    } catch (const std::exception& error) {
      verdict = against(error, "rank 0: ") + newest();
    }
    store_.set(prefix_ + "/go", verdict.empty() ? std::string(kWrite) : verdict);
    if (!verdict.empty()) return verdict;
    try {
      verdict = fmt::format("{}{}", kOk, commit(write_shard()));
    } catch (const std::exception& error) {
      std::error_code ignored;
      fs::remove_all(temporary_, ignored);
      verdict = against(error) + newest();
    }
    if (!asked_) store_.set(prefix_ + "/ask", verdict);
    store_.set(prefix_ + "/verdict", verdict);
    if (verdict.starts_with(kOk) && prune_) prune();
    return verdict;
  }

  /// Clears what earlier attempts left and makes the temporary directory. A verdict when there is
  /// nothing to write.
  std::string prepare() {
    if (fs::create_directories(options_.root))
      sync_directory(fs::absolute(options_.root).parent_path());
    for (const auto& entry : fs::directory_iterator(options_.root)) {
      // A run directory belongs to one job at a time, so these are of dead attempts. One that stays
      // is only waste.
      std::error_code error;
      if (is_temporary_checkpoint(entry.path())) fs::remove_all(entry.path(), error);
      if (error) log_warning("cannot remove {}: {}", entry.path().string(), error.message());
    }
    if (fs::symlink_status(final_).type() != fs::file_type::not_found) {
      const CheckpointInfo info = inspect_checkpoint(final_, true);
      if (info.valid) return fmt::format("{}{}", kOk, info.bytes);
      move_aside(info.problem);
    }
    fs::create_directory(temporary_);
    return {};
  }

  /// What a run that ends now can be resumed from.
  [[nodiscard]] std::string newest() const {
    try {
      std::vector<std::string> problems;
      if (const auto found = newest_valid(options_.root, problems))
        return fmt::format("; the newest checkpoint is {}", found->path.string());
      return fmt::format("; there is no checkpoint in {}", options_.root.string());
    } catch (const std::exception& error) {
      return fmt::format("; whether there is a checkpoint cannot be told: {}", error.what());
    }
  }

  void move_aside(const std::string& problem) const {
    for (int i = 1;; ++i) {
      const fs::path aside = fmt::format("{}.invalid-{}", final_.string(), i);
      if (fs::symlink_status(aside).type() != fs::file_type::not_found) continue;
      fs::rename(final_, aside);
      log_warning("moved an invalid checkpoint to {}: {}", aside.string(), problem);
      return;
    }
  }

  /// Writes this rank's shard; returns its vote.
  std::string write_shard() {
    try {
      Vote vote;
      vote.step = state_.step;
      DSTRAIN_CHECK(part_.pieces.size() == part_.reads.size(), "one source per piece");
      const std::size_t num_laid_out = check_layout();
      if (part_.layout) {
        layout_text_ = layout_text(*part_.layout);
        vote.layout = layout_hash(*part_.layout);
        vote.places = part_.places;
      }
      std::vector<SafetensorsTensor> stored;
      std::vector<std::size_t> pieces;
      for (std::size_t i = 0; i < part_.pieces.size(); ++i) {
        const Piece& piece = part_.pieces[i];
        if (piece.numel() == 0 && num_elements(piece.shape) != 0) continue;
        if (piece.numel() == 0) {
          vote.tensors.push_back({piece.name, piece.shape, {}});
          continue;
        }
        stored.push_back({fmt::format("{}@{}", piece.name, piece.whole_index(0)),
                          {piece.rows.size(), piece.columns.size()},
                          DType::f32,
                          {}});
        pieces.push_back(i);
      }
      write_file(stored, pieces, num_laid_out, vote);
      drop_part();
      return vote_text(vote);
    } catch (const std::exception& error) {
      drop_part();
      return against(error, fmt::format("rank {}: ", options_.rank));
    }
  }

  /// The layout must give the pieces that are written, since readers compute them from it. How many
  /// it gives.
  [[nodiscard]] std::size_t check_layout() const {
    std::size_t number = 0;
    if (!part_.layout) return number;
    for (const SavedGroup& group : *part_.layout) {
      const Range range = saved_range(group, part_.places.at(group.place));
      for (const SavedState& state : group.states) {
        for_each_saved_box(group, state, range,
                           [&](const SavedParameter& parameter, const Piece& part, Range rows,
                               Range columns, std::int64_t) {
                             const Piece box(state.prefixes.at(parameter.rule) + part.name,
                                             part.shape, rows, columns);
                             DSTRAIN_CHECK(
                                 number < part_.pieces.size() && part_.pieces[number] == box,
                                 "the layout of a save gives its pieces: " + box.name);
                             ++number;
                           });
      }
    }
    return number;
  }

  /// Its copies are large, and training may wait for what is read.
  void drop_part() {
    part_ = {};
    part_read_();
  }

  /// `pieces`: the numbers of those in `stored`; the first `num_laid_out` of the part are not
  /// listed.
  void write_file(const std::vector<SafetensorsTensor>& stored,
                  const std::vector<std::size_t>& pieces, std::size_t num_laid_out, Vote& vote) {
    // On a network file system another node's new directory may not be visible yet; making it again
    // is harmless.
    fs::create_directory(temporary_);
    ExclusiveFile file(temporary_ / fmt::format("rank{:04d}.safetensors", options_.rank));
    file.write(safetensors_header(stored, {{"format", "dstrain"},
                                           {"step", std::to_string(state_.step)},
                                           {"rank", std::to_string(options_.rank)}}));
    vote.data = file.bytes();
    std::map<std::string, std::size_t> index;
    std::vector<float> chunk;
    for (const std::size_t i : pieces) {
      const Piece& piece = part_.pieces[i];
      if (i >= num_laid_out) {
        const auto [at, is_new] = index.emplace(piece.name, vote.tensors.size());
        if (is_new) vote.tensors.push_back({piece.name, piece.shape, {}});
        vote.tensors[at->second].boxes.push_back({0, piece.rows, piece.columns, file.bytes()});
      }
      constexpr std::int64_t kChunk = kCheckpointChunk / sizeof(float);
      for (std::int64_t begin = 0; begin < piece.numel(); begin += kChunk) {
        const Range range{begin, std::min(begin + kChunk, piece.numel())};
        chunk.resize(std::max(chunk.size(), to_index(range.size())));
        const std::span values = std::span(chunk).first(to_index(range.size()));
        part_.reads[i](range, values);
        refuse_non_finite(piece, begin, values);
        file.write(std::as_bytes(values));
      }
    }
    vote.file = file_ = file.finish();
  }

  /// Gathers all votes, then makes the directory a checkpoint. Bytes saved.
  std::int64_t commit(const std::string& own_vote) {
    Manifest manifest;
    manifest.state = state_;
    std::vector<Vote> votes;
    std::vector<Error> failures;
    const auto deadline = Clock::now() + options_.timeout;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      try {
        const std::string vote = rank == 0 ? own_vote
                                           : wait(fmt::format("vote/{}", rank), deadline,
                                                  fmt::format("rank {} did not vote", rank));
        if (const auto error = objection(vote)) throw *error;
        votes.push_back(parse_vote(vote, fmt::format("rank {}: its vote", rank)));
        if (votes.back().step != state_.step) {
          throw Error(ErrorKind::checkpoint, fmt::format("rank {} saved step {}, rank 0 step {}",
                                                         rank, votes.back().step, state_.step));
        }
      } catch (const std::exception& error) {
        failures.push_back(objection(against(error)).value());
      }
    }
    if (!failures.empty()) {
      throw Error(failures[0].kind(), failures.size() == 1
                                          ? failures[0].what()
                                          : fmt::format("{} (and {} more ranks)",
                                                        failures[0].what(), failures.size() - 1));
    }
    const std::map<std::string, std::size_t> layouts = gather_layouts(manifest, votes);
    for (Vote& vote : votes) {
      const std::size_t layout = vote.layout.empty() ? FileLayout::kNone : layouts.at(vote.layout);
      add_vote(manifest, std::move(vote), layout);
    }
    const StoredBoxes boxes(manifest, "the parts of all ranks together");
    if (!manifest.layouts.empty()) manifest.boxes_hash = boxes.hash();

    const std::string text = manifest_text(manifest);
    check_manifest_size(text, manifest);
    ExclusiveFile file(temporary_ / run_file::kManifest);
    file.write(text);
    (void)file.finish();
    sync_directory(temporary_);
    fs::rename(temporary_, final_);
    sync_directory(options_.root);
    // The others rely on the checkpoint as a resuming run finds it.
    const CheckpointInfo saved = inspect_checkpoint(final_, /*full=*/false);
    if (!saved.valid) {
      // It is of no use, and one more with each save would fill the disk.
      remove_checkpoint(final_);
      throw Error(ErrorKind::checkpoint, saved.problem);
    }
    std::int64_t bytes = 0;
    for (const FileRecord& shard : manifest.files) bytes += shard.bytes;
    return bytes;
  }

  /// Each layout once, by its hash: of this rank, or of the first rank that has it.
  std::map<std::string, std::size_t> gather_layouts(Manifest& manifest,
                                                    const std::vector<Vote>& votes) {
    std::map<std::string, std::size_t> rank_of;
    for (std::size_t rank = 0; rank < votes.size(); ++rank) {
      if (!votes[rank].layout.empty()) rank_of.emplace(votes[rank].layout, rank);
    }
    std::string ask(kShow);
    for (const auto& [hash, rank] : rank_of) {
      if (rank > 0) ask += fmt::format("{} ", rank);
    }
    asked_ = true;
    store_.set(prefix_ + "/ask", ask);
    std::map<std::string, std::size_t> layouts;
    const auto deadline = Clock::now() + options_.timeout;
    for (const auto& [hash, rank] : rank_of) {
      const std::string text = rank == 0
                                   ? layout_text_
                                   : wait(fmt::format("layout/{}", rank), deadline,
                                          fmt::format("rank {} did not tell its layout", rank));
      const SavedLayout layout = parse_layout(text, fmt::format("rank {}: its layout", rank));
      if (layout_hash(layout) != hash) {
        throw Error(ErrorKind::checkpoint,
                    fmt::format("rank {} told another layout than it voted for", rank));
      }
      layouts.emplace(hash, add_layout(manifest, layout));
    }
    return layouts;
  }

  /// No reader takes a larger one.
  void check_manifest_size(const std::string& text, const Manifest& manifest) const {
    if (std::cmp_less_equal(text.size(), kManifestLimit)) return;
    std::size_t boxes = 0;
    for (const StoredTensor& tensor : manifest.tensors) boxes += tensor.boxes.size();
    throw Error(ErrorKind::checkpoint,
                fmt::format("the manifest of this save would have {} bytes, a manifest has at most "
                            "{}: {} tensors in {} parts on {} ranks; parameters that fewer ranks "
                            "share (parallel.zero.shard) make fewer parts",
                            text.size(), kManifestLimit, manifest.tensors.size(), boxes,
                            options_.world_size));
  }

  /// Older ones only: a run that went on from an early checkpoint must not lose what it has just
  /// saved to later steps.
  void prune() const {
    if (options_.keep < 1) return;
    try {
      std::vector<CheckpointInfo> older = list_checkpoints(options_.root, false);
      const auto best = best_step(options_.root);
      std::erase_if(older, [&](const CheckpointInfo& info) {
        return info.step >= state_.step || (best && info.step == best->step);
      });
      for (const CheckpointInfo& info : beyond_newest(older, options_.keep - 1))
        remove_checkpoint(info.path);
    } catch (const std::exception& error) {
      log_warning("old checkpoints stay: {}", error.what());
    }
  }

  /// Waits in slices, so that a saver that is destroyed does not hold up the end of its process.
  std::string wait(const std::string& name, Clock::time_point deadline,
                   const std::string& complaint) {
    const std::string key = fmt::format("{}/{}", prefix_, name);
    const auto start = Clock::now();
    while (true) {
      const auto now = Clock::now();
      if (auto value = store_.try_get(key)) return *value;
      if (now >= deadline || stop_.stop_requested()) break;
      // Thousands of ranks that ask five times a second would take half a core from rank 0.
      constexpr int kManyRanks = 256;
      const auto slice = std::min<std::chrono::milliseconds>(
          std::chrono::ceil<std::chrono::milliseconds>(deadline - now),
          std::chrono::milliseconds(options_.world_size > kManyRanks ? 2000 : 200));
      try {
        return store_.get(key, slice);
      } catch (const Error&) {
        // Not there yet, or the store is lost, which try_get tells; then it must not be asked
        // without a pause.
        if (Clock::now() - now < slice / 2) std::this_thread::sleep_for(slice / 2);
      }
    }
    throw Error(ErrorKind::checkpoint,
                fmt::format("{} within {:.1f} s", complaint,
                            std::chrono::duration<double>(Clock::now() - start).count()));
  }

  Store& store_;
  const SaverOptions& options_;
  std::string prefix_;
  CheckpointState state_;
  CheckpointPart part_;
  bool prune_;
  std::stop_token stop_;
  std::function<void()> part_read_;
  fs::path final_;
  fs::path temporary_;
  FileRecord file_;          ///< of this rank, once it is written
  std::string layout_text_;  ///< of this rank
  bool asked_ = false;       ///< for layouts; the others wait for that first
};

class Saver final : public CheckpointSaver {
 public:
  Saver(std::shared_ptr<Store> store, const SaverOptions& options)
      : store_(std::move(store)), options_(options) {}

  void start(CheckpointState state, CheckpointPart part, bool prune) override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return !running_; });
    running_ = reads_ = true;
    try {
      // Assigning joins the thread before it, which has nothing left to do but return.
      worker_ = std::jthread([this, serial = num_saves_++, s = std::move(state),
                              p = std::move(part), prune](std::stop_token stop) mutable {
        Save save(*store_, options_, serial, std::move(s), std::move(p), prune, std::move(stop),
                  [this] { end_reading(); });
        SaveResult result = save.run();
        if (result.ok) verify(save.verify_task());
        const std::scoped_lock inner(mutex_);
        results_.push_back(std::move(result));
        running_ = reads_ = false;
        ended_.notify_all();
      });
    } catch (...) {
      running_ = reads_ = false;
      throw;
    }
  }

  [[nodiscard]] bool busy() const override {
    const std::scoped_lock lock(mutex_);
    return running_;
  }

  void wait_until_read() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return !reads_; });
  }

  [[nodiscard]] std::optional<SaveResult> wait() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return !running_; });
    return take();
  }

  [[nodiscard]] std::optional<SaveResult> poll() override {
    const std::scoped_lock lock(mutex_);
    return take();
  }

  [[nodiscard]] std::optional<VerifyResult> verified() override {
    const std::scoped_lock lock(mutex_);
    if (verified_.empty()) return std::nullopt;
    VerifyResult result = std::move(verified_.front());
    verified_.pop_front();
    return result;
  }

 private:
  /// Starts it, in place of that of an older checkpoint.
  void verify(std::optional<VerifyTask> task) {
    if (!task || options_.verify_bytes_per_s <= 0) return;
    verifier_ = std::jthread([this, own = std::move(*task)](const std::stop_token& stop) {
      try {
        auto result = verify_saved(*store_, own, stop);
        const std::scoped_lock lock(mutex_);
        if (result) verified_.push_back(std::move(*result));
      } catch (const std::exception& error) {
        // The store ends with rank 0.
        if (own.rank == 0) log_warning("{} is not verified: {}", own.path.string(), error.what());
      }
    });
  }

  void end_reading() {
    const std::scoped_lock lock(mutex_);
    reads_ = false;
    ended_.notify_all();
  }

  std::optional<SaveResult> take() {
    if (results_.empty()) return std::nullopt;
    SaveResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }

  std::shared_ptr<Store> store_;
  SaverOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool running_ = false;
  bool reads_ = false;  ///< the part of the running save
  std::int64_t num_saves_ = 0;
  std::deque<SaveResult> results_;
  std::deque<VerifyResult> verified_;
  std::jthread verifier_;
  std::jthread worker_;  ///< last: joined before what it uses goes away
};

}  // namespace

void CheckpointPart::add(Piece box, std::vector<float> values) {
  DSTRAIN_CHECK(std::cmp_equal(box.numel(), values.size()),
                "buffer and box of '" + box.name + "' agree");
  copied_values += box.numel();
  pieces.push_back(std::move(box));
  // Shared, as the function must be copyable.
  reads.push_back([held = std::make_shared<const std::vector<float>>(std::move(values))](
                      Range range, std::span<float> into) {
    std::copy_n(held->begin() + range.begin, range.size(), into.begin());
  });
}

std::unique_ptr<CheckpointSaver> make_saver(const std::shared_ptr<Store>& store,
                                            const SaverOptions& options) {
  return std::make_unique<Saver>(store, options);
}

}  // namespace dstrain
