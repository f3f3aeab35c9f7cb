#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/weights/pickle.h"

namespace dstrain {

/// The stack machine behind Pickle.
class PickleMachine {
 public:
  PickleMachine(std::span<const std::byte> program, const std::string& where,
                const PickleLimits& limits, std::deque<PickleValue>& values)
      : program_(program), where_(where), limits_(limits), values_(values) {}

  /// The value that STOP finds on the stack.
  const PickleValue* run();
  [[nodiscard]] std::size_t size() const { return next_; }

 private:
  using Kind = PickleValue::Kind;

  [[noreturn]] void fail(const std::string& what) const;
  std::span<const std::byte> take(std::uint64_t count);
  /// Little endian, of `bytes` bytes.
  std::uint64_t number(int bytes);
  std::string_view line();
  /// A text of `length` bytes, which must be UTF-8.
  PickleValue* text(std::uint64_t length);
  PickleValue* bytes(std::uint64_t length);
  PickleValue* integer(std::int64_t value);
  PickleValue* long_integer(std::uint64_t length);
  PickleValue* real();

  PickleValue* make(Kind kind);
  /// The same value each time; nothing changes it.
  PickleValue* constant(Kind kind, std::int64_t number = 0);
  /// Values by reference cost a few bytes of the program, copies of them must not.
  void spend(std::size_t bytes);
  void push(PickleValue* value);
  PickleValue* take_top();
  PickleValue* top();
  /// What lies above the last mark, which goes.
  std::vector<PickleValue*> pop_to_mark();
  void add(PickleValue* to, PickleValue* item);
  void set_depth(PickleValue* of, const PickleValue* inside);

  void put(std::uint64_t index);
  void fetch(std::uint64_t index);
  PickleValue* collect(Kind kind, std::vector<PickleValue*> items);
  void extend(const std::vector<PickleValue*>& items, bool pairs);
  PickleValue* named(std::string_view module, std::string_view name);
  void name_on_stack();
  void call_on_stack();
  PickleValue* call(PickleValue* function, PickleValue* arguments);
  PickleValue* call_known(const std::string& function, PickleValue* arguments);
  PickleValue* rebuild_tensor(const PickleValue& arguments, bool typed);
  std::vector<std::int64_t> numbers_of(const PickleValue& value, const char* what) const;
  PickleValue* persistent(const PickleValue& id);
  void set_state();
  /// Runs one opcode; false for STOP.
  bool step(std::uint8_t opcode);

  std::span<const std::byte> program_;
  const std::string& where_;
  const PickleLimits& limits_;
  std::deque<PickleValue>& values_;
  std::size_t next_ = 0;    ///< byte to read
  std::size_t at_ = 0;      ///< of the present opcode
  std::size_t copied_ = 0;  ///< bytes
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;  ///< heights of the stack
  std::unordered_map<std::uint64_t, PickleValue*> memo_;
  std::map<std::pair<Kind, std::int64_t>, PickleValue*> constants_;
  std::unordered_map<const PickleValue*, std::size_t> depths_;  ///< of containers that hold some
};

}  // namespace dstrain
