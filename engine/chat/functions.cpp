#include "engine/chat/functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "engine/base/printable.h"
#include "engine/chat/python.h"

namespace dstrain::chat {

bool is_function(std::string_view name) {
  static constexpr std::string_view kFunctions[] = {"namespace",    "range", "raise_exception",
                                                    "strftime_now", "dict",  "cycler",
                                                    "joiner",       "lipsum"};
  return std::ranges::find(kFunctions, name) != std::end(kFunctions);
}

Value range_of(const Arguments& arguments, Budget& budget) {
  arguments.check("range", 3);
  if (arguments.values.empty()) throw Fault{"range wants a whole number"};
  std::array<std::int64_t, 3> numbers{0, 0, 1};
  for (std::size_t i = 0; i < arguments.values.size(); ++i) {
    const auto number = whole_number(arguments.values[i]);
    if (!number)
      throw Fault{fmt::format("range wants whole numbers, not {}", type_name(arguments.values[i]))};
    numbers[arguments.values.size() == 1 ? 1 : i] = *number;
  }
  const auto [begin, end, step] = numbers;
  constexpr std::int64_t kFar = std::int64_t{1} << 53;
  if (step == 0) throw Fault{"range with step 0"};
  if (std::max({begin, end, step}) > kFar || std::min({begin, end, step}) < -kFar)
    throw Fault{"a range beyond 2^53"};
  List list;
  list.kind = List::Kind::range;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    budget.step();
    if (list.items.size() == 100'000) throw Fault{"a range of more than 100,000 numbers"};
    list.items.push_back(Value::integer(i));
  }
  return Value::list(std::move(list));
}

Value formatted_date(const Day& date, const Arguments& arguments) {
  arguments.check("strftime_now", 1);
  const Text* format = arguments.values.empty() ? nullptr : arguments.values[0].as_text();
  if (format == nullptr) throw Fault{"strftime_now wants a text"};
  const std::string& bytes = format->bytes();
  static constexpr std::string_view kKnown = "aAbBdHIjmMpSUwWxXyYcDeFTRr%";
  for (std::size_t at = 0; (at = bytes.find('%', at)) != std::string::npos; at += 2) {
    if (bytes.substr(at + 1, 1) == "-") ++at;
    if (at + 1 >= bytes.size() || kKnown.find(bytes[at + 1]) == std::string_view::npos)
      throw Fault{fmt::format("strftime_now: '{}' is not supported", shown(bytes.substr(at, 2)))};
  }
  if (bytes.empty()) return Value::text(std::string());
  if (bytes.size() > 1000) throw Fault{"strftime_now: the format is too long"};
  std::tm time{};
  time.tm_year = date.year - 1900;
  time.tm_mon = date.month - 1;
  time.tm_mday = date.day;
  std::tm known = time;  // with the day of the week and of the year
  static_cast<void>(timegm(&known));
  std::string out(100 * bytes.size(), '\0');
  out.resize(std::strftime(out.data(), out.size(), bytes.c_str(), &known));
  return Value::text(std::move(out));
}

}  // namespace dstrain::chat
