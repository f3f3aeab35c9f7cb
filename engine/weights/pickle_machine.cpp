#include "engine/weights/pickle_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"

namespace dstrain {
namespace {

/// Opcodes of protocols 2 to 5.
enum class Op : std::uint8_t {
  mark = '(',
  stop = '.',
  pop = '0',
  pop_mark = '1',
  dup = '2',
  none = 'N',
  new_true = 0x88,
  new_false = 0x89,
  bin_int = 'J',
  bin_int1 = 'K',
  bin_int2 = 'M',
  long1 = 0x8A,
  long4 = 0x8B,
  bin_float = 'G',
  short_bin_string = 'U',
  bin_string = 'T',
  bin_unicode = 'X',
  short_bin_unicode = 0x8C,
  bin_unicode8 = 0x8D,
  bin_bytes = 'B',
  short_bin_bytes = 'C',
  bin_bytes8 = 0x8E,
  byte_array8 = 0x96,
  empty_list = ']',
  append = 'a',
  appends = 'e',
  list = 'l',
  empty_tuple = ')',
  tuple = 't',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  empty_dict = '}',
  dict = 'd',
  set_item = 's',
  set_items = 'u',
  empty_set = 0x8F,
  add_items = 0x90,
  frozen_set = 0x91,
  bin_get = 'h',
  long_bin_get = 'j',
  bin_put = 'q',
  long_bin_put = 'r',
  memoize = 0x94,
  global = 'c',
  stack_global = 0x93,
  reduce = 'R',
  build = 'b',
  new_obj = 0x81,
  new_obj_ex = 0x92,
  bin_pers_id = 'Q',
  proto = 0x80,
  frame = 0x95,
};

}  // namespace

void PickleMachine::fail(const std::string& what) const {
  throw Error(ErrorKind::data, fmt::format("{}: {} at byte {}", where_, what, at_),
              "the file is damaged, or of another program");
}

std::span<const std::byte> PickleMachine::take(std::uint64_t count) {
  if (count > program_.size() - next_)
    fail(fmt::format("the pickle ends {} bytes before it is complete",
                     count - (program_.size() - next_)));
  const auto part = program_.subspan(next_, count);
  next_ += count;
  return part;
}

std::uint64_t PickleMachine::number(int bytes) {
  std::uint64_t value = 0;
  int shift = 0;
  for (const std::byte b : take(static_cast<std::uint64_t>(bytes))) {
    value |= static_cast<std::uint64_t>(b) << shift;
    shift += 8;
  }
  return value;
}

std::string_view PickleMachine::line() {
  const std::string_view rest(reinterpret_cast<const char*>(program_.data()) + next_,
                              program_.size() - next_);
  const std::size_t end = rest.find('\n');
  if (end == std::string_view::npos) fail("a name does not end");
  next_ += end + 1;
  return rest.substr(0, end);
}

void PickleMachine::spend(std::size_t bytes) {
  constexpr std::size_t kFree = std::size_t{64} << 20, kPerByte = 8;
  copied_ += bytes;
  if (copied_ > kFree + kPerByte * program_.size()) fail("too many copies of its values");
}

PickleValue* PickleMachine::make(Kind kind) {
  // Files that torch writes take ten bytes for a value and more.
  constexpr std::size_t kFree = std::size_t{64} << 20, kPerByte = 24;
  if (values_.size() >= limits_.values) fail(fmt::format("more than {} values", limits_.values));
  if (values_.size() * sizeof(PickleValue) > kFree + kPerByte * program_.size())
    fail(fmt::format("more than {} values in {} bytes", values_.size(), program_.size()));
  PickleValue& value = values_.emplace_back();
  value.kind = kind;
  return &value;
}

PickleValue* PickleMachine::constant(Kind kind, std::int64_t number) {
  PickleValue*& value = constants_[{kind, number}];
  if (value == nullptr) {
    value = make(kind);
    value->integer = number;
  }
  return value;
}

PickleValue* PickleMachine::text(std::uint64_t length) {
  PickleValue* value = bytes(length);
  if (first_invalid_utf8(value->text) != std::string_view::npos) fail("a text is not UTF-8");
  value->kind = Kind::text;
  return value;
}

PickleValue* PickleMachine::bytes(std::uint64_t length) {
  if (length > limits_.text_bytes)
    fail(fmt::format("a text of {} bytes, more than {}", length, limits_.text_bytes));
  const auto part = take(length);
  PickleValue* value = make(Kind::bytes);
  value->text.assign(reinterpret_cast<const char*>(part.data()), part.size());
  return value;
}

PickleValue* PickleMachine::integer(std::int64_t number) {
  constexpr std::int64_t kCommon = 256;
  if (number >= 0 && number < kCommon) return constant(Kind::integer, number);
  PickleValue* value = make(Kind::integer);
  value->integer = number;
  return value;
}

PickleValue* PickleMachine::long_integer(std::uint64_t length) {
  const auto part = take(length);
  if (length > 8) {  // such as a random state; nothing that we use
    PickleValue* value = make(Kind::opaque);
    value->text = "int beyond 64 bits";
    return value;
  }
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < part.size(); ++i)
    number |= static_cast<std::uint64_t>(part[i]) << (8 * i);
  if (length > 0 && length < 8 && (static_cast<unsigned>(part.back()) & 0x80U) != 0)
    number |= ~std::uint64_t{0} << (8 * length);
  return integer(static_cast<std::int64_t>(number));
}

