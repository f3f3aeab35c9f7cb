#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/base/stable_hash.h"
#include "engine/trace/merge_writer.h"
#include "engine/trace/output_file.h"
#include "engine/trace/row_slices.h"

namespace dstrain::trace {
namespace {

// Perfetto takes row 0 of a process for the row whose number is the pid's, so that no row may have
// that number.
constexpr std::int64_t kFirstPid = 1'000'000;
constexpr int kRowsOfRank = 100;
constexpr std::size_t kMovedKept = 20'000;
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
    moved_.clear();
    next_extra_row_ = kFirstExtraRow;
  }
  void write(const Event& event, std::int64_t start_ns) override;
  void end_rank() override {}
  std::uint64_t close() override {
    file_.write("\n]}\n");
    return file_.close();
  }

 private:
  struct Stream {
    std::string name;
    StreamRows drawn;
    std::vector<std::string> tids;  ///< by row, as written; empty: the event's own
  };
  /// A slice on a further row; the arrow to it goes there, too.
  struct Moved {
    std::int64_t start_ns = 0;
    std::string tid;
  };

  std::int64_t process(std::string_view pid);
  bool is_doubled(const Event& event);
  const std::string& row_of(const Event& event, std::int64_t start_ns, std::int64_t pid);
  const std::string& row_of_arrow(const Event& event, std::int64_t start_ns) const;
  /// A value of an event that is written anew; bytes of Event::object.
  enum class Value { process, row, time, id, args };
  struct Change {
    std::size_t begin = 0;
    std::size_t end = 0;
    Value value = Value::process;
  };
  void add_change(const Event& event, std::string_view old, Value value);
  void put_id(std::string_view id, bool is_text);
  bool copy_args(const Event& event);
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
  std::unordered_map<std::int64_t, Moved> moved_;  ///< by correlation
  std::int64_t next_extra_row_ = kFirstExtraRow;
  std::vector<Change> changes_;
  std::string line_;
  std::string key_;
};

std::int64_t JsonMergeWriter::process(std::string_view pid) {
  const auto next = static_cast<std::int64_t>(rows_.size());
  key_.assign(pid);
  const std::int64_t row = rows_.try_emplace(key_, next).first->second;
  return kFirstPid + std::int64_t{rank_} * kRowsOfRank +
         std::min<std::int64_t>(row, kRowsOfRank - 1);
}

/// Whether this name or place of a row was said before, with the same words.
bool JsonMergeWriter::is_doubled(const Event& event) {
  key_.assign(event.pid).append("|").append(event.tid).append("|").append(event.name);
  key_.append("|").append(event.args);
  return !metadata_.insert(stable_hash(key_)).second;
}

/// The row for a slice: what crosses others goes to a further one, because viewers leave it out
/// otherwise. Empty: its own.
const std::string& JsonMergeWriter::row_of(const Event& event, std::int64_t start_ns,
                                           std::int64_t pid) {
  Stream& in = stream(event);
  const std::int64_t end = start_ns + event.duration_ns;
  const bool work = is_stream_work(event.category);
  const std::size_t at = in.drawn.take(start_ns, end, work);
  if (at == in.tids.size()) {
    std::string& tid = in.tids.emplace_back();
    if (at > 0) {
      tid = std::to_string(next_extra_row_++);
      const std::string name =
          !in.name.empty() ? in.name : fmt::format("{} {}", work ? "stream" : "row", event.tid);
      put_event(
          fmt::format("{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, "
                      "\"args\": {{\"name\": \"{} ({})\"}}}}",
                      pid, tid, name, at + 1));
    }
  }
  const std::string& tid = in.tids[at];
  if (const auto id = tid.empty() ? std::nullopt : find_integer(event.args, "correlation")) {
    // Profilers write the arrow beside the slice.
    if (moved_.size() >= kMovedKept) moved_.clear();
    moved_[*id] = {start_ns, tid};
  }
  return tid;
}

