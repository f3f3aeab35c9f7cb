#include "engine/weights/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/json.h"

namespace dstrain {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kLongestRule = 500;  ///< a name of the file may be as long as it
constexpr const char* kHint = "the file is damaged or not safetensors; fetch or export it again";

[[noreturn]] void fail(const std::string& name, const std::string& rule) {
  throw Error(ErrorKind::data, fmt::format("{}: {}", name, shown_text(rule, kLongestRule)), kHint);
}

/// Bits per element of every dtype the format knows.
std::optional<std::uint64_t> dtype_bits(std::string_view dtype) {
  constexpr auto kBits = std::to_array<std::pair<std::string_view, std::uint64_t>>({
      {"BOOL", 8},    {"U8", 8},          {"I8", 8},   {"F8_E4M3", 8},     {"F8_E5M2", 8},
      {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F4", 4},   {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6},
      {"F6_E3M2", 6}, {"U16", 16},        {"I16", 16}, {"F16", 16},        {"BF16", 16},
      {"U32", 32},    {"I32", 32},        {"F32", 32}, {"U64", 64},        {"I64", 64},
      {"F64", 64},    {"C64", 64},
  });
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) return bits;
  }
  return std::nullopt;
}

/// Walks {"__metadata__": {text: text}, tensor: {"dtype": text, "shape": [n...], "data_offsets":
/// [begin, end]}} and refuses everything else as soon as it appears, so that nesting and memory
/// stay bounded.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& file, SafetensorsHeader& header) : file_(file), header_(header) {}

  bool null() override { refuse("null"); }
  bool boolean(bool) override { refuse("a boolean"); }
  bool number_integer(number_integer_t value) override {
    refuse(fmt::format("the negative number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    refuse(fmt::format("the number {}", text));
  }
  bool binary(binary_t&) override { refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (where_ != Where::array) refuse(fmt::format("the number {}", value));
    if (numbers_.size() == kMaxDims)
      fail(file_,
           fmt::format("tensor '{}': '{}' has more than {} numbers", tensor_, field_, kMaxDims));
    numbers_.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (where_ == Where::metadata) {
      header_.metadata[field_] = value;
    } else if (where_ == Where::tensor && field_ == "dtype") {
      entry_.dtype = value;
    } else {
      refuse("a string");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (where_ == Where::start) {
      where_ = Where::top;
    } else if (where_ == Where::top) {
      where_ = tensor_ == "__metadata__" ? Where::metadata : Where::tensor;
      fields_.clear();
      entry_ = {};
    } else {
      refuse("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    if (where_ == Where::top) {
      const bool known = value == "__metadata__" ? std::exchange(seen_metadata_, true)
                                                 : header_.entries.contains(value);
      if (known) fail(file_, fmt::format("'{}' appears twice in the header", value));
      tensor_ = value;
      return true;
    }
    if (where_ == Where::metadata) {
      if (header_.metadata.contains(value))
        fail(file_, fmt::format("__metadata__: '{}' appears twice", value));
    } else {
      if (std::find(fields_.begin(), fields_.end(), value) != fields_.end()) {
        fail(file_, fmt::format("tensor '{}': '{}' appears twice", tensor_, value));
      }
      if (value != "dtype" && value != "shape" && value != "data_offsets") {
        fail(file_, fmt::format("tensor '{}': unknown field '{}'", tensor_, value));
      }
      fields_.push_back(value);
    }
    field_ = value;
    return true;
  }

  bool end_object() override {
    if (where_ == Where::tensor) {
      if (fields_.size() != 3)
        fail(file_, fmt::format("tensor '{}': needs dtype, shape and data_offsets", tensor_));
      header_.entries.emplace(tensor_, std::move(entry_));
    }
    where_ = where_ == Where::top ? Where::end : Where::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (where_ != Where::tensor || field_ == "dtype") refuse("a list");
    where_ = Where::array;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    where_ = Where::tensor;
    if (field_ == "shape") {
      for (const std::uint64_t size : numbers_) {
        if (size > kMaxElements)
          fail(file_, fmt::format("tensor '{}': a dim of {} elements", tensor_, size));
        entry_.shape.push_back(static_cast<std::int64_t>(size));
      }
    } else {
      if (numbers_.size() != 2) {
        fail(file_, fmt::format("tensor '{}': data_offsets has {} numbers, not 2", tensor_,
                                numbers_.size()));
      }
      entry_.begin = numbers_[0];
      entry_.end = numbers_[1];
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    fail(file_, fmt::format("the header is not JSON at byte {}", 8 + position));
  }

 private:
  enum class Where { start, top, metadata, tensor, array, end };
  static constexpr std::size_t kMaxDims = 64;
  static constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 62;

  [[noreturn]] void refuse(const std::string& found) const {
    if (where_ == Where::start) fail(file_, fmt::format("the header is {}, not an object", found));
    if (where_ == Where::top) fail(file_, fmt::format("'{}' is {}, not an object", tensor_, found));
    if (where_ == Where::metadata)
      fail(file_, fmt::format("__metadata__: '{}' is {}, not a string", field_, found));
    const char* inside = where_ == Where::array ? "holds" : "is";
    fail(file_, fmt::format("tensor '{}': '{}' {} {}", tensor_, field_, inside, found));
  }

  const std::string& file_;
  SafetensorsHeader& header_;
  Where where_ = Where::start;
  bool seen_metadata_ = false;
  std::string tensor_;
  std::string field_;
  std::vector<std::string> fields_;
  std::vector<std::uint64_t> numbers_;
  SafetensorsFile::Entry entry_;
};

/// Shape x dtype must be the length.
void check_length(const std::string& name, const std::string& tensor,
                  const SafetensorsFile::Entry& entry) {
  const std::optional<std::uint64_t> bits = dtype_bits(entry.dtype);
  if (!bits) fail(name, fmt::format("tensor '{}': unknown dtype '{}'", tensor, entry.dtype));
  std::uint64_t total_bits = *bits;
  bool overflow = false;
  for (const std::int64_t size : entry.shape) {
    overflow |= __builtin_mul_overflow(total_bits, static_cast<std::uint64_t>(size), &total_bits);
  }
  if (overflow)
    fail(name,
         fmt::format("tensor '{}': shape [{}] overflows", tensor, fmt::join(entry.shape, ", ")));
  const std::uint64_t length = entry.end - entry.begin;
  if (total_bits % 8 != 0 || total_bits / 8 != length) {
    fail(name, fmt::format("tensor '{}': {} x [{}] is {} bits, its data {} bytes", tensor,
                           entry.dtype, fmt::join(entry.shape, ", "), total_bits, length));
  }
}

/// Tensors must follow each other from 0 to the end of the file, without holes or overlap.
void check_layout(const std::string& name, const SafetensorsHeader& header,
                  std::uint64_t data_bytes) {
  using Item = const std::pair<const std::string, SafetensorsFile::Entry>*;
  std::vector<Item> items;
  for (const auto& item : header.entries) items.push_back(&item);
  std::sort(items.begin(), items.end(), [](Item a, Item b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::uint64_t position = 0;
  for (const Item item : items) {
    const auto& [tensor, entry] = *item;
    if (entry.end < entry.begin || entry.end > data_bytes) {
      fail(name,
           fmt::format("tensor '{}': data_offsets [{}, {}] do not lie in the {} bytes of data",
                       tensor, entry.begin, entry.end, data_bytes));
    }
    if (entry.begin != position) {
      fail(name, fmt::format(
                     "tensor '{}': begins at byte {} of the data, {} ({})", tensor, entry.begin,
                     entry.begin < position ? "inside another tensor" : "after a hole", position));
    }
    check_length(name, tensor, entry);
    position = entry.end;
  }
  if (position != data_bytes) {
    fail(name, fmt::format("{} bytes after the last tensor", data_bytes - position));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors(std::string_view file, const std::string& name) {
  static_assert(std::endian::native == std::endian::little,
                "the format is little-endian, read as it lies");
  if (file.size() < 8)
    fail(name, fmt::format("{} bytes are too few for a safetensors file", file.size()));
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes) {
    fail(name, fmt::format("a header of {} bytes, more than the {} allowed", header_bytes,
                           kMaxHeaderBytes));
  }
  if (header_bytes > file.size() - 8) {
    fail(name, fmt::format("a header of {} bytes, but the file ends {} bytes after its length",
                           header_bytes, file.size() - 8));
  }
  const std::string_view text = file.substr(8, header_bytes);
  if (text.empty() || text.front() != '{') fail(name, "the header does not begin with '{'");
  // The JSON library takes a zero byte for the end of its input.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) {
    fail(name, fmt::format("the header is not JSON at byte {}", 8 + zero));
  }

  SafetensorsHeader header;
  header.data_begin = 8 + header_bytes;
  HeaderReader reader(name, header);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  check_layout(name, header, file.size() - header.data_begin);
  return header;
}

}  // namespace dstrain
