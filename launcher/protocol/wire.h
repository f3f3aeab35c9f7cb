#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

namespace dstrain::launcher {

/// Fields of one frame's payload in order: little-endian integers, texts with a length before them.
/// Texts are bytes, so that paths, arguments and environment arrive as they were.
class WireWriter {
 public:
  WireWriter& number(std::int64_t value);
  WireWriter& text(std::string_view value);
  WireWriter& texts(const std::vector<std::string>& values);
  [[nodiscard]] std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Error{internal}: the payload of a frame is not what its type promises.
[[noreturn]] void fail_malformed();

/// Reads what WireWriter wrote; Error{internal} on a payload that is too short, too long or names
/// an impossible count.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}
  [[nodiscard]] std::int64_t number();
  [[nodiscard]] int integer();
  [[nodiscard]] std::string text();
  [[nodiscard]] std::vector<std::string> texts();
  /// Every payload must be read to its last byte.
  void end() const;

 private:
  std::string_view take(std::uint64_t size);
  std::string_view bytes_;
};

/// A struct that lists its fields: `static auto fields(auto& m) { return std::tie(m.a, m.b); }`.
template <class M>
concept HasFields = requires(M& m) { M::fields(m); };

inline void put(WireWriter& writer, std::integral auto value) { writer.number(value); }
/// Seconds, to the millisecond.
inline void put(WireWriter& writer, double value) { writer.number(std::llround(value * 1000)); }
inline void put(WireWriter& writer, const std::string& value) { writer.text(value); }
inline void put(WireWriter& writer, const std::vector<std::string>& value) { writer.texts(value); }
template <class Enum>
  requires std::is_enum_v<Enum>
void put(WireWriter& writer, Enum value) {
  writer.number(static_cast<std::int64_t>(value));
}
template <HasFields M>
void put(WireWriter& writer, const M& message);
template <class Item>
void put(WireWriter& writer, const std::vector<Item>& items) {
  writer.number(static_cast<std::int64_t>(items.size()));
  for (const Item& item : items) put(writer, item);
}
template <HasFields M>
void put(WireWriter& writer, const M& message) {
  std::apply([&writer](const auto&... field) { (put(writer, field), ...); }, M::fields(message));
}

inline void get(WireReader& reader, int& value) { value = reader.integer(); }
inline void get(WireReader& reader, std::int64_t& value) { value = reader.number(); }
inline void get(WireReader& reader, bool& value) { value = reader.number() != 0; }
inline void get(WireReader& reader, char& value) { value = static_cast<char>(reader.integer()); }
inline void get(WireReader& reader, double& value) {
  value = static_cast<double>(reader.number()) / 1000;
}
inline void get(WireReader& reader, std::string& value) { value = reader.text(); }
inline void get(WireReader& reader, std::vector<std::string>& value) { value = reader.texts(); }
/// An enum whose values are 0 to `largest(Enum)`, which stands beside it.
template <class Enum>
  requires std::is_enum_v<Enum>
void get(WireReader& reader, Enum& value) {
  const std::int64_t number = reader.number();
  if (number < 0 || number > static_cast<std::int64_t>(largest(Enum{}))) fail_malformed();
  value = static_cast<Enum>(number);
}
template <HasFields M>
void get(WireReader& reader, M& message);
template <class Item>
void get(WireReader& reader, std::vector<Item>& items) {
  // A wrong count ends at the end of the payload.
  for (std::int64_t left = reader.number(); left > 0; --left) get(reader, items.emplace_back());
}
template <HasFields M>
void get(WireReader& reader, M& message) {
  std::apply([&reader](auto&... field) { (get(reader, field), ...); }, M::fields(message));
}

}  // namespace dstrain::launcher
