#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <unordered_map>

#include "engine/base/error.h"
#include "engine/base/protobuf_writer.h"
#include "engine/trace/merge_writer.h"
#include "engine/trace/output_file.h"
#include "engine/trace/row_slices.h"

namespace dstrain::trace {
namespace {

// Numbers of fields and values in perfetto/trace/*.proto.
namespace packet {
constexpr unsigned kTimestamp = 8, kSequence = 10, kTrackEvent = 11, kInterned = 12, kFlags = 13,
                   kTrackDescriptor = 60;
constexpr std::uint64_t kStateCleared = 1, kNeedsState = 2;
}  // namespace packet
namespace track {
constexpr unsigned kUuid = 1, kName = 2, kParent = 5, kCounter = 8;
}
namespace track_event {
constexpr unsigned kCategory = 3, kAnnotation = 4, kType = 9, kName = 10, kTrack = 11,
                   kDoubleCounter = 44, kFlow = 47;
constexpr std::uint64_t kBegin = 1, kEnd = 2, kInstant = 3, kCounterValue = 4;
}  // namespace track_event

/// A slice or a moment; a moment's end is its start.
struct Slice {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::uint32_t name = 0;
  std::uint32_t category = 0;
  std::size_t args_begin = 0;
  std::uint32_t args_size = 0;
  bool moment = false;
  bool stream_work = false;
};
struct FlowPoint {
  std::int64_t at = 0;
  std::uint64_t id = 0;
};
struct Track {
  std::string name;
  std::string pid;
  std::vector<Slice> slices;
  std::vector<FlowPoint> flows;
};
struct CounterValue {
  std::int64_t at = 0;
  double value = 0;
};

/// A row that is written: its open slices, the innermost last.
struct DrawnRow {
  std::uint64_t uuid = 0;
  std::vector<std::size_t> open;
};

class PerfettoWriter final : public MergeWriter {
 public:
  PerfettoWriter(const std::filesystem::path& path, std::int64_t memory_bytes)
      : file_(path), memory_(static_cast<std::size_t>(memory_bytes)) {}

  void begin_rank(int rank) override;
  void write(const Event& event, std::int64_t start_ns) override;
  void end_rank() override;
  std::uint64_t close() override { return file_.close(); }

 private:
  std::uint32_t intern(std::unordered_map<std::string, std::uint32_t>& table,
                       std::vector<std::string>& order, std::string_view text);
  Track& track_of(const Event& event);
  void take_metadata(const Event& event);
  void take_counter(const Event& event, std::int64_t start_ns);
  void put_packet(std::string_view content, std::uint64_t flags);
  void put_track(std::uint64_t uuid, std::uint64_t parent, const std::string& name, bool counter);
  void put_names();
  void put_event(std::int64_t at, std::string_view event);
  void draw(Track& drawn, std::uint64_t process);
  void begin_slice(const Slice& slice, std::uint64_t uuid, const std::vector<std::uint64_t>& flows);
  void end_slice(std::int64_t at, std::uint64_t uuid);
  std::string sequence() const;