PickleValue* PickleMachine::real() {
  std::uint64_t bits = 0;
  for (const std::byte b : take(8)) bits = bits << 8 | static_cast<std::uint64_t>(b);
  PickleValue* value = make(Kind::real);
  value->real = std::bit_cast<double>(bits);
  return value;
}

void PickleMachine::push(PickleValue* value) {
  if (stack_.size() >= limits_.stack) fail(fmt::format("a stack of more than {}", limits_.stack));
  stack_.push_back(value);
}

PickleValue* PickleMachine::top() {
  if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size())) fail("an empty stack");
  return stack_.back();
}

PickleValue* PickleMachine::take_top() {
  PickleValue* value = top();
  stack_.pop_back();
  return value;
}

std::vector<PickleValue*> PickleMachine::pop_to_mark() {
  if (marks_.empty()) fail("no mark on the stack");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<PickleValue*> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

void PickleMachine::set_depth(PickleValue* of, const PickleValue* inside) {
  const auto found = depths_.find(inside);
  const std::size_t depth = found == depths_.end() ? 1 : found->second + 1;
  if (depth == 1 && inside->items.empty() && inside->kind != Kind::opaque) {
    return;  // a plain value
  }
  if (depth > limits_.depth) fail(fmt::format("values nested more than {} deep", limits_.depth));
  std::size_t& known = depths_[of];
  known = std::max(known, depth);
}

void PickleMachine::add(PickleValue* to, PickleValue* item) {
  set_depth(to, item);
  to->items.push_back(item);
}

PickleValue* PickleMachine::collect(Kind kind, std::vector<PickleValue*> items) {
  PickleValue* value = make(kind);
  value->items.reserve(items.size());
  for (PickleValue* item : items) add(value, item);
  return value;
}

void PickleMachine::extend(const std::vector<PickleValue*>& items, bool pairs) {
  PickleValue* to = top();
  const bool fits =
      to->kind == Kind::opaque ||
      (pairs ? to->kind == Kind::dict : to->kind == Kind::list || to->kind == Kind::set);
  if (!fits) fail(fmt::format("items for {}", kind_text(to->kind)));
  if (pairs && items.size() % 2 != 0) fail("a key without a value");
  for (PickleValue* item : items) add(to, item);
}

void PickleMachine::put(std::uint64_t index) {
  if (memo_.size() >= limits_.stack) fail(fmt::format("a memo of more than {}", limits_.stack));
  memo_[index] = top();
}

void PickleMachine::fetch(std::uint64_t index) {
  const auto found = memo_.find(index);
  if (found == memo_.end()) fail(fmt::format("no value {} in the memo", index));
  push(found->second);
}

PickleValue* PickleMachine::named(std::string_view module, std::string_view name) {
  spend(module.size() + name.size());
  PickleValue* value = make(Kind::opaque);
  value->text = fmt::format("{}.{}", module, name);
  return value;
}

void PickleMachine::name_on_stack() {
  const PickleValue* name = take_top();
  const PickleValue* module = take_top();
  if (name->kind != Kind::text || module->kind != Kind::text) fail("a name that is no text");
  push(named(module->text, name->text));
}

void PickleMachine::call_on_stack() {
  PickleValue* arguments = take_top();
  PickleValue* function = take_top();
  push(call(function, arguments));
}

PickleValue* PickleMachine::call(PickleValue* function, PickleValue* arguments) {
  if (arguments->kind != Kind::tuple)
    fail(fmt::format("a call with {}", kind_text(arguments->kind)));
  if (function->kind != Kind::opaque) fail(fmt::format("a call of {}", kind_text(function->kind)));
  if (function->arguments == nullptr) {
    if (PickleValue* known = call_known(function->text, arguments)) return known;
  }
  spend(function->text.size());
  PickleValue* value = make(Kind::opaque);
  value->text = function->text;
  value->arguments = arguments;
  set_depth(value, arguments);
  return value;
}

void PickleMachine::set_state() {
  PickleValue* state = take_top();
  PickleValue* value = top();
  // Attributes of dicts and tensors, such as the versions of modules, are nothing that we use.
  if (value->kind != Kind::opaque) return;
  set_depth(value, state);
  value->state = state;
}

bool PickleMachine::step(std::uint8_t opcode) {
  switch (static_cast<Op>(opcode)) {
    using enum Op;
    case stop:
      return false;
    case proto:
      if (const auto version = number(1); version < 2 || version > 5)
        fail(fmt::format("pickle protocol {}, 2 to 5 are read", version));
      break;
    case frame:
      (void)number(8);
      break;
    case mark:
      if (marks_.size() >= limits_.stack) fail(fmt::format("more than {} marks", limits_.stack));
      marks_.push_back(stack_.size());
      break;
    case pop:
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
      } else {
        (void)take_top();
      }
      break;
    case pop_mark:
      (void)pop_to_mark();
      break;
    case dup:
      push(top());
      break;
    case none:
      push(constant(Kind::none));
      break;
    case new_true:
    case new_false:
      push(constant(Kind::boolean, static_cast<Op>(opcode) == new_true ? 1 : 0));
      break;
    case bin_int:
      push(integer(static_cast<std::int32_t>(number(4))));
      break;
    case bin_int1:
      push(integer(static_cast<std::int64_t>(number(1))));
      break;
    case bin_int2:
      push(integer(static_cast<std::int64_t>(number(2))));
      break;
    case long1:
      push(long_integer(number(1)));
      break;
    case long4:
      push(long_integer(number(4)));
      break;
    case bin_float:
      push(real());
      break;
    case short_bin_string:
    case short_bin_bytes:
      push(bytes(number(1)));
      break;
    case bin_string:
    case bin_bytes:
      push(bytes(number(4)));
      break;
    case bin_bytes8:
    case byte_array8:
      push(bytes(number(8)));
      break;
    case short_bin_unicode:
      push(text(number(1)));
      break;
    case bin_unicode:
      push(text(number(4)));
      break;
    case bin_unicode8:
      push(text(number(8)));
      break;
    case empty_list:
      push(make(Kind::list));
      break;
    case empty_tuple:
      push(make(Kind::tuple));
      break;
    case empty_dict:
      push(make(Kind::dict));
      break;
    case empty_set:
      push(make(Kind::set));
      break;
    case list:
      push(collect(Kind::list, pop_to_mark()));
      break;
    case tuple:
      push(collect(Kind::tuple, pop_to_mark()));
      break;
    case frozen_set:
      push(collect(Kind::set, pop_to_mark()));
      break;
    case tuple1:
    case tuple2:
    case tuple3: {
      std::vector<PickleValue*> items(opcode - static_cast<std::uint8_t>(tuple1) + 1U);
      for (auto item = items.rbegin(); item != items.rend(); ++item) *item = take_top();
      push(collect(Kind::tuple, std::move(items)));
      break;
    }
    case dict: {
      const auto items = pop_to_mark();
      push(make(Kind::dict));
      extend(items, true);
      break;
    }
    case append: {
      PickleValue* item = take_top();
      extend({item}, false);
      break;
    }
    case appends:
    case add_items: {
      const auto items = pop_to_mark();
      extend(items, false);
      break;
    }
    case set_item: {
      PickleValue* value = take_top();
      PickleValue* key = take_top();
      extend({key, value}, true);
      break;
    }
    case set_items: {
      const auto items = pop_to_mark();
      extend(items, true);
      break;
    }
    case bin_get:
      fetch(number(1));
      break;
    case long_bin_get:
      fetch(number(4));
      break;
    case bin_put:
      put(number(1));
      break;
    case long_bin_put:
      put(number(4));
      break;
    case memoize:
      put(memo_.size());
      break;
    case global: {
      const std::string_view module = line();
      push(named(module, line()));
      break;
    }
    case stack_global:
      name_on_stack();
      break;
    case reduce:
      call_on_stack();
      break;
    case build:
      set_state();
      break;
    case new_obj:
      call_on_stack();
      break;
    case new_obj_ex:
      (void)take_top();  // keyword arguments; the class and the others say what it is
      call_on_stack();
      break;
    case bin_pers_id:
      push(persistent(*take_top()));
      break;
    default:
      fail(fmt::format("opcode 0x{:02x}, which protocols 2 to 5 do not write into files", opcode));
  }
  return true;
}

const PickleValue* PickleMachine::run() {
  while (true) {
    at_ = next_;
    if (next_ == program_.size()) fail("the pickle ends without STOP");
    if (!step(static_cast<std::uint8_t>(program_[next_++]))) break;
  }
  return take_top();
}

}  // namespace dstrain
