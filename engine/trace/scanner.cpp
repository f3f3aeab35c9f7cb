#include "engine/trace/scanner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/trace/input_stream.h"

namespace dstrain::trace {
namespace {

constexpr std::size_t kRing = std::size_t{4} << 20;
constexpr std::size_t kMaxEvent = std::size_t{16} << 20;
constexpr std::size_t kMaxTopValue = std::size_t{1} << 20;
constexpr std::size_t kMaxTopValues = 1000;
constexpr std::size_t kShownProblems = 20;
constexpr std::int64_t kMaxTime = 2'200'000'000'000'000'000;  ///< the year 2039; sums still fit

/// Where in the outermost value the scanner stands.
enum class Place : std::uint8_t { begin, names, events, lost, end };

/// Keys with which writers begin an event. Not "id": Kineto's list of devices begins so.
constexpr std::array<std::string_view, 7> kFirstKeys = {"ph",  "name", "cat", "pid",
                                                        "tid", "ts",   "dur"};

struct EventNumbers {
  std::string_view start;
  std::string_view duration;
};

void take_member(Event& event, EventNumbers& numbers, std::string_view key,
                 std::string_view value) {
  if (key == "ph") {
    const std::string_view phase = without_quotes(value);
    event.phase = phase.size() == 1 ? phase[0] : '\0';
  } else if (key == "name") {
    event.name = without_quotes(value);
  } else if (key == "cat") {
    event.category = without_quotes(value);
  } else if (key == "pid") {
    event.pid = without_quotes(value);
  } else if (key == "tid") {
    event.tid = without_quotes(value);
  } else if (key == "ts") {
    numbers.start = value;
  } else if (key == "dur") {
    numbers.duration = value;
  } else if (key == "id") {
    event.id = without_quotes(value);
  } else if (key == "args") {
    event.args = value.starts_with('{') ? value : std::string_view();
  }
}

Reading finish_event(TextCursor& c, Event& event, const EventNumbers& numbers) {
  if (event.phase == '\0') return c.fail("an object without \"ph\"");
  event.time = numbers.start;
  if (!numbers.start.empty()) {
    const auto start = microseconds_to_ns(without_quotes(numbers.start));
    if (!start || std::abs(*start) > kMaxTime) return c.fail("\"ts\" is no time");
    event.start_ns = *start;
  } else if (event.phase != 'M') {
    return c.fail("an event without \"ts\"");
  }
  if (!numbers.duration.empty()) {
    const auto duration = microseconds_to_ns(without_quotes(numbers.duration));
    if (!duration || std::abs(*duration) > kMaxTime) return c.fail("\"dur\" is no time");
    event.duration_ns = *duration;
  }
  return Reading::whole;
}

/// The event whose opening brace is at the cursor.
Reading read_event(TextCursor& c, Event& event) {
  event = Event{};
  EventNumbers numbers;
  const char* begin = c.p;
  ++c.p;
  c.skip_space();
  while (*c.p != '}') {
    const char* key = c.p + 1;
    if (*c.p != '"') return c.stop("no name where one belongs");
    if (const Reading r = skip_text(c); r != Reading::whole) return r;
    const std::string_view name(key, static_cast<std::size_t>(c.p - key - 1));
    c.skip_space();
    if (*c.p != ':') return c.stop("no colon after a name");
    ++c.p;
    c.skip_space();
    const char* value = c.p;
    if (const Reading r = skip_value(c); r != Reading::whole) return r;
    take_member(event, numbers, name, {value, static_cast<std::size_t>(c.p - value)});
    c.skip_space();
    if (*c.p == ',') {
      ++c.p;
      c.skip_space();
      if (*c.p == '}') return c.fail("a comma before a closing brace");
    } else if (*c.p != '}') {
      return c.stop("no comma after a value");
    }
  }
  ++c.p;
  event.object = {begin, static_cast<std::size_t>(c.p - begin)};
  return finish_event(c, event, numbers);
}

/// Whether an event begins at the brace at the cursor, as far as its first key tells.
Reading looks_like_event(TextCursor c) {
  ++c.p;
  c.skip_space();
  if (*c.p != '"') return c.stop("");
  const char* key = c.p + 1;
  if (const Reading r = skip_text(c); r != Reading::whole) return r;
  const std::string_view name(key, static_cast<std::size_t>(c.p - key - 1));
  return std::ranges::find(kFirstKeys, name) != kFirstKeys.end() ? Reading::whole : c.fail("");
}

}  // namespace

struct Scanner::State {
  explicit State(const std::filesystem::path& file) : path(file), input(file) {}

