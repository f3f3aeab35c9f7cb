#include "engine/data/text/hash.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "engine/base/error.h"

namespace dstrain::text {

struct Hasher::State {
  XXH3_state_t value;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->value); }
Hasher::~Hasher() = default;

void Hasher::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->value, bytes.data(), bytes.size());
}

std::uint64_t Hasher::hash64() const { return XXH3_64bits_digest(&state_->value); }

std::uint64_t hash64(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::uint64_t hash64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string hash128(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", std::uint64_t{hash.high64}, std::uint64_t{hash.low64});
}

KeyField key_field(std::string_view hash128) {
  KeyField field{};
  DSTRAIN_CHECK(hash128.size() == field.size(), "a key of another length");
  std::ranges::copy(hash128, field.begin());
  return field;
}

const char* wrong_magic(std::uint64_t magic, std::uint64_t wanted) {
  constexpr std::uint64_t kName = (std::uint64_t{1} << 56) - 1;  // without the version
  return (magic & kName) == (wanted & kName) ? "another version of dstrain wrote it"
                                             : "it is of another format";
}

}  // namespace dstrain::text