const std::string& JsonMergeWriter::row_of_arrow(const Event& event, std::int64_t start_ns) const {
  static const std::string kOwn;
  const auto id = moved_.empty() ? std::nullopt : to_integer(event.id);
  const auto found = id ? moved_.find(*id) : moved_.end();
  return found != moved_.end() && found->second.start_ns == start_ns ? found->second.tid : kOwn;
}

void JsonMergeWriter::add_change(const Event& event, std::string_view old, Value value) {
  if (old.data() == nullptr) return;
  auto begin = static_cast<std::size_t>(old.data() - event.object.data());
  std::size_t end = begin + old.size();
  if (event.object[begin - 1] == '"') {
    --begin;
    ++end;
  }
  changes_.push_back({begin, end, value});
}

void JsonMergeWriter::put_id(std::string_view id, bool is_text) {
  const auto number = is_text ? std::nullopt : to_integer(id);
  if (number) {
    line_ += std::to_string(id_of_rank(rank_, *number));
  } else {
    fmt::format_to(std::back_inserter(line_), "\"{}.{}\"", rank_, id);
  }
}

/// Copies the arguments but for the correlation, and adds the rank. False, with nothing written,
/// where they are not so simple.
bool JsonMergeWriter::copy_args(const Event& event) {
  constexpr std::string_view kCorrelation = "\"correlation\"";
  constexpr std::string_view kSpaces = " \t\r\n";
  if (event.phase == 'C' || event.phase == 'M') return false;
  const std::string_view args = event.args;
  const auto find = [&](std::string_view text) {
    const void* found = ::memmem(args.data(), args.size(), text.data(), text.size());
    return found == nullptr
               ? std::string_view::npos
               : static_cast<std::size_t>(static_cast<const char*>(found) - args.data());
  };
  if (args.find('{', 1) != std::string_view::npos || find("\"rank\"") != std::string_view::npos)
    return false;
  const std::size_t last = args.find_last_not_of(kSpaces, args.size() - 2);
  if (last == 0) return false;
  std::size_t at = 0;
  if (const std::size_t key = find(kCorrelation); key != std::string_view::npos) {
    std::size_t begin = args.find_first_not_of(kSpaces, key + kCorrelation.size());
    if (args[key - 1] == '\\' || args[begin] != ':') return false;
    begin = args.find_first_not_of(kSpaces, begin + 1);
    const std::size_t end = args.find_first_of(", \t\r\n}", begin);
    const auto number = to_integer(args.substr(begin, end - begin));
    if (!number) return false;
    line_.append(args, 0, begin);
    line_ += std::to_string(id_of_rank(rank_, *number));
    at = end;
  }
  line_.append(args, at, last + 1 - at);
  line_ += ", \"rank\": ";
  line_ += std::to_string(rank_);
  line_ += '}';
  return true;
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
  const bool arrow = event.phase == 's' || event.phase == 't' || event.phase == 'f';
  const std::string& row = slice   ? row_of(event, start_ns, pid)
                           : arrow ? row_of_arrow(event, start_ns)
                                   : kOwn;
  changes_.clear();
  add_change(event, event.pid, Value::process);
  if (!row.empty()) add_change(event, event.tid, Value::row);
  if (event.phase != 'M') add_change(event, event.time, Value::time);
  add_change(event, event.id, Value::id);
  add_change(event, event.args, Value::args);
  std::ranges::sort(changes_, {}, &Change::begin);
  line_.clear();
  std::size_t at = 0;
  for (const Change& change : changes_) {
    line_.append(event.object, at, change.begin - at);
    at = change.end;
    switch (change.value) {
      case Value::process:
        line_ += std::to_string(pid);
        break;
      case Value::row:
        line_ += row;
        break;
      case Value::time:
        put_microseconds(line_, start_ns - base_ns_);
        break;
      case Value::id:
        put_id(event.id, event.object[change.begin] == '"');
        break;
      case Value::args:
        if (!copy_args(event)) put_args(event);
        break;
    }
  }
  line_.append(event.object, at);
  if (slice && event.args.empty()) {
    line_.pop_back();
    fmt::format_to(std::back_inserter(line_), ", \"args\": {{\"rank\": {}}}}}", rank_);
  }
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
