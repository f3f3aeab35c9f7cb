#include "engine/report/confusion.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/trace/tables.h"

namespace dstrain::report {
namespace {

std::string csv_number(double value) {
  return std::isfinite(value) ? fmt::format("{:.6g}", value) : std::string();
}

/// Fields one after the other.
class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  [[nodiscard]] bool at_end() const { return at_ >= text_.size(); }

  /// The next field of the line; nothing behind its last one, and then the next line begins.
  std::optional<std::string> next() {
    if (ended_) {
      ended_ = false;
      begins_ = true;
      return std::nullopt;
    }
    if (begins_) ++line_;
    begins_ = false;
    std::string field = !at_end() && text_[at_] == '"' ? quoted() : plain();
    ended_ = at_end() || text_[at_] == '\n';
    ++at_;
    return field;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::data, fmt::format("{}, line {}: {}", name_, line_, what),
                "an evaluation writes the file anew");
  }

 private:
  std::string plain() {
    const std::size_t end = std::min(text_.find_first_of(",\n", at_), text_.size());
    std::string field(text_.substr(at_, end - at_));
    at_ = end;
    return field;
  }
  std::string quoted() {
    std::string field;
    for (++at_; !at_end(); ++at_) {
      if (text_[at_] == '"') {
        if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') break;
        ++at_;
      }
      field += text_[at_];
    }
    if (at_end()) fail("a quoted name has no end");
    ++at_;
    if (!at_end() && text_[at_] != ',' && text_[at_] != '\n') fail("text behind a quoted name");
    return field;
  }

  std::string_view text_;
  std::string name_;
  std::size_t at_ = 0, line_ = 0;  ///< where it reads; of the last field
  bool begins_ = true, ended_ = false;
};

std::int64_t count_in(const std::string& field, const CsvReader& reader) {
  constexpr std::int64_t kMax = std::int64_t{1} << 40;  // sums of all stay in 64 bits
  std::int64_t count = -1;
  const char* end = field.data() + field.size();
  const auto parsed = std::from_chars(field.data(), end, count);
  if (parsed.ec != std::errc() || parsed.ptr != end || count < 0 || count > kMax)
    reader.fail(fmt::format("'{}' is no count", shown(field, 20)));
  return count;
}

}  // namespace

std::vector<ClassFigures> class_figures(const Confusion& confusion) {
  const std::size_t classes = confusion.classes();
  std::vector<ClassFigures> figures(classes);
  std::vector<std::int64_t> taken(classes);
  for (std::size_t right = 0; right < classes; ++right) {
    ClassFigures& own = figures[right];
    for (std::size_t predicted = 0; predicted < classes; ++predicted) {
      const std::int64_t count = confusion.count(right, predicted);
      own.images += count;
      taken[predicted] += count;
      if (predicted == right) {
        own.right = count;
      } else if (count > own.as_other) {
        own.other = predicted;
        own.as_other = count;
      }
    }
  }
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole)
                     : std::numeric_limits<double>::quiet_NaN();
  };
  for (std::size_t i = 0; i < classes; ++i) {
    ClassFigures& own = figures[i];
    own.recall = share(own.right, own.images);
    own.precision = share(own.right, taken[i]);
    own.f1 = share(2 * own.right, own.images + taken[i]);
  }
  return figures;
}

std::vector<ConfusedPair> most_confused(const Confusion& confusion, std::size_t max) {
  std::vector<ConfusedPair> pairs;
  for (std::size_t right = 0; right < confusion.classes(); ++right) {
    for (std::size_t predicted = 0; predicted < confusion.classes(); ++predicted) {
      const std::int64_t count = confusion.count(right, predicted);
      if (predicted != right && count > 0) pairs.push_back({right, predicted, count});
    }
  }
  std::ranges::stable_sort(pairs, std::ranges::greater(), &ConfusedPair::count);
  if (pairs.size() > max) pairs.resize(max);
  return pairs;
}

std::vector<std::string> worst_classes(const Confusion& confusion, std::size_t max) {
  constexpr std::size_t kNameBytes = 40;
  const std::vector<ClassFigures> figures = class_figures(confusion);
  std::vector<std::size_t> order(figures.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t i) { return !(figures[i].recall < 1); });
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return figures[i].recall; });
  if (order.size() > max) order.resize(max);
  std::vector<std::string> lines;
  for (const std::size_t i : order) {
    const ClassFigures& own = figures[i];
    lines.push_back(fmt::format("{}: {} of {} right, most often taken for {} ({})",
                                shown(confusion.names[i], kNameBytes), own.right, own.images,
                                shown(confusion.names[own.other], kNameBytes), own.as_other));
  }
  return lines;
}

std::string confusion_csv(const Confusion& confusion) {
  std::string text = "class";
  for (const std::string& name : confusion.names) text += ',' + trace::csv_quoted(name);
  text += '\n';
  for (std::size_t right = 0; right < confusion.classes(); ++right) {
    text += trace::csv_quoted(confusion.names[right]);
    for (std::size_t predicted = 0; predicted < confusion.classes(); ++predicted) {
      text += ',';
      text += fmt::format_int(confusion.count(right, predicted)).c_str();
    }
    text += '\n';
  }
  return text;
}

std::string classes_csv(const Confusion& confusion) {
  std::string text = "class,images,right,recall,precision,f1,most_often_taken_for,times\n";
  const std::vector<ClassFigures> figures = class_figures(confusion);
  for (std::size_t i = 0; i < figures.size(); ++i) {
    const ClassFigures& own = figures[i];
    text += fmt::format("{},{},{},{},{},{},", trace::csv_quoted(confusion.names[i]), own.images,
                        own.right, csv_number(own.recall), csv_number(own.precision),
                        csv_number(own.f1));
    text += own.as_other > 0 ? fmt::format("{},{}\n", trace::csv_quoted(confusion.names[own.other]),
                                           own.as_other)
                             : ",\n";
  }
  return text;
}

Confusion parse_confusion(std::string_view csv, const std::string& name) {
  constexpr auto kMax = static_cast<std::size_t>(Confusion::kMaxClasses);
  CsvReader reader(csv, name);
  Confusion confusion;
  if (reader.next() != "class") reader.fail("the header does not begin with 'class'");
  while (std::optional<std::string> field = reader.next()) {
    if (confusion.names.size() == kMax) reader.fail(fmt::format("more than {} classes", kMax));
    confusion.names.push_back(*std::move(field));
  }
  const std::size_t classes = confusion.classes();
  if (classes == 0) reader.fail("no class");
  for (std::size_t right = 0; right < classes; ++right) {
    if (reader.at_end())
      reader.fail(fmt::format("{} rows, not one for each of {} classes", right, classes));
    if (reader.next() != confusion.names[right])
      reader.fail(fmt::format("the row is not that of '{}'", shown(confusion.names[right], 40)));
    std::size_t columns = 0;
    while (const std::optional<std::string> field = reader.next()) {
      if (++columns > classes) break;
      confusion.counts.push_back(count_in(*field, reader));
    }
    if (columns != classes)
      reader.fail(fmt::format("the row of '{}' has not {} counts",
                              shown(confusion.names[right], 40), classes));
  }
  if (!reader.at_end()) reader.fail(fmt::format("more rows than the {} classes", classes));
  return confusion;
}

}  // namespace dstrain::report
