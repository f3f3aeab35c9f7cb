#include "engine/trace/scanner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>

#include "engine/base/disk_error.h"
#include "engine/base/error.h"
#include "engine/base/unique_fd.h"

namespace dstrain::trace {
namespace {

constexpr std::size_t kChunk = std::size_t{4} << 20;
constexpr std::size_t kMaxEvent = std::size_t{1} << 20;  ///< also of a value beside the events
constexpr std::size_t kMaxShownProblems = 20;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/// Bytes of a file, inflated where it is gzip.
class Source {
 public:
  explicit Source(const std::filesystem::path& path) : path_(path) {
    fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd_) fail(std::strerror(errno));
    raw_.resize(kChunk);
    fill_raw();
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(raw_[i]); };
    if (raw_size_ >= 4 && byte(0) == 0x28 && byte(1) == 0xB5 && byte(2) == 0x2F && byte(3) == 0xFD)
      fail("zstd is not read; unpack it with unzstd");
    gzip_ = raw_size_ >= 2 && byte(0) == 0x1F && byte(1) == 0x8B;
    if (gzip_ && ::inflateInit2(&stream_, 15 + 32) != Z_OK) fail("zlib cannot start");
  }
  ~Source() {
    if (gzip_) ::inflateEnd(&stream_);
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  /// Appends up to a chunk; false at the end. `problem` says why the end comes early.
  bool read(std::string& to, std::string& problem) {
    const std::size_t before = to.size();
    to.resize(before + kChunk);
    const std::size_t got = gzip_ ? inflate(to.data() + before, problem) : copy(to.data() + before);
    to.resize(before + got);
    return got > 0;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorKind::data, fmt::format("cannot read {}: {}", path_.string(), why));
  }