  OutputFile file_;
  std::size_t memory_;
  int rank_ = 0;
  std::uint64_t next_uuid_ = 1;
  std::size_t held_ = 0;
  std::string args_;
  std::map<std::string, Track> tracks_;  ///< by pid and tid
  std::map<std::string, std::string> processes_;
  std::map<std::pair<std::string, std::string>, std::vector<CounterValue>> counters_;
  std::unordered_map<std::string, std::uint32_t> name_numbers_;
  std::unordered_map<std::string, std::uint32_t> category_numbers_;
  std::vector<std::string> names_;
  std::vector<std::string> categories_;
};

void PerfettoWriter::begin_rank(int rank) {
  rank_ = rank;
  held_ = 0;
  args_.clear();
  tracks_.clear();
  processes_.clear();
  counters_.clear();
  name_numbers_.clear();
  category_numbers_.clear();
  names_.clear();
  categories_.clear();
}

std::uint32_t PerfettoWriter::intern(std::unordered_map<std::string, std::uint32_t>& table,
                                     std::vector<std::string>& order, std::string_view text) {
  const auto [at, added] =
      table.try_emplace(std::string(text), static_cast<std::uint32_t>(order.size() + 1));
  if (added) {
    order.push_back(unescape(text));
    held_ += 2 * text.size() + 100;
  }
  return at->second;
}

Track& PerfettoWriter::track_of(const Event& event) {
  std::string key(event.pid);
  key.append("|").append(event.tid);
  Track& found = tracks_[key];
  if (found.pid.empty()) {
    found.pid = event.pid;
    if (found.name.empty()) found.name = unescape(event.tid);
  }
  return found;
}

void PerfettoWriter::take_metadata(const Event& event) {
  const auto name = find_argument(event.args, "name");
  if (event.name == "process_name" && name) processes_[std::string(event.pid)] = unescape(*name);
  if (event.name == "thread_name" && name) track_of(event).name = unescape(*name);
}

void PerfettoWriter::take_counter(const Event& event, std::int64_t start_ns) {
  Members members(event.args);
  std::string_view key;
  std::string_view value;
  while (members.next(key, value)) {
    const std::string text(value);
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') continue;
    std::string name = unescape(event.name);
    if (key != event.name) name.append(" ").append(unescape(key));
    counters_[{std::string(event.pid), name}].push_back({start_ns, number});
    held_ += sizeof(CounterValue);
  }
}

void PerfettoWriter::write(const Event& event, std::int64_t start_ns) {
  switch (event.phase) {
    case 'M':
      return take_metadata(event);
    case 'C':
      return take_counter(event, start_ns);
    case 's':
    case 't':
    case 'f':
      if (const auto id = to_integer(event.id)) {
        track_of(event).flows.push_back({start_ns, id_of_rank(rank_, *id)});
        held_ += sizeof(FlowPoint);
      }
      return;
    case 'X':
    case 'i':
    case 'I':
      break;
    default:
      ++left_out_;
      return;
  }
  const bool moment = event.phase != 'X';
  slices_ += moment ? 0 : 1;
  track_of(event).slices.push_back(
      {.start = start_ns,
       .end = start_ns + std::max<std::int64_t>(event.duration_ns, 0),
       .name = intern(name_numbers_, names_, event.name),
       .category = intern(category_numbers_, categories_, event.category),
       .args_begin = args_.size(),
       .args_size = static_cast<std::uint32_t>(event.args.size()),
       .moment = moment,
       .stream_work = is_stream_work(event.category)});
  args_.append(event.args);
  held_ += sizeof(Slice) + event.args.size();
  // Lists that grow are copied once.
  if (2 * held_ > memory_) {
    throw Error(ErrorKind::usage,
                fmt::format("rank {}: its events take more than the {} MiB of --memory", rank_,
                            memory_ >> 20),
                "raise --memory, choose --steps or --min-us, or write --format json");
  }
}

std::string PerfettoWriter::sequence() const {
  std::string out;
  protobuf::put_varint(out, packet::kSequence, static_cast<std::uint64_t>(rank_) + 1);
  return out;
}

void PerfettoWriter::put_packet(std::string_view content, std::uint64_t flags) {
  std::string out = sequence();
  protobuf::put_varint(out, packet::kFlags, flags);
  out.append(content);
  std::string framed;
  protobuf::put_bytes(framed, 1, out);  // Trace.packet
  file_.write(framed);
}

void PerfettoWriter::put_track(std::uint64_t uuid, std::uint64_t parent, const std::string& name,
                               bool counter) {
  std::string descriptor;
  protobuf::put_varint(descriptor, track::kUuid, uuid);
  protobuf::put_bytes(descriptor, track::kName, name);
  if (parent != 0) protobuf::put_varint(descriptor, track::kParent, parent);
  if (counter) protobuf::put_bytes(descriptor, track::kCounter, "");
  std::string content;
  protobuf::put_bytes(content, packet::kTrackDescriptor, descriptor);
  put_packet(content, packet::kNeedsState);
}

void PerfettoWriter::put_names() {
  std::string interned;
  const auto put = [&](unsigned field, const std::vector<std::string>& texts) {
    for (std::size_t i = 0; i < texts.size(); ++i) {
      std::string entry;
      protobuf::put_varint(entry, 1, i + 1);  // iid
      protobuf::put_bytes(entry, 2, texts[i]);
      protobuf::put_bytes(interned, field, entry);
    }
  };
  put(1, categories_);
  put(2, names_);
  put(3, {"args"});  // names of annotations
  std::string content;
  protobuf::put_bytes(content, packet::kInterned, interned);
  put_packet(content, packet::kStateCleared);
}

void PerfettoWriter::put_event(std::int64_t at, std::string_view event) {
  std::string content;
  protobuf::put_varint(content, packet::kTimestamp,
                       static_cast<std::uint64_t>(std::max<std::int64_t>(at, 0)));
  protobuf::put_bytes(content, packet::kTrackEvent, event);
  put_packet(content, packet::kNeedsState);
}

void PerfettoWriter::begin_slice(const Slice& slice, std::uint64_t uuid,
                                 const std::vector<std::uint64_t>& flows) {
  std::string event;
  protobuf::put_varint(event, track_event::kType,
                       slice.moment ? track_event::kInstant : track_event::kBegin);
  protobuf::put_varint(event, track_event::kTrack, uuid);
  protobuf::put_varint(event, track_event::kName, slice.name);
  protobuf::put_varint(event, track_event::kCategory, slice.category);
  if (slice.args_size > 2) {
    std::string annotation;
    protobuf::put_varint(annotation, 1, 1);  // name_iid: "args"
    protobuf::put_bytes(annotation, 9,       // legacy_json_value
                        std::string_view(args_).substr(slice.args_begin, slice.args_size));
    protobuf::put_bytes(event, track_event::kAnnotation, annotation);
  }
  for (const std::uint64_t id : flows) protobuf::put_fixed64(event, track_event::kFlow, id);
  put_event(slice.start, event);
}

void PerfettoWriter::end_slice(std::int64_t at, std::uint64_t uuid) {
  std::string event;
  protobuf::put_varint(event, track_event::kType, track_event::kEnd);
  protobuf::put_varint(event, track_event::kTrack, uuid);
  put_event(at, event);
}

/// One row, and further ones for slices that cross others or are work at the same time.
void PerfettoWriter::draw(Track& drawn, std::uint64_t process) {
  std::vector<Slice>& slices = drawn.slices;
  std::ranges::stable_sort(slices, [](const Slice& a, const Slice& b) {
    return a.start != b.start ? a.start < b.start : a.end > b.end;
  });
  std::ranges::stable_sort(drawn.flows, {}, &FlowPoint::at);

  SortedRows chosen;
  std::vector<std::size_t> row_of(slices.size());
  std::unordered_map<std::size_t, std::vector<std::uint64_t>> flows;
  std::vector<std::size_t> open;  // what is last and has not ended is innermost
  auto flow = drawn.flows.begin();
  const auto bind_flows = [&](std::int64_t before) {
    for (; flow != drawn.flows.end() && flow->at < before; ++flow) {
      while (!open.empty() && slices[open.back()].end < flow->at) open.pop_back();
      if (!open.empty()) flows[open.back()].push_back(flow->id);
    }
  };
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Slice& slice = slices[i];
    bind_flows(slice.start);
    row_of[i] = chosen.take(slice.start, slice.end, slice.stream_work);
    if (!slice.moment) open.push_back(i);
  }
  bind_flows(std::numeric_limits<std::int64_t>::max());