  std::filesystem::path path;
  InputStream input;
  std::vector<char> ring = std::vector<char>(kRing + 1);
  std::size_t begin = 0;  ///< of the text that is not used
  std::size_t end = 0;    ///< a byte 0 stands there
  std::uint64_t ring_offset = 0;
  bool input_ended = false;
  Place place = Place::begin;
  bool bare_list = false;
  bool events_seen = false;
  bool want_comma = false;
  char before = 0;  ///< the last byte but spaces, while lost
  std::vector<std::pair<std::string, std::string>> values;
  std::int64_t base = 0;
  std::int64_t late_base = 0;
  std::uint64_t num_problems = 0;
  std::uint64_t num_negative = 0;   ///< events whose duration is
  std::uint64_t first_negative = 0;  ///< its offset
  std::vector<ScanProblem> shown;

  [[nodiscard]] std::uint64_t offset() const { return ring_offset + begin; }
  [[nodiscard]] TextCursor cursor() const {
    return {.p = ring.data() + begin, .end = ring.data() + end};
  }
  void use_to(const char* p) { begin = static_cast<std::size_t>(p - ring.data()); }
  void note(std::uint64_t at, std::string what) {
    ++num_problems;
    if (shown.size() < kShownProblems) shown.push_back({at, std::move(what)});
  }
  bool fill();
  char peek();
  void finish(const char* what);
  void lose(const TextCursor& c, const char* what);
  bool retry(Reading reading, const TextCursor& c, const char* what);
  void start();
  void read_name();
  void keep(std::string_view key, std::string_view value);
  bool read_next(Event& event);
  void find_event();
};

/// More text behind `end`; false at the end of the file or where an event is larger than any.
bool Scanner::State::fill() {
  if (input_ended) return false;
  if (begin > 0) {
    std::memmove(ring.data(), ring.data() + begin, end - begin);
    ring_offset += begin;
    end -= begin;
    begin = 0;
  }
  if (end + 1 == ring.size()) {
    if (end >= kMaxEvent) return false;
    ring.resize(end * 2 + 1);
  }
  const std::size_t count = input.read(ring.data() + end, ring.size() - 1 - end);
  end += count;
  ring[end] = '\0';
  if (count == 0) {
    input_ended = true;
    if (!input.problem().empty()) note(ring_offset + end, input.problem());
  }
  return count > 0;
}

/// The next byte but spaces; 0 at the end of the file.
char Scanner::State::peek() {
  while (true) {
    TextCursor c = cursor();
    c.skip_space();
    use_to(c.p);
    if (c.p != c.end) return *c.p == '\0' ? '\1' : *c.p;
    if (!fill()) return '\0';
  }
}

void Scanner::State::finish(const char* what) {
  if (what != nullptr) note(ring_offset + end, what);
  begin = end;
  place = Place::end;
}

/// Leaves out what begins here and looks for the next event behind its first byte.
void Scanner::State::lose(const TextCursor& c, const char* what) {
  const auto at = ring_offset + static_cast<std::uint64_t>(c.p - ring.data());
  note(offset(), fmt::format("{}: {} (byte {})", what, c.mistake, at));
  place = Place::lost;
  before = begin < end ? ring[begin] : '\0';
  if (begin < end) ++begin;
}

/// Whether to read once more from `begin`, with more text; else what was read is whole, or lost.
bool Scanner::State::retry(Reading reading, const TextCursor& c, const char* what) {
  if (reading == Reading::whole) return false;
  if (reading == Reading::cut) {
    if (fill()) return true;
    TextCursor cut = cursor();
    cut.p = cut.end;
    cut.mistake = input_ended ? "the file ends inside" : "it is longer than 16 MiB";
    lose(cut, what);
    return false;
  }
  lose(c, what);
  return false;
}

void Scanner::State::start() {
  if (end == 0) (void)fill();
  if (std::string_view(ring.data(), end).starts_with("\xEF\xBB\xBF")) begin = 3;
  const char first = peek();
  if (first != '{' && first != '[') {
    throw Error(ErrorKind::data,
                fmt::format("{}: no trace: {}", path.string(),
                            first == '\0' ? "it is empty"
                                          : "it begins neither with an object nor with a list"),
                input.problem().empty()
                    ? "a trace is JSON with a list \"traceEvents\", plain, .gz or .zst"
                    : input.problem());
  }
  ++begin;
  bare_list = first == '[';
  events_seen = bare_list;
  place = bare_list ? Place::events : Place::names;
  want_comma = false;
}

void Scanner::State::keep(std::string_view key, std::string_view value) {
  if (key == "baseTimeNanoseconds") {
    base = to_integer(value).value_or(0);
    if (base < 0 || base > kMaxTime) base = 0;
    if (events_seen) late_base = base;
  }
  if (values.size() < kMaxTopValues && value.size() <= kMaxTopValue)
    values.emplace_back(unescape(key), value);
}

/// One name and value of the outermost object, or the begin of the events, or its end.
void Scanner::State::read_name() {
  const char first = peek();
  if (first == '}') {
    ++begin;
    if (peek() == '\0') return finish(nullptr);
    TextCursor c = cursor();
    c.mistake = "it should end here";
    return lose(c, "there is more text behind the trace");
  }
  if (first == '\0') return finish("the file is cut off");
  if (want_comma && first == ',') ++begin;
  Reading reading = Reading::cut;
  TextCursor c;
  do {
    c = cursor();
    c.skip_space();
    const char* key = c.p + 1;
    reading = *c.p == '"' ? skip_text(c) : c.stop("no name where one belongs");
    if (reading != Reading::whole) continue;
    const std::string_view name(key, static_cast<std::size_t>(c.p - key - 1));
    c.skip_space();
    if (*c.p != ':') {
      reading = c.stop("no colon after a name");
      continue;
    }
    ++c.p;
    c.skip_space();
    if (c.p == c.end) {
      reading = Reading::cut;
      continue;
    }
    if (name == "traceEvents" && *c.p == '[') {
      use_to(c.p + 1);
      place = Place::events;
      events_seen = true;
      want_comma = false;
      return;
    }
    const char* value = c.p;
    reading = skip_value(c);
    if (reading == Reading::whole) keep(name, {value, static_cast<std::size_t>(c.p - value)});
  } while (retry(reading, c, "a value beside the events"));
  if (place != Place::names) return;
  use_to(c.p);
  want_comma = true;
}

/// The next event of the list; false where there was none, and `place` says why.
bool Scanner::State::read_next(Event& event) {
  char first = peek();
  if (want_comma && first == ',') {
    ++begin;
    first = peek();
  } else if (want_comma && first == '{') {
    note(offset(), "no comma between two events");
  }
  if (first == ']') {
    ++begin;
    want_comma = true;
    place = Place::names;
    if (bare_list) finish(peek() == '\0' ? nullptr : "there is more text behind the trace");
    return false;
  }
  // Chrome's format allows a bare list to end without its bracket.
  if (first == '\0') {
    finish(bare_list ? nullptr : "the file is cut off");
    return false;
  }
  Reading reading = Reading::cut;
  TextCursor c;
  do {
    c = cursor();
    reading = *c.p == '{' ? read_event(c, event) : c.stop("no event where one belongs");
  } while (retry(reading, c, "an event is left out"));
  if (place != Place::events) return false;
  event.offset = offset();
  if (event.phase != 'M' || event.start_ns != 0) event.start_ns += base - late_base;
  if (event.duration_ns < 0 && ++num_negative == 1) first_negative = event.offset;
  use_to(c.p);
  want_comma = true;
  return true;
}

/// On to the next brace that seems to begin an event.
void Scanner::State::find_event() {
  while (true) {
    while (begin < end) {
      const char byte = ring[begin];
      if (byte == '{' && before != ':') {
        Reading reading = looks_like_event(cursor());
        if (reading == Reading::cut) {
          if (fill()) continue;
          reading = Reading::broken;
        }
        if (reading == Reading::whole) {
          place = Place::events;
          events_seen = true;
          want_comma = false;
          return;
        }
      }
      if (byte != ' ' && byte != '\n' && byte != '\r' && byte != '\t') before = byte;
      ++begin;
    }
    if (!fill()) return finish(nullptr);
  }
}

Scanner::Scanner(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {
  state_->start();
}
Scanner::~Scanner() = default;
Scanner::Scanner(Scanner&&) noexcept = default;
Scanner& Scanner::operator=(Scanner&&) noexcept = default;

bool Scanner::next(Event& event) {
  State& s = *state_;
  while (s.place != Place::end) {
    if (s.place == Place::events) {
      if (s.read_next(event)) return true;
    } else if (s.place == Place::lost) {
      s.find_event();
    } else {
      s.read_name();
    }
  }
  if (!s.events_seen) {
    throw Error(ErrorKind::data,
                fmt::format("{}: no trace: it has no list \"traceEvents\"", s.path.string()),
                s.shown.empty() ? "name a trace of dstrain or of PyTorch's profiler"
                                : s.shown.front().what);
  }
  return false;
}

std::optional<std::string> Scanner::top(std::string_view key) const {
  for (const auto& [name, value] : state_->values) {
    if (name == key) return value;
  }
  return std::nullopt;
}
std::int64_t Scanner::base_ns() const { return state_->base; }
std::int64_t Scanner::late_base_ns() const { return state_->late_base; }
std::uint64_t Scanner::problems() const { return state_->num_problems; }
const std::vector<ScanProblem>& Scanner::first_problems() const { return state_->shown; }
std::string Scanner::negative_durations(int rank) const {
  const State& s = *state_;
  if (s.num_negative == 0) return {};
  return fmt::format(
      "rank {}: {} event{} of {} {} a negative \"dur\", the first at byte {}: counted and drawn as "
      "if 0",
      rank, s.num_negative, s.num_negative == 1 ? "" : "s", printable(s.path.string()),
      s.num_negative == 1 ? "has" : "have", s.first_negative);
}
std::uint64_t Scanner::bytes() const { return state_->offset(); }
std::uint64_t Scanner::file_bytes() const { return state_->input.file_bytes(); }

}  // namespace dstrain::trace
