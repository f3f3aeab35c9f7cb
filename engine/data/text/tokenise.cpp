#include "engine/data/text/tokenise.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/data/text/format.h"
#include "engine/data/text/hash.h"

namespace dstrain::text {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kBatchRecords = 128;
constexpr std::size_t kBatchBytes = std::size_t{256} << 10;
constexpr std::size_t kBatchesPerThread = 4;
/// Limit on text between reader and writer: records near the limit must not fill the memory.
constexpr std::size_t kMaxBytes = 4 * kMaxRecordBytes;
constexpr std::size_t kProblemsKept = 20;
constexpr auto kTellEvery = std::chrono::milliseconds(200);

/// Cores that this process may use.
std::size_t num_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return static_cast<std::size_t>(std::max(1, CPU_COUNT(&cores)));
}

struct Batch {
  std::vector<Record> records;
  std::size_t bytes = 0;
  std::vector<std::uint32_t> tokens;  ///< of all records
  /// As many for each record as it gives; `end` counts in `tokens`, `record` in `records`.
  std::vector<TokenFile::Sample> samples;
  std::vector<std::int64_t> shortened;      ///< numbers of records that lost turns
  std::vector<std::int64_t> special_texts;  ///< numbers of records with special tokens as text
  bool encoded = false;
};

std::uint32_t highest_of(std::span<const std::uint32_t> tokens) {
  std::uint32_t highest = 0;
  for (const std::uint32_t token : tokens) highest = std::max(highest, token & ~kTrainedMark);
  return highest;
}

