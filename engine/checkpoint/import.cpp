#include "engine/checkpoint/import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/finite.h"
#include "engine/base/index.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/checkpoint/import_match.h"
#include "engine/store/store.h"
#include "engine/weights/narrow_float.h"

namespace dstrain {
namespace {

constexpr std::int64_t kChunk = kCheckpointChunk / sizeof(float);
/// One file of a checkpoint holds about so many bytes: each rank that resumes hashes the files that
/// it reads.
constexpr std::int64_t kFileBytes = std::int64_t{4} << 30;
constexpr std::int64_t kMaxFiles = 8;

[[noreturn]] void fail(const std::string& what, const std::string& hint) {
  throw Error(ErrorKind::data, what, hint);
}

/// The first element of which `narrow` is not `wide`, rounded to `dtype`; -1 when there is none.
std::int64_t first_difference(std::span<const float> wide, std::span<const float> narrow,
                              const std::string& dtype) {
  const auto first = [&](auto rounded) {
    for (std::size_t i = 0; i < wide.size(); ++i) {
      if (rounded(wide[i]) != narrow[i]) return static_cast<std::int64_t>(i);
    }
    return std::int64_t{-1};
  };
  if (dtype == "BF16")
    return first([](float value) { return bfloat16_to_float(float_to_bfloat16(value)); });
  if (dtype == "F16") return first([](float value) { return half_to_float(float_to_half(value)); });
  return first([](float value) { return value; });
}

/// A tensor of the files, its elements in our order.
class FoundTensor {
 public:
  FoundTensor(const ForeignTensor& files, const WantedTensor& wanted)
      : files_(files), turned_(wanted.turned) {}

  [[nodiscard]] std::int64_t numel() const { return files_.numel(); }
  [[nodiscard]] std::string dtype() const { return files_.dtype(); }
  void read(std::int64_t begin, std::span<float> into) const {
    const auto read = [&](std::int64_t from, std::span<float> out) { files_.read(from, out); };
    if (turned_) return turned_->read(begin, into, read);
    read(begin, into);
  }
  void will_read(Range range) const {
    if (!turned_ && !range.empty()) files_.will_read(range);
  }
  [[nodiscard]] std::string file_of(std::int64_t element) const {
    return files_.file_of(turned_ ? turned_->place(element) : element);
  }

 private:
  const ForeignTensor& files_;
  std::optional<TransposedMatrix> turned_;
};

/// Values of one tensor as they pass, held against what else the files say of them.
class CheckedTensor {
 public:
  CheckedTensor(std::string name, const FoundTensor& values, std::vector<FoundTensor> copies)
      : name_(std::move(name)), values_(values), copies_(std::move(copies)) {}

  void read(std::int64_t begin, std::span<float> into) const {
    values_.will_read(
        {begin + std::ssize(into), std::min(begin + 2 * std::ssize(into), values_.numel())});
    values_.read(begin, into);
    if (const std::int64_t bad = first_non_finite(into); bad >= 0) {
      fail(fmt::format("{}: '{}' holds {} at element {}", values_.file_of(begin + bad), name_,
                       into[to_index(bad)], begin + bad),
           "training cannot go on from it: take an older checkpoint");
    }
    std::vector<float> other;
    for (const FoundTensor& copy : copies_) {
      other.resize(into.size());
      copy.read(begin, other);
      const std::int64_t i = first_difference(into, other, copy.dtype());
      if (i < 0) continue;
      fail(fmt::format("'{}' is {} in {} and {} in {}, at element {}", name_, into[to_index(i)],
                       values_.file_of(begin + i), other[to_index(i)], copy.file_of(begin + i),
                       begin + i),
           "the files are of different steps, or the order of tensors in them is another than "
           "they say; copy the folder again, or take the weights alone from transformers' files");
    }
  }

 private:
  std::string name_;
  FoundTensor values_;
  std::vector<FoundTensor> copies_;
};

/// A box of the new checkpoint and where its values come from.
struct Item {
  Piece box;
  CheckpointPart::Read read;
};

/// Frozen weights stay with the recipe: those of the checkpoint must be the same.
void check_frozen(const WantedTensor& wanted, const FoundTensor& found) {
  std::vector<float> ours, theirs;
  for (std::int64_t begin = 0; begin < found.numel(); begin += kChunk) {
    const auto count = to_index(std::min(kChunk, found.numel() - begin));
    ours.resize(count);
    theirs.resize(count);
    wanted.base(begin, ours);
    found.read(begin, theirs);
    const std::int64_t i = first_difference(ours, theirs, found.dtype());
    if (i < 0) continue;
    fail(fmt::format("the frozen tensor '{}' is {} in {} and {} in model.weights, at element {}",
                     wanted.name, theirs[to_index(i)], found.file_of(begin), ours[to_index(i)],
                     begin + i),
         "frozen weights are read from model.weights: name the folder that the run began with");
  }
}

/// Runs savers of several files side by side; the first error of a reader goes out as it was.
class Writer {
 public:
  Writer(CheckpointState state, const ImportOptions& options)
      : state_(std::move(state)), options_(options) {}

