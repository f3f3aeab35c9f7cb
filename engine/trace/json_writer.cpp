#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "engine/base/stable_hash.h"
#include "engine/trace/merge_writer.h"
#include "engine/trace/output_file.h"

namespace dstrain::trace {
namespace {

constexpr int kRowsOfRank = 100;
constexpr std::size_t kTakenPerRow = 20'000;
constexpr std::int64_t kFirstExtraRow = 1'900'000'000;  ///< beyond thread ids of Linux

void put_microseconds(std::string& out, std::int64_t ns) {
  const auto size = ns < 0 ? 0 - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
  fmt::format_to(std::back_inserter(out), "{}{}.{:03}", ns < 0 ? "-" : "", size / 1000,
                 size % 1000);
}

class JsonMergeWriter final : public MergeWriter {
 public:
  JsonMergeWriter(const std::filesystem::path& path, std::int64_t base_ns,
                  const std::vector<int>& ranks)
      : file_(path), base_ns_(base_ns) {
    file_.write(
        fmt::format("{{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\",\n"
                    "\"baseTimeNanoseconds\": {},\n\"dstrain\": {{\"merged\": true, "
                    "\"ranks\": [{}]}},\n\"traceEvents\": [",
                    base_ns, fmt::join(ranks, ", ")));
  }

  void begin_rank(int rank) override {
    rank_ = rank;
    rows_.clear();
    streams_.clear();
    metadata_.clear();
    next_extra_row_ = kFirstExtraRow;
  }
  void write(const Event& event, std::int64_t start_ns) override;
  void end_rank() override {}
  std::uint64_t close() override {
    file_.write("\n]}\n");
    return file_.close();
  }

 private:
  struct Row {
    std::string tid;                                  ///< as it is written; empty: the event's own
    std::map<std::int64_t, std::int64_t> taken = {};  ///< end by start, of the latest events

    bool take(std::int64_t start, std::int64_t end);
  };
  struct Stream {
    std::string name;
    std::vector<Row> rows;
  };

  std::int64_t process(std::string_view pid);
  bool is_doubled(const Event& event);
  const std::string& row_of(const Event& event, std::int64_t start_ns, std::int64_t pid);
  void put_args(const Event& event);
  void put_event(std::string_view text) {
    file_.write(any_ ? ",\n" : "\n");
    file_.write(text);
    any_ = true;
  }
  Stream& stream(const Event& event) {
    key_.assign(event.pid).append("|").append(event.tid);
    return streams_[key_];
  }

