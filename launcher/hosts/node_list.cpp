#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <unordered_set>

#include "engine/base/error.h"
#include "launcher/hosts/host_list.h"
#include "launcher/hosts/host_text.h"

namespace dstrain::launcher {
namespace {

constexpr std::size_t kMaxNameBytes = 255;
/// Digits of a number in brackets; Slurm's own limit on a range is far below.
constexpr std::size_t kMaxDigits = 9;

/// "07-12": the numbers in order, each with at least `width` digits.
struct Range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::size_t width = 0;

  [[nodiscard]] std::uint64_t size() const { return last - first + 1; }
};

/// Names are made of parts: plain text, then perhaps one number of the ranges that follow it.
struct Part {
  std::string_view text;
  std::vector<Range> ranges;  ///< empty: plain text alone

  [[nodiscard]] std::uint64_t size() const {
    std::uint64_t sum = ranges.empty() ? 1 : 0;
    for (const Range& range : ranges) sum += range.size();
    return sum;
  }
  /// Appends choice `index` of this part.
  void write(std::string& name, std::uint64_t index) const {
    name += text;
    for (const Range& range : ranges) {
      if (index < range.size()) {
        name += fmt::format("{:0{}}", range.first + index, static_cast<int>(range.width));
        return;
      }
      index -= range.size();
    }
  }
};

/// Reads one text of Slurm's from left to right; `subject` is what errors call it.
class ListReader {
 public:
  ListReader(std::string_view text, const char* subject, std::size_t limit)
      : text_(text), subject_(subject), limit_(limit) {
    if (text.size() > kHostfileLimit) fail(0, "the list is too long");
  }

  [[nodiscard]] bool at_end() const { return at_ == text_.size(); }
  [[nodiscard]] std::size_t at() const { return at_; }
  [[nodiscard]] char peek() const { return at_end() ? '\0' : text_[at_]; }

  bool take(std::string_view word) {
    const bool found = text_.substr(at_).starts_with(word);
    if (found) at_ += word.size();
    return found;
  }
  void expect(std::string_view word, const char* what) {
    if (!take(word)) fail(at_, fmt::format("{} is missing", what));
  }
  std::string_view take_name() {
    const std::size_t begin = at_;
    while (!at_end() && is_name_character(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  std::string_view take_digits(const char* what) {
    const std::size_t begin = at_;
    while (!at_end() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    if (at_ == begin) fail(at_, fmt::format("{} is missing", what));
    if (at_ - begin > kMaxDigits) fail(begin, "a number of too many digits");
    return text_.substr(begin, at_ - begin);
  }

  [[noreturn]] void fail(std::size_t at, const std::string& what) const {
    throw Error(ErrorKind::usage,
                fmt::format("{} {}:{}: {}", subject_, in_quotes(text_), at + 1, what));
  }
  /// Fails when `count` more results would be too many.
  void check_limit(std::size_t at, std::uint64_t have, std::uint64_t count) const {
    if (count > limit_ || have > limit_ - count)
      fail(at, fmt::format("more than {} nodes", limit_));
  }

 private:
  std::string_view text_;
  const char* subject_;
  std::size_t limit_;
  std::size_t at_ = 0;
};

std::uint64_t number_in(std::string_view digits) {
  std::uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

/// "[1-3,07]", the bracket taken.
std::vector<Range> read_ranges(ListReader& reader) {
  std::vector<Range> ranges;
  std::uint64_t count = 0;
  do {
    const std::size_t at = reader.at();
    const std::string_view first = reader.take_digits("a number");
    Range range{number_in(first), number_in(first), first.size()};
    if (reader.take("-")) range.last = number_in(reader.take_digits("the last number"));
    if (range.last < range.first) reader.fail(at, "a range that counts down");
    reader.check_limit(at, count, range.size());
    count += range.size();
    ranges.push_back(range);
  } while (reader.take(","));
  reader.expect("]", "']'");
  return ranges;
}

/// Appends the names of one entry, "r[1-2]u[01-04]".
void expand_entry(ListReader& reader, std::vector<std::string>& names) {
  const std::size_t begin = reader.at();
  if (const char c = reader.peek(); c == '-' || c == '.' || c == '_') {
    reader.fail(begin, fmt::format("a name begins with '{}'", c));
  }
  std::vector<Part> parts;
  std::uint64_t count = 1;
  while (!reader.at_end() && reader.peek() != ',') {
    const std::size_t at = reader.at();
    Part part{reader.take_name(), {}};
    if (reader.take("[")) part.ranges = read_ranges(reader);
    if (reader.at() == at) {
      const char c = reader.peek();
      reader.fail(at, fmt::format("{} cannot stand in a node's name", in_quotes({&c, 1})));
    }
    // Each part gives a name at least one byte.
    if (parts.size() == kMaxNameBytes) reader.fail(begin, "a name of more than 255 bytes");
    count *= part.size();
    reader.check_limit(begin, names.size(), count);
    parts.push_back(std::move(part));
  }
  if (parts.empty()) reader.fail(begin, "a name is missing");
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string name;
    // The last part counts fastest.
    std::uint64_t stride = count;
    std::uint64_t rest = i;
    for (const Part& part : parts) {
      stride /= part.size();
      part.write(name, rest / stride);
      rest %= stride;
    }
    if (name.size() > kMaxNameBytes) reader.fail(begin, "a name of more than 255 bytes");
    names.push_back(std::move(name));
  }
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view list, std::size_t limit) {
  ListReader reader(list, "node list", limit);
  std::vector<std::string> names;
  std::vector<std::size_t> places;
  do {
    const std::size_t at = reader.at();
    expand_entry(reader, names);
    places.resize(names.size(), at);
  } while (reader.take(","));
  std::unordered_set<std::string_view> seen;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!seen.insert(names[i]).second) {
      reader.fail(places[i], fmt::format("the name {} stands twice", in_quotes(names[i])));
    }
  }
  return names;
}

std::vector<int> expand_counts(std::string_view counts, std::size_t limit) {
  ListReader reader(counts, "counts", limit);
  std::vector<int> result;
  do {
    const std::size_t at = reader.at();
    const auto value = static_cast<int>(number_in(reader.take_digits("a count")));
    std::uint64_t times = 1;
    if (reader.take("(")) {
      reader.expect("x", "'x'");
      times = number_in(reader.take_digits("a number of times"));
      reader.expect(")", "')'");
      if (times == 0) reader.fail(at, "a count that stands for no node");
    }
    reader.check_limit(at, result.size(), times);
    result.insert(result.end(), static_cast<std::size_t>(times), value);
  } while (reader.take(","));
  if (!reader.at_end()) reader.fail(reader.at(), "counts look like 2(x3),1");
  return result;
}

}  // namespace dstrain::launcher