  SaveResult write(std::vector<Item> items) {
    std::int64_t bytes = 0;
    for (const Item& item : items) bytes += 4 * item.box.numel();
    const auto files = static_cast<int>(
        std::clamp<std::int64_t>((bytes + kFileBytes - 1) / kFileBytes, 1, kMaxFiles));
    std::vector<CheckpointPart> parts(to_index(files));
    std::int64_t done = 0;
    for (Item& item : items) {
      const std::int64_t file =
          bytes == 0 ? 0 : std::min<std::int64_t>(files - 1, done * files / bytes);
      done += 4 * item.box.numel();
      parts[to_index(file)].pieces.push_back(item.box);
      parts[to_index(file)].reads.push_back(
          [this, read = std::move(item.read)](Range range, std::span<float> into) {
            try {
              read(range, into);
            } catch (...) {
              keep(std::current_exception());
              throw;
            }
          });
    }
    const std::shared_ptr<Store> store = make_memory_store();
    std::vector<std::unique_ptr<CheckpointSaver>> savers;
    for (int rank = 0; rank < files; ++rank) {
      SaverOptions own{.root = options_.root,
                       .rank = rank,
                       .world_size = files,
                       .keep = 0,
                       .attempt = options_.attempt};
      own.timeout = std::chrono::hours(24);
      savers.push_back(make_saver(store, own));
      savers.back()->start(state_, std::move(parts[to_index(rank)]), /*prune=*/false);
    }
    SaveResult result;
    for (std::size_t rank = savers.size(); rank-- > 0;) result = savers[rank]->wait().value();
    if (error_) std::rethrow_exception(error_);
    if (!result.ok) throw Error(ErrorKind::checkpoint, result.error);
    return result;
  }

 private:
  void keep(std::exception_ptr error) {
    const std::scoped_lock lock(mutex_);
    if (!error_) error_ = std::move(error);
  }

  CheckpointState state_;
  const ImportOptions& options_;
  std::mutex mutex_;
  std::exception_ptr error_;
};

CheckpointState state_of(const ForeignCheckpoint& foreign, const ImportRules& rules,
                         const ImportOptions& options) {
  CheckpointState state{.base = options.base, .recipe = options.recipe};
  state.origin = foreign.layout;
  if (options.weights_only) return state;
  state.step = foreign.step;
  state.samples = foreign.samples >= 0 ? foreign.samples : foreign.step * rules.batch;
  state.optimizer_steps = foreign.optimizer_steps;
  state.loss_scale = foreign.loss_scale;
  state.good_steps = foreign.good_steps;
  state.skipped_steps = foreign.skipped_steps;
  return state;
}

}  // namespace

ImportResult import_checkpoint(const ForeignCheckpoint& foreign,
                               const std::vector<WantedTensor>& wanted,
                               const std::vector<WantedState>& states, const ImportRules& rules,
                               const ImportOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  ImportResult result;
  result.notes = foreign.notes;
  const Matches matches = match_tensors(foreign, wanted, options.weights_only, result.notes);
  if (!options.weights_only) check_rules(foreign, matches, rules, options.accept, result.notes);
  result.state = state_of(foreign, rules, options);

  std::vector<Item> items;
  for (const Match& match : matches) {
    if (!match.wanted->trained) {
      if (match.wanted->base) check_frozen(*match.wanted, {*match.weight, *match.wanted});
      continue;
    }
    const Piece whole(match.wanted->name, match.wanted->shape);
    const auto add = [&](const std::string& name, CheckpointPart::Read read) {
      Piece box = whole;
      box.name = name;
      items.push_back({std::move(box), std::move(read)});
    };
    const auto found = [&](const ForeignTensor* files) {
      return FoundTensor(*files, *match.wanted);
    };
    std::vector<FoundTensor> copies;
    std::ranges::transform(match.copies, std::back_inserter(copies), found);
    const auto checked = std::make_shared<const CheckedTensor>(
        match.wanted->name, found(match.weight), std::move(copies));
    add(whole.name,
        [checked](Range range, std::span<float> into) { checked->read(range.begin, into); });
    for (std::size_t m = 0; m < match.wanted->moments.size(); ++m) {
      const std::string name = fmt::format("optimizer.{}/{}", match.wanted->moments[m], whole.name);
      if (options.weights_only) {
        add(name, [](Range, std::span<float> into) { std::ranges::fill(into, 0.0F); });
        continue;
      }
      const auto moment = std::make_shared<const CheckedTensor>(name, found(match.moments[m]),
                                                                std::vector<FoundTensor>{});
      add(name, [moment](Range range, std::span<float> into) { moment->read(range.begin, into); });
    }
  }
  for (const WantedState& state : states) {
    const ForeignTensor* found = nullptr;
    for (const std::string& name : state.file_names) {
      const auto at = foreign.weights.find(name);
      if (found == nullptr && state.is_float && at != foreign.weights.end()) found = &at->second;
    }
    if (found != nullptr && found->numel() != state.stored.numel()) {
      fail(fmt::format("{}: '{}' has {} elements, the model {}", found->file_of(0),
                       state.stored.name, found->numel(), state.stored.numel()),
           "the recipe's model is another");
    }
    items.push_back({state.stored, [found, &state](Range range, std::span<float> into) {
                       if (found != nullptr) return found->read(range.begin, into);
                       std::copy_n(state.initial.begin() + range.begin, range.size(), into.begin());
                     }});
  }
  result.tensors = std::ssize(items);
  for (const Item& item : items) result.bytes += 4 * item.box.numel();

  if (options.dry_run) {
    std::vector<float> values;
    for (const Item& item : items) {
      for (std::int64_t begin = 0; begin < item.box.numel(); begin += kChunk) {
        const Range range{begin, std::min(begin + kChunk, item.box.numel())};
        values.resize(to_index(range.size()));
        item.read(range, values);
      }
    }
  } else {
    const SaveResult saved = Writer(result.state, options).write(std::move(items));
    result.path = saved.path;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace dstrain
