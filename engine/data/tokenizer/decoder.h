#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// From ids back to text (decoder `ByteLevel`).
class Decoder {
 public:
  /// `token` is written in byte characters (byte_alphabet.h), or as it is where one of them stands
  /// for no byte.
  void set(std::int32_t id, std::string_view token, bool special);

  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids,
                                   bool skip_special_tokens) const;

  /// Greatest id + 1.
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }

 private:
  struct Token {
    std::uint32_t offset = 0;
    std::uint32_t length = 0;
    bool special = false;
  };
  std::vector<Token> tokens_;  ///< by id; of no length where there is none
  std::string bytes_;
};

}  // namespace dstrain
