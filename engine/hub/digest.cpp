#include "engine/hub/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "engine/base/error.h"

namespace dstrain::hub {
namespace {

const EVP_MD* method_of(Hash hash) {
  switch (hash) {
    case Hash::sha256:
      return EVP_sha256();
    case Hash::sha1:
      return EVP_sha1();
    case Hash::md5:
      return EVP_md5();
  }
  return nullptr;
}

void require_digest(int result) {
  if (result != 1)
    throw Error(ErrorKind::internal, "OpenSSL of this machine refuses a digest",
                "SHA-1 and MD5 are refused by some rules of OpenSSL (openssl.cnf, FIPS)");
}

}  // namespace

const char* title(Hash hash) {
  return hash == Hash::sha256 ? "SHA-256" : hash == Hash::sha1 ? "SHA-1" : "MD5";
}

Digest::Digest(Hash hash) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  require_digest(EVP_DigestInit_ex(context_.get(), method_of(hash), nullptr));
}

Digest Digest::of_git_blob(std::int64_t size) {
  Digest digest(Hash::sha1);
  std::string head = fmt::format("blob {}", size);
  head.push_back('\0');
  digest.add(head);
  return digest;
}

void Digest::add(std::string_view bytes) {
  require_digest(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

std::string Digest::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned size = 0;
  require_digest(EVP_DigestFinal_ex(context_.get(), bytes.data(), &size));
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

}  // namespace dstrain::hub