  OutputFile file_;
  std::int64_t base_ns_;
  int rank_ = 0;
  bool any_ = false;
  std::unordered_map<std::string, std::int64_t> rows_;  ///< number of a process, by its pid
  std::unordered_map<std::string, Stream> streams_;     ///< by pid and tid
  std::unordered_set<std::uint64_t> metadata_;
  std::int64_t next_extra_row_ = kFirstExtraRow;
  std::string line_;
  std::string key_;
};

std::int64_t JsonMergeWriter::process(std::string_view pid) {
  const auto next = static_cast<std::int64_t>(rows_.size());
  key_.assign(pid);
  const std::int64_t row = rows_.try_emplace(key_, next).first->second;
  return std::int64_t{rank_} * kRowsOfRank + std::min<std::int64_t>(row, kRowsOfRank - 1);
}

/// Whether this name or place of a row was said before, with the same words.
bool JsonMergeWriter::is_doubled(const Event& event) {
  key_.assign(event.pid).append("|").append(event.tid).append("|").append(event.name);
  key_.append("|").append(event.args);
  return !metadata_.insert(stable_hash(key_)).second;
}

/// False where an event that was written stands in the way. Profilers write a stream nearly in its
/// order, so that the earliest times can be forgotten.
bool JsonMergeWriter::Row::take(std::int64_t start, std::int64_t end) {
  const auto after = taken.lower_bound(start);
  if (after != taken.end() && after->first < end) return false;
  if (after != taken.begin() && std::prev(after)->second > start) return false;
  taken.emplace_hint(after, start, end);
  if (taken.size() > kTakenPerRow) taken.erase(taken.begin());
  return true;
}

/// The row for an event of a stream: work that overlaps goes to a further one, because viewers
/// leave it out otherwise. Empty: its own.
const std::string& JsonMergeWriter::row_of(const Event& event, std::int64_t start_ns,
                                           std::int64_t pid) {
  Stream& in = stream(event);
  const std::int64_t end = start_ns + event.duration_ns;
  for (Row& row : in.rows) {
    if (row.take(start_ns, end)) return row.tid;
  }
  Row row;
  (void)row.take(start_ns, end);
  if (!in.rows.empty()) {
    row.tid = std::to_string(next_extra_row_++);
    const std::string name = in.name.empty() ? fmt::format("stream {}", event.tid) : in.name;
    put_event(
        fmt::format("{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, "
                    "\"args\": {{\"name\": \"{} ({})\"}}}}",
                    pid, row.tid, name, in.rows.size() + 1));
  }
  in.rows.push_back(std::move(row));
  return in.rows.back().tid;
}

void JsonMergeWriter::put_args(const Event& event) {
  // A counter draws each of its members.
  const bool add_rank = event.phase != 'C' && event.phase != 'M';
  line_ += '{';
  bool first = true;
  Members members(event.args);
  std::string_view key;
  std::string_view value;
  bool is_text = false;
  while (members.next(key, value, is_text)) {
    if (add_rank && key == "rank") continue;
    if (!first) line_ += ", ";
    first = false;
    line_.append("\"").append(key).append("\": ");
    const auto number = key == "correlation" ? to_integer(value) : std::nullopt;
    if (number) {
      line_ += std::to_string(id_of_rank(rank_, *number));
    } else if (event.phase == 'M' && key == "name" && event.name == "process_name") {
      fmt::format_to(std::back_inserter(line_), "\"rank {}: {}\"", rank_, value);
    } else if (event.phase == 'M' && event.name == "process_sort_index") {
      line_ += std::to_string(process(event.pid));
    } else if (is_text) {
      line_.append("\"").append(value).append("\"");
    } else {
      line_ += value;
    }
  }
  if (add_rank)
    fmt::format_to(std::back_inserter(line_), "{}\"rank\": {}", first ? "" : ", ", rank_);
  line_ += '}';
}

void JsonMergeWriter::write(const Event& event, std::int64_t start_ns) {
  if (event.phase == 'M') {
    if (is_doubled(event)) return;
    if (event.name == "thread_name") {
      if (const auto name = find_argument(event.args, "name")) stream(event).name = *name;
    }
  }
  const std::int64_t pid = process(event.pid);
  const bool slice = event.phase == 'X';
  slices_ += slice ? 1 : 0;
  static const std::string kOwn;
  const std::string& row =
      slice && is_stream_work(event.category) ? row_of(event, start_ns, pid) : kOwn;
  line_.clear();
  line_ += '{';
  bool first = true;
  bool has_args = false;
  Members members(event.object);
  std::string_view key;
  std::string_view value;
  bool is_text = false;
  while (members.next(key, value, is_text)) {
    if (!first) line_ += ", ";
    first = false;
    line_.append("\"").append(key).append("\": ");
    const auto number = key == "id" ? to_integer(value) : std::nullopt;
    if (key == "pid") {
      line_ += std::to_string(pid);
    } else if (key == "tid" && !row.empty()) {
      line_ += row;
    } else if (key == "ts" && event.phase != 'M') {
      put_microseconds(line_, start_ns - base_ns_);
    } else if (number) {
      line_ += std::to_string(id_of_rank(rank_, *number));
    } else if (key == "id") {
      fmt::format_to(std::back_inserter(line_), "\"{}.{}\"", rank_, value);
    } else if (key == "args" && !event.args.empty()) {
      has_args = true;
      put_args(event);
    } else if (is_text) {
      line_.append("\"").append(value).append("\"");
    } else {
      line_ += value;
    }
  }
  if (!has_args && event.phase == 'X')
    fmt::format_to(std::back_inserter(line_), ", \"args\": {{\"rank\": {}}}", rank_);
  line_ += '}';
  put_event(line_);
}

}  // namespace

std::unique_ptr<MergeWriter> make_json_writer(const std::filesystem::path& path,
                                              std::int64_t base_ns, const std::vector<int>& ranks) {
  return std::make_unique<JsonMergeWriter>(path, base_ns, ranks);
}

bool is_stream_work(std::string_view category) {
  return category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset" ||
         category == "cuda_sync" || category == "dstrain_lane";
}
bool is_of_device(const Event& event) {
  return is_stream_work(event.category) || event.category.starts_with("gpu_") ||
         event.category.starts_with("dstrain_") || event.phase == 'C';
}

std::uint64_t id_of_rank(int rank, std::int64_t id) {
  return (static_cast<std::uint64_t>(rank) << 32) | (static_cast<std::uint64_t>(id) & 0xFFFFFFFFU);
}

}  // namespace dstrain::trace
