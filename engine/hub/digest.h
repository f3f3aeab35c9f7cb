#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace dstrain::hub {

enum class Hash { sha256, sha1, md5 };
[[nodiscard]] const char* title(Hash hash);  ///< "SHA-256"

/// A digest of bytes that come one part after the other.
class Digest {
 public:
  explicit Digest(Hash hash);
  /// git's digest of a file: SHA-1 of "blob SIZE", a zero byte and its content.
  [[nodiscard]] static Digest of_git_blob(std::int64_t size);

  void add(std::string_view bytes);
  /// In lower-case hexadecimal. Once only.
  [[nodiscard]] std::string hex();

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

}  // namespace dstrain::hub