  void fill_raw() {
    raw_used_ = 0;
    ssize_t got = 0;
    do {
      got = ::read(fd_.get(), raw_.data(), raw_.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) fail(std::strerror(errno));
    raw_size_ = static_cast<std::size_t>(got);
  }

  std::size_t copy(char* to) {
    if (raw_used_ == raw_size_) fill_raw();
    const std::size_t count = raw_size_ - raw_used_;
    std::memcpy(to, raw_.data() + raw_used_, count);
    raw_used_ = raw_size_;
    return count;
  }

  std::size_t inflate(char* to, std::string& problem) {
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(kChunk);
    while (stream_.avail_out == kChunk && !ended_) {
      if (raw_used_ == raw_size_) fill_raw();
      if (raw_size_ == 0) {
        if (!between_members_) problem = "the compressed file is cut off";
        ended_ = true;
        break;
      }
      between_members_ = false;
      stream_.next_in = reinterpret_cast<Bytef*>(raw_.data() + raw_used_);
      stream_.avail_in = static_cast<uInt>(raw_size_ - raw_used_);
      const int result = ::inflate(&stream_, Z_NO_FLUSH);
      raw_used_ = raw_size_ - stream_.avail_in;
      if (result == Z_STREAM_END) {
        ::inflateReset(&stream_);  // another member may follow
        between_members_ = true;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        problem = "the compressed file is broken";
        ended_ = true;
      }
    }
    return kChunk - stream_.avail_out;
  }

  std::filesystem::path path_;
  UniqueFd fd_;
  std::string raw_;
  std::size_t raw_used_ = 0;
  std::size_t raw_size_ = 0;
  bool gzip_ = false;
  bool ended_ = false;
  bool between_members_ = true;
  z_stream stream_{};
};

constexpr std::size_t kIncomplete = std::string_view::npos;
constexpr std::size_t kTooDeep = kIncomplete - 1;
constexpr int kMaxDepth = 64;

/// Behind the closing quote of the string that begins at text[at]; kIncomplete without one.
std::size_t skip_string(std::string_view text, std::size_t at) {
  std::size_t i = at + 1;
  while (true) {
    const void* quote =
        i < text.size() ? std::memchr(text.data() + i, '"', text.size() - i) : nullptr;
    if (quote == nullptr) return kIncomplete;
    const auto end = static_cast<std::size_t>(static_cast<const char*>(quote) - text.data());
    std::size_t slashes = 0;
    while (end - slashes > at + 1 && text[end - slashes - 1] == '\\') ++slashes;
    if (slashes % 2 == 0) return end + 1;
    i = end + 1;
  }
}

/// Behind the object or list that begins at text[at]; kIncomplete where it has no end, kTooDeep
/// where it is nested beyond what any trace has.
std::size_t skip_nested(std::string_view text, std::size_t at) {
  int depth = 0;
  for (std::size_t i = at; i < text.size();) {
    switch (text[i]) {
      case '"':
        i = skip_string(text, i);
        if (i == kIncomplete) return kIncomplete;
        continue;
      case '{':
      case '[':
        if (++depth > kMaxDepth) return kTooDeep;
        break;
      case '}':
      case ']':
        if (--depth == 0) return i + 1;
        break;
      default:
        break;
    }
    ++i;
  }
  return kIncomplete;
}

std::size_t skip_spaces(std::string_view text, std::size_t at) {
  while (at < text.size() && is_space(text[at])) ++at;
  return at;
}

/// Behind a value; kIncomplete where it has no end.
std::size_t skip_value(std::string_view text, std::size_t at) {
  if (at >= text.size()) return kIncomplete;
  if (text[at] == '"') return skip_string(text, at);
  if (text[at] == '{' || text[at] == '[') return skip_nested(text, at);
  std::size_t end = at;
  while (end < text.size() && text[end] != ',' && text[end] != '}' && text[end] != ']' &&
         !is_space(text[end]))
    ++end;
  return end == text.size() ? kIncomplete : end;
}

std::string_view without_quotes(std::string_view value) {
  if (value.size() >= 2 && value.front() == '"') return value.substr(1, value.size() - 2);
  return value;
}

/// Calls `visit(key, value)` for each member of `object`; false where it is not an object.
template <class Visit>
bool each_member(std::string_view object, Visit&& visit) {
  if (object.size() < 2 || object.front() != '{') return false;
  std::size_t at = skip_spaces(object, 1);
  if (at < object.size() && object[at] == '}') return true;
  while (at < object.size()) {
    if (object[at] != '"') return false;
    const std::size_t key_end = skip_string(object, at);
    if (key_end == kIncomplete) return false;
    const std::string_view key = object.substr(at + 1, key_end - at - 2);
    at = skip_spaces(object, key_end);
    if (at >= object.size() || object[at] != ':') return false;
    at = skip_spaces(object, at + 1);
    const std::size_t value_end = skip_value(object, at);
    if (value_end >= kTooDeep || value_end == at) return false;
    visit(key, object.substr(at, value_end - at));
    at = skip_spaces(object, value_end);
    if (at >= object.size()) return false;
    if (object[at] == '}') return at + 1 == object.size();
    if (object[at] != ',') return false;
    at = skip_spaces(object, at + 1);
  }
  return false;
}

/// Decimal microseconds in exact nanoseconds; further digits are rounded.
std::optional<std::int64_t> nanoseconds(std::string_view text) {
  text = without_quotes(text);
  const bool negative = text.starts_with('-');
  const std::string_view digits = negative ? text.substr(1) : text;
  std::int64_t whole = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), whole);
  if (error != std::errc() || whole > INT64_MAX / 1000 - 1) return {};
  std::int64_t ns = whole * 1000;
  const char* at = end;
  const char* last = digits.data() + digits.size();
  if (at != last && *at == '.') {
    ++at;
    std::int64_t scale = 100;
    bool round_up = false;
    for (int place = 0; at != last && *at >= '0' && *at <= '9'; ++at, ++place) {
      ns += (*at - '0') * scale;
      if (place == 3) round_up = *at >= '5';
      scale /= 10;
    }
    if (round_up) ++ns;
  }
  if (at != last && (*at == 'e' || *at == 'E')) {
    const double value = std::strtod(std::string(digits).c_str(), nullptr) * 1000;
    if (!(std::abs(value) < 9e18)) return {};
    ns = std::llround(value);
  } else if (at != last) {
    return {};
  }
  return negative ? -ns : ns;
}

}  // namespace

std::optional<std::string_view> find_argument(std::string_view args, std::string_view key) {
  std::optional<std::string_view> found;
  each_member(args, [&](std::string_view name, std::string_view value) {
    if (name == key) found = without_quotes(value);
  });
  return found;
}

std::optional<std::int64_t> find_integer(std::string_view args, std::string_view key) {
  const auto text = find_argument(args, key);
  if (!text) return {};
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) return {};
  return value;
}

