#include "engine/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/data/mixture.h"
#include "engine/data/own_rows.h"

namespace dstrain {
namespace {

/// Rows of a micro-batch that a worker takes at once: several workers share the batch that is
/// waited for.
constexpr std::int64_t kRowsPerTask = 16;

class ThreadedLoader final : public Loader {
 public:
  ThreadedLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
      : dataset_(std::move(dataset)),
        options_(options),
        size_(options.shuffle ? epoch_size(*dataset_) : dataset_->size()),
        slots_(static_cast<std::size_t>(options.prefetch)) {
    head_ = options.first_step * options.micro_batches;
    end_ = options.last_step < 0 ? std::numeric_limits<std::int64_t>::max()
                                 : options.last_step * options.micro_batches;
    task_batch_ = head_;
    for (std::int64_t batch = head_; batch < std::min(end_, head_ + options.prefetch); ++batch) {
      prepare(batch);
    }
    for (int i = 0; i < options.workers; ++i) {
      workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }

  HostBatch next() override {
    std::unique_lock lock(mutex_);
    DSTRAIN_CHECK(head_ < end_, "next() after the last step");
    Slot& slot = slot_of(head_);
    ready_.wait(lock, [&] { return slot.rows_left == 0; });
    if (slot.error) std::rethrow_exception(slot.error);
    HostBatch batch = std::move(slot.batch);
    dataset_->finish(batch);
    if (options_.sequence.ranks > 1) batch = own_rows(batch, options_.sequence, options_.pinned);
    if (head_ + options_.prefetch < end_) prepare(head_ + options_.prefetch);
    ++head_;
    lock.unlock();
    room_.notify_all();
    return batch;
  }

 private:
  struct Slot {
    HostBatch batch;
    BatchRange range;
    std::int64_t rows_left;
    std::exception_ptr error;  ///< of the lowest row that failed
    std::int64_t error_row;
  };
  struct Task {
    Slot* slot;
    std::int64_t first_row, end_row;
  };

  Slot& slot_of(std::int64_t batch) {
    return slots_[static_cast<std::size_t>(batch % options_.prefetch)];
  }

  /// Tensors come from the caller's thread, so that workers never touch CUDA. Pinned memory is
  /// recycled by the caching host allocator once the copies that read it are done.
  void prepare(std::int64_t batch) {
    const std::int64_t rows = options_.micro_batch;
    Slot& slot = slot_of(batch);
    slot.range = batch_range(options_, size_, batch);
    slot.batch = dataset_->allocate(rows, options_.pinned);
    slot.batch.epoch = slot.range.epoch;
    slot.rows_left = rows;
    slot.error = nullptr;
    slot.error_row = rows;
  }

  [[nodiscard]] bool has_task() const {
    return task_batch_ < end_ && task_batch_ < head_ + options_.prefetch;
  }

  Task take_task() {
    Task task{&slot_of(task_batch_), task_row_,
              std::min(task_row_ + kRowsPerTask, options_.micro_batch)};
    task_row_ = task.end_row;
    if (task_row_ == options_.micro_batch) {
      task_row_ = 0;
      ++task_batch_;
    }
    return task;
  }

  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (room_.wait(lock, stop, [this] { return has_task(); })) {
      const Task task = take_task();
      lock.unlock();
      std::exception_ptr error;
      std::int64_t row = task.first_row;
      try {
        dataset_->fill_rows(task.slot->batch, row, samples_of(task));
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error && row < task.slot->error_row) {
        task.slot->error = error;
        task.slot->error_row = row;
      }
      task.slot->rows_left -= task.end_row - task.first_row;
      if (task.slot->rows_left == 0) ready_.notify_all();
    }
  }

  [[nodiscard]] std::vector<std::int64_t> samples_of(const Task& task) const {
    const BatchRange& range = task.slot->range;
    const std::int64_t used = samples_per_epoch(size_, options_.global_batch, options_.drop_last);
    std::vector<std::int64_t> samples;
    for (std::int64_t row = task.first_row; row < task.end_row; ++row) {
      const std::int64_t position = range.first + row;
      samples.push_back(row >= range.count ? -1
                        : options_.shuffle
                            ? trained_sample(*dataset_, options_.seed, range.epoch, position, used)
                            : position);
    }
    return samples;
  }

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  std::int64_t size_;  ///< positions of an epoch
  std::mutex mutex_;
  std::condition_variable_any room_;  ///< for workers: a batch may be started
  std::condition_variable ready_;     ///< for next(): a batch is complete
  std::vector<Slot> slots_;           ///< of micro-batches [head_, head_ + prefetch)
  std::int64_t head_ = 0;             ///< next micro-batch to hand out
  std::int64_t end_ = 0;
  std::int64_t task_batch_ = 0;  ///< first rows that no worker took yet
  std::int64_t task_row_ = 0;
  std::vector<std::jthread> workers_;  ///< last: stopped and joined before anything else goes away
};

}  // namespace

BatchRange batch_range(const LoaderOptions& options, std::int64_t size, std::int64_t batch) {
  const std::int64_t step = batch / options.micro_batches;
  const std::int64_t micro = batch % options.micro_batches;
  const std::int64_t steps = steps_per_epoch(size, options.global_batch, options.drop_last);
  const std::int64_t first = step % steps * options.global_batch;
  const std::int64_t samples = std::min(options.global_batch, size - first);
  // Ranks and their micro-batches share a step as the micro-batches of one rank would, and those of
  // all ranks at one time are neighbours, so that a batch norm sees the same samples together on
  // any number of ranks.
  const std::int64_t parts = options.data_ranks * options.micro_batches;
  const std::int64_t part = micro * options.data_ranks + options.data_rank;
  const std::int64_t begin = samples * part / parts, end = samples * (part + 1) / parts;
  return {step / steps, first + begin, end - begin};
}

std::int64_t samples_per_epoch(std::int64_t size, std::int64_t global_batch, bool drop_last) {
  return drop_last ? size / global_batch * global_batch : size;
}

std::int64_t steps_per_epoch(std::int64_t size, std::int64_t global_batch, bool drop_last) {
  return ceil_div(samples_per_epoch(size, global_batch, drop_last), global_batch);
}

std::unique_ptr<Loader> make_loader(std::shared_ptr<const Dataset> dataset,
                                    const LoaderOptions& options) {
  DSTRAIN_CHECK(options.global_batch > 0 && options.micro_batch > 0 && options.micro_batches > 0 &&
                    options.data_ranks > 0 && options.workers > 0 && options.prefetch > 0,
                "loader options must be positive");
  DSTRAIN_CHECK(options.data_rank >= 0 && options.data_rank < options.data_ranks,
                "no such data rank");
  DSTRAIN_CHECK(
      options.micro_batch * options.micro_batches * options.data_ranks >= options.global_batch,
      "the micro-batches do not hold the global batch");
  DSTRAIN_CHECK(options.first_step >= 0, "no such step");
  DSTRAIN_CHECK(samples_per_epoch(dataset->size(), options.global_batch, options.drop_last) > 0,
                "a loader needs samples");
  return std::make_unique<ThreadedLoader>(std::move(dataset), options);
}

}  // namespace dstrain