  std::vector<DrawnRow> rows(chosen.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    rows[r].uuid = next_uuid_++;
    put_track(rows[r].uuid, process,
              r == 0 ? drawn.name : fmt::format("{} ({})", drawn.name, r + 1), false);
  }
  static const std::vector<std::uint64_t> kNone;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    DrawnRow& row = rows[row_of[i]];
    while (!row.open.empty() && slices[row.open.back()].end <= slices[i].start) {
      end_slice(slices[row.open.back()].end, row.uuid);
      row.open.pop_back();
    }
    const auto bound = flows.find(i);
    begin_slice(slices[i], row.uuid, bound == flows.end() ? kNone : bound->second);
    if (!slices[i].moment) row.open.push_back(i);
  }
  for (DrawnRow& row : rows) {
    for (; !row.open.empty(); row.open.pop_back()) end_slice(slices[row.open.back()].end, row.uuid);
  }
}

void PerfettoWriter::end_rank() {
  put_names();
  std::map<std::string, std::uint64_t> uuids;
  const std::uint64_t top = next_uuid_++;
  put_track(top, 0, fmt::format("rank {}", rank_), false);
  const auto process = [&](const std::string& pid) {
    const auto [at, added] = uuids.try_emplace(pid, next_uuid_);
    if (added) {
      ++next_uuid_;
      const auto name = processes_.find(pid);
      put_track(at->second, top, name == processes_.end() ? pid : name->second + " " + pid, false);
    }
    return at->second;
  };
  for (auto& [key, drawn] : tracks_) {
    if (drawn.slices.empty()) continue;
    draw(drawn, process(drawn.pid));
  }
  for (const auto& [key, values] : counters_) {
    const std::uint64_t uuid = next_uuid_++;
    put_track(uuid, process(key.first), key.second, true);
    for (const CounterValue& value : values) {
      std::string event;
      protobuf::put_varint(event, track_event::kType, track_event::kCounterValue);
      protobuf::put_varint(event, track_event::kTrack, uuid);
      protobuf::put_double(event, track_event::kDoubleCounter, value.value);
      put_event(value.at, event);
    }
  }
}

}  // namespace

std::unique_ptr<MergeWriter> make_perfetto_writer(const std::filesystem::path& path,
                                                  std::int64_t memory_bytes) {
  return std::make_unique<PerfettoWriter>(path, memory_bytes);
}

}  // namespace dstrain::trace