std::string unescape(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      plain += text[i];
      continue;
    }
    const char c = text[++i];
    constexpr std::string_view kFrom = "nrtbf";
    constexpr std::string_view kTo = "\n\r\t\b\f";
    if (const std::size_t place = kFrom.find(c); place != std::string_view::npos) {
      plain += kTo[place];
    } else if (c == 'u' && i + 4 < text.size()) {
      unsigned code = 0;
      std::from_chars(text.data() + i + 1, text.data() + i + 5, code, 16);
      i += 4;
      if (code < 0x80) {
        plain += static_cast<char>(code);
      } else if (code < 0x800) {
        plain += static_cast<char>(0xC0 | code >> 6);
        plain += static_cast<char>(0x80 | (code & 0x3F));
      } else {
        plain += static_cast<char>(0xE0 | code >> 12);
        plain += static_cast<char>(0x80 | (code >> 6 & 0x3F));
        plain += static_cast<char>(0x80 | (code & 0x3F));
      }
    } else {
      plain += c;
    }
  }
  return plain;
}

struct Scanner::State {
  explicit State(const std::filesystem::path& path) : source(path) {}

  enum class Where { start, top, events, end };

  /// Makes sure that text[at] is there; false at the end of the file.
  bool more() {
    if (ended) return false;
    if (begin > 0) {
      text.erase(0, begin);
      passed += begin;
      at -= begin;
      begin = 0;
    }
    std::string problem;
    if (!source.read(text, problem)) ended = true;
    if (!problem.empty()) report(passed + text.size(), problem);
    return !ended;
  }
  bool skip_to_token() {
    while (true) {
      at = skip_spaces(text, at);
      if (at < text.size()) return true;
      begin = at;
      if (!more()) return false;
    }
  }
  /// `skip` of the value at `at`, with more text as long as it needs and is allowed to.
  template <class Skip>
  std::size_t whole(const Skip& skip, std::size_t max_bytes) {
    while (true) {
      const std::size_t end = skip(std::string_view(text), at);
      if (end == kTooDeep) return kIncomplete;
      if (end != kIncomplete) return end;
      if (text.size() - at > max_bytes) return kIncomplete;
      begin = at;
      if (!more()) return kIncomplete;
    }
  }
  void report(std::uint64_t offset, std::string what) {
    ++num_problems;
    if (problems.size() < kMaxShownProblems) problems.push_back({offset, std::move(what)});
  }
  bool next_event(Event& event);
  void read_top();
  bool parse(std::string_view object, Event& event) const;
  void keep(std::string_view key, std::string_view value);

  Source source;
  std::string text;          ///< not yet passed
  std::uint64_t passed = 0;  ///< bytes before `text`
  std::size_t begin = 0;     ///< text before it may go
  std::size_t at = 0;
  bool ended = false;
  Where where = Where::start;
  bool bare = false;  ///< the file is the list of events itself
  std::map<std::string, std::string, std::less<>> values;
  std::int64_t base = 0;
  std::uint64_t num_problems = 0;
  std::vector<ScanProblem> problems;
};

void Scanner::State::keep(std::string_view key, std::string_view value) {
  if (value.size() <= kMaxEvent) values[std::string(key)] = std::string(value);
  if (key != "baseTimeNanoseconds") return;
  std::int64_t number = 0;
  std::from_chars(value.data(), value.data() + value.size(), number);
  base = number;
}

bool Scanner::State::parse(std::string_view object, Event& event) const {
  event = {};
  event.object = object;
  bool good = true;
  const auto time = [&](std::string_view value, std::int64_t& to) {
    const auto ns = nanoseconds(value);
    good = good && ns;
    to = ns.value_or(0);
  };
  bool timed = false;
  const bool whole = each_member(object, [&](std::string_view key, std::string_view value) {
    if (key == "ph") {
      const std::string_view phase = without_quotes(value);
      if (phase.size() == 1) event.phase = phase[0];
    } else if (key == "name") {
      event.name = without_quotes(value);
    } else if (key == "cat") {
      event.category = without_quotes(value);
    } else if (key == "ts") {
      time(value, event.start_ns);
      timed = true;
    } else if (key == "dur") {
      time(value, event.duration_ns);
    } else if (key == "pid") {
      event.pid = without_quotes(value);
    } else if (key == "tid") {
      event.tid = without_quotes(value);
    } else if (key == "id") {
      event.id = without_quotes(value);
    } else if (key == "args" && value.front() == '{') {
      event.args = value;
    }
  });
  if (timed) event.start_ns += base;
  return whole && good && event.phase != 0;
}