/// Reader -> batches -> encoding threads -> writer, in order and with bounded memory.
class Pipeline {
 public:
  Pipeline(const DataConfig& data, const SourceFiles& sources, const Encoder& encoder,
           TokenFileWriter& writer)
      : data_(data), sources_(sources), encoder_(encoder), writer_(writer) {
    summary_.pad = encoder.pad;
    summary_.end = encoder.end;
    summary_.marked = static_cast<bool>(encoder.append_chat);
    const std::size_t threads = num_cores();
    room_ = threads * kBatchesPerThread;
    for (std::size_t i = 0; i < threads; ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }

  /// Called by the reader; waits while the threads are behind, and rethrows what ended them.
  void take(Record&& record) {
    const std::size_t bytes = record.prompt.size() + record.response.size();
    if (std::max(bytes, record.group.size()) > kMaxRecordBytes) {
      record = {.number = record.number, .problem = too_long(bytes), .share = record.share};
    } else {
      filling_.bytes += bytes + record.group.size();
    }
    filling_.records.push_back(std::move(record));
    if (filling_.records.size() >= kBatchRecords || filling_.bytes >= kBatchBytes) push();
  }

  /// The records that follow are of the next file.
  void begin_file() {
    push();
    wait_until_written();
    const std::scoped_lock lock(mutex_);
    summary_.first_records.push_back(summary_.num_records);
  }

  TokenFileSummary finish() {
    push();
    wait_until_written();
    const std::scoped_lock lock(mutex_);
    return summary_;
  }

  [[nodiscard]] std::int64_t records() {
    const std::scoped_lock lock(mutex_);
    return summary_.num_records;
  }

 private:
  void push() {
    if (filling_.records.empty()) return;
    std::unique_lock lock(mutex_);
    written_.wait(lock, [this] {
      const bool fits = bytes_ + filling_.bytes <= kMaxBytes || batches_.empty();
      return failure_ || (batches_.size() < room_ && fits);
    });
    if (failure_) std::rethrow_exception(failure_);
    bytes_ += filling_.bytes;
    batches_.push_back(std::exchange(filling_, {}));
    lock.unlock();
    pushed_.notify_one();
  }

  void wait_until_written() {
    std::unique_lock lock(mutex_);
    written_.wait(lock, [this] { return failure_ || batches_.empty(); });
    if (failure_) std::rethrow_exception(failure_);
  }

  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (pushed_.wait(lock, stop, [this] { return next_ < batches_.size(); })) {
      Batch& batch = batches_[next_++];  // a deque keeps its place while others come and go
      lock.unlock();
      std::exception_ptr failure;
      try {
        encode(batch);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      batch.encoded = true;
      if (failure && !failure_) failure_ = failure;
      write_encoded();
    }
  }

  void encode(Batch& batch) const {
    for (std::size_t r = 0; r < batch.records.size(); ++r) {
      Record& record = batch.records[r];
      if (!record.problem.empty()) continue;
      TokenFile::Sample sample{.record = static_cast<std::uint32_t>(r)};
      const std::size_t first = batch.tokens.size();
      if (encoder_.append_chat) {
        std::vector<EncodedChat> encoded;
        record.problem = encoder_.append_chat(record.prompt, batch.tokens, encoded);
        if (!record.problem.empty()) {
          batch.tokens.resize(first);
          continue;
        }
        for (const EncodedChat& one : encoded) {
          sample.end = one.end;
          sample.response = one.last_answer;
          sample.group = one.group;
          batch.samples.push_back(sample);
        }
        if (std::ranges::any_of(encoded, [](const auto& one) { return one.special_texts > 0; }))
          batch.special_texts.push_back(record.number);
        if (std::ranges::any_of(encoded, &EncodedChat::shortened))
          batch.shortened.push_back(record.number);
      } else {
        batch.tokens.insert(batch.tokens.end(), encoder_.begin.begin(), encoder_.begin.end());
        sample.response = static_cast<std::uint32_t>(
            encoder_.append_record(record.prompt, record.response, batch.tokens) - first);
        if (batch.tokens.size() == first || batch.tokens.back() != encoder_.end) {
          batch.tokens.push_back(encoder_.end);
        }
        sample.group = hash64(record.group);
        sample.end = batch.tokens.size();
        batch.samples.push_back(sample);
      }
    }
  }

  /// Writes the batches at the front that are encoded. The lock is held.
  void write_encoded() {
    try {
      while (!failure_ && !batches_.empty() && batches_.front().encoded) {
        write(batches_.front());
        bytes_ -= batches_.front().bytes;
        batches_.pop_front();
        --next_;
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
    written_.notify_all();
  }

  void write(const Batch& batch) {
    std::size_t begin = 0;
    for (const std::int64_t number : batch.special_texts) {
      if (summary_.special_texts++ == 0)
        summary_.special_record = summary_.first_records.back() + number - 1;
    }
    for (const std::int64_t number : batch.shortened) {
      if (summary_.shortened++ == 0)
        summary_.shortened_record = summary_.first_records.back() + number - 1;
    }
    std::size_t next = 0;
    for (std::size_t i = 0; i < batch.records.size(); ++i) {
      const Record& record = batch.records[i];
      const std::int64_t number = summary_.first_records.back() + record.number - 1;
      summary_.num_records = number + 1;
      for (; next < batch.samples.size() && batch.samples[next].record == i; ++next) {
        TokenFile::Sample sample = batch.samples[next];
        const auto tokens = std::span(batch.tokens).subspan(begin, sample.end - begin);
        begin = sample.end;
        sample.record = static_cast<std::uint32_t>(number);
        writer_.add(tokens, sample);
        const std::uint32_t highest = highest_of(tokens);
        if (highest > summary_.highest) {
          summary_.highest = highest;
          summary_.highest_record = number;
        }
      }
      if (record.problem.empty()) continue;
      ++summary_.num_problems;
      if (summary_.problems.size() < kProblemsKept) {
        summary_.problems.push_back({.record = number, .text = record.problem});
      }
      if (data_.bad_record == BadRecord::stop) throw_problem(data_, sources_, summary_);
    }
  }

  const DataConfig& data_;
  const SourceFiles& sources_;
  const Encoder& encoder_;
  TokenFileWriter& writer_;
  Batch filling_;
  std::size_t room_ = 0;  ///< most batches between reader and writer

  std::mutex mutex_;
  std::condition_variable_any pushed_;
  std::condition_variable written_;
  std::deque<Batch> batches_;  ///< in the order of the files
  std::size_t bytes_ = 0;      ///< of text in them
  std::size_t next_ = 0;       ///< of them that no thread has taken
  std::exception_ptr failure_;
  TokenFileSummary summary_;
  std::vector<std::jthread> threads_;  ///< last: stopped before anything else goes away
};

/// Says every now and then how far it is.
class Meter {
 public:
  explicit Meter(const Tell& tell) : tell_(tell) {}

  [[nodiscard]] bool due() const { return Clock::now() >= next_; }

  void say(double share, std::int64_t records, const std::filesystem::path& file) {
    const auto now = Clock::now();
    next_ = now + kTellEvery;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    std::string text =
        fmt::format("tokenising {}: {:.0f} %", file.filename().string(), share * 100);
    if (share > 0 && seconds > 0.5) {
      text += fmt::format(", {} samples/s, {} left",
                          format_count(static_cast<double>(records) / seconds),
                          format_duration(seconds * (1 - share) / share));
    }
    tell_(share, text);
  }

 private:
  const Tell& tell_;
  Clock::time_point begin_ = Clock::now(), next_ = begin_;
};

}  // namespace

std::string describe_record(const DataConfig& data, const SourceFiles& sources,
                            const TokenFileSummary& summary, std::int64_t record) {
  const auto& firsts = summary.first_records;
  const auto next = std::ranges::upper_bound(firsts, record);
  DSTRAIN_CHECK(next != firsts.begin() && firsts.size() <= sources.files.size(),
                "a record before the first file");
  const auto file = static_cast<std::size_t>(next - firsts.begin() - 1);
  return fmt::format("{}: {} {}", sources.files[file].string(),
                     sources.tar ? "sample" : text_format(data).record, record - firsts[file] + 1);
}

void throw_problem(const DataConfig& data, const SourceFiles& sources,
                   const TokenFileSummary& summary) {
  const Problem& first = summary.problems.front();
  throw Error(
      ErrorKind::data,
      fmt::format("{}: {}", describe_record(data, sources, summary, first.record), first.text),
      "fix it, or leave such records out with data.bad_record: skip");
}

TokenFileSummary tokenise(const DataConfig& data, const SourceFiles& sources,
                          const Encoder& encoder, TokenFileWriter& writer, const Tell& tell) {
  double all_bytes = 0;
  for (const auto& file : sources.files) {
    all_bytes += static_cast<double>(std::filesystem::file_size(file));
  }
  Pipeline pipeline(data, sources, encoder, writer);
  Meter meter(tell);
  double bytes_before = 0;
  try {
    for (const auto& file : sources.files) {
      const auto bytes = static_cast<double>(std::filesystem::file_size(file));
      pipeline.begin_file();
      text_format(data).read(data, sources, file, encoder.system, [&](Record&& record) {
        const double share = (bytes_before + record.share * bytes) / all_bytes;
        pipeline.take(std::move(record));
        if (meter.due()) meter.say(share, pipeline.records(), file);
      });
      bytes_before += bytes;
    }
  } catch (const Error&) {
    // A record that stood before the place where the file broke is the first mistake.
    static_cast<void>(pipeline.finish());
    throw;
  }
  return pipeline.finish();
}

}  // namespace dstrain::text