/// Up to the first event, and behind the last one.
void Scanner::State::read_top() {
  while (true) {
    if (!skip_to_token()) {
      if (where == Where::top && !bare) report(passed + at, "the end of the file is missing");
      where = Where::end;
      return;
    }
    const char c = text[at];
    if (where == Where::start) {
      if (c == '[') {
        bare = true;
        where = Where::events;
        ++at;
        return;
      }
      if (c != '{') throw Error(ErrorKind::data, "it is no JSON object or list");
      where = Where::top;
      ++at;
      continue;
    }
    if (c == ',') {
      ++at;
      continue;
    }
    if (c == '}') {
      where = Where::end;
      return;
    }
    const std::size_t key_end = c == '"' ? whole(skip_string, kMaxEvent) : kIncomplete;
    if (key_end == kIncomplete) {
      report(passed + at, "a key is wanted beside the events");
      where = Where::end;
      return;
    }
    const std::string key = text.substr(at + 1, key_end - at - 2);
    at = key_end;
    if (!skip_to_token() || text[at] != ':') {
      report(passed + at, "a colon is wanted after a key");
      where = Where::end;
      return;
    }
    ++at;
    if (!skip_to_token()) continue;
    if (key == "traceEvents" && text[at] == '[') {
      where = Where::events;
      ++at;
      return;
    }
    const std::size_t end = whole(skip_value, std::size_t{64} << 20);
    if (end == kIncomplete) {
      report(passed + at, fmt::format("the value of {} has no end", key));
      where = Where::end;
      return;
    }
    keep(key, std::string_view(text).substr(at, end - at));
    at = end;
    begin = at;
  }
}

bool Scanner::State::next_event(Event& event) {
  bool lost = false;  // behind a broken event, where anything may stand
  while (true) {
    begin = at;
    if (!skip_to_token()) {
      if (!lost) report(passed + at, "the list of events has no end");
      where = Where::end;
      return false;
    }
    const char c = text[at];
    if (c == ',') {
      ++at;
      continue;
    }
    if (c == ']' && !lost) {
      ++at;
      where = bare ? Where::end : Where::top;
      return false;
    }
    if (c != '{') {
      if (!lost) report(passed + at, "text between events");
      lost = true;
      const std::size_t open = text.find('{', at);
      at = open == std::string::npos ? text.size() : open;
      continue;
    }
    const std::size_t end = whole(skip_nested, kMaxEvent);
    if (end != kIncomplete && parse(std::string_view(text).substr(at, end - at), event)) {
      event.offset = passed + at;
      at = end;
      return true;
    }
    if (!lost) {
      report(passed + at,
             end == kIncomplete && ended ? "an event is cut off" : "an event cannot be read");
    }
    lost = true;
    ++at;
  }
}

Scanner::Scanner(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {
  try {
    state_->read_top();
  } catch (const Error& error) {
    throw Error(ErrorKind::data, fmt::format("{} is no trace: {}", path.string(), error.what()),
                "give files in Chrome's trace format, plain or gzip");
  }
}
Scanner::~Scanner() = default;
Scanner::Scanner(Scanner&&) noexcept = default;
Scanner& Scanner::operator=(Scanner&&) noexcept = default;

bool Scanner::next(Event& event) {
  if (state_->where == State::Where::events && state_->next_event(event)) return true;
  if (state_->where == State::Where::top) state_->read_top();
  // A second list of events, of files that were put together.
  return state_->where == State::Where::events && next(event);
}

std::optional<std::string> Scanner::top(std::string_view key) const {
  const auto found = state_->values.find(key);
  if (found == state_->values.end()) return {};
  return found->second;
}
std::int64_t Scanner::base_ns() const { return state_->base; }
std::uint64_t Scanner::problems() const { return state_->num_problems; }
const std::vector<ScanProblem>& Scanner::first_problems() const { return state_->problems; }
std::uint64_t Scanner::bytes() const { return state_->passed + state_->at; }

}  // namespace dstrain::trace
