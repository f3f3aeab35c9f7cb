#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "engine/base/disk_error.h"
#include "engine/base/error.h"
#include "engine/data/text/hash.h"
#include "engine/data/text/token_file.h"
#include "engine/data/text/token_file_summary.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
constexpr const char* kTemporary = ".building-";

[[noreturn]] void fail(const fs::path& path) {
  throw Error(refusal_kind(std::error_code(errno, std::generic_category())),
              fmt::format("cannot write {}: {}", path.string(), std::strerror(errno)),
              "make room, or name another folder in data.cache");
}

}  // namespace

TokenFileWriter::TokenFileWriter(fs::path path, int token_bytes)
    : path_(std::move(path)), token_bytes_(token_bytes) {
  DSTRAIN_CHECK(token_bytes == 2 || token_bytes == 4, "tokens of 2 or 4 bytes");
  std::array<char, 128> host{};
  static_cast<void>(::gethostname(host.data(), host.size() - 1));
  // Host, process and object: without locks (some network file systems) several may write at once.
  temporary_ = fmt::format("{}{}{}-{}-{:x}", path_.string(), kTemporary, host.data(),
                           static_cast<long>(::getpid()), reinterpret_cast<std::uintptr_t>(this));
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(temporary_);
  const TokenFileHeader header;
  buffer_.reserve(kBufferBytes);
  write(std::as_bytes(std::span(&header, 1)));
}

TokenFileWriter::~TokenFileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void TokenFileWriter::write(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void TokenFileWriter::flush() {
  std::span<const std::byte> rest = buffer_;
  while (!rest.empty()) {
    const auto written = ::write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(temporary_);
    rest = rest.subspan(static_cast<std::size_t>(written));
  }
  buffer_.clear();
}

void TokenFileWriter::add(std::span<const std::uint32_t> tokens, TokenFile::Sample sample) {
  tokens_ += tokens.size();
  sample.end = tokens_;
  index_.push_back(sample);
  std::vector<std::uint16_t> narrow;
  std::span<const std::byte> bytes = std::as_bytes(tokens);
  if (token_bytes_ == 2) {
    narrow.reserve(tokens.size());
    for (const std::uint32_t token : tokens) {
      DSTRAIN_CHECK(token <= 0xffff, "a token that needs more than two bytes");
      narrow.push_back(static_cast<std::uint16_t>(token));
    }
    bytes = std::as_bytes(std::span(narrow));
  }
  tokens_hash_.add(bytes);
  write(bytes);
}

void TokenFileWriter::finish(const TokenFileSummary& summary) {
  const std::string text = format_summary(summary);
  TokenFileHeader header{.token_bytes = static_cast<std::uint64_t>(token_bytes_),
                         .samples = index_.size(),
                         .tokens = tokens_,
                         .summary_bytes = text.size(),
                         .tokens_hash = tokens_hash_.hash64()};
  constexpr std::array<std::byte, 8> kZeros{};
  write(std::span(kZeros).first((8 - tokens_ * header.token_bytes % 8) % 8));
  Hasher index;
  for (const auto part : {std::as_bytes(std::span(index_)), std::as_bytes(std::span(text))}) {
    index.add(part);
    write(part);
  }
  flush();
  header.index_hash = index.hash64();
  header.header_hash =
      hash64(std::as_bytes(std::span(&header, 1)).first(offsetof(TokenFileHeader, header_hash)));
  if (::pwrite(fd_, &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header)) ||
      ::fsync(fd_) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail(temporary_);
  }
  ::close(fd_);
  fd_ = -1;
  sync_directory(path_.parent_path());
}

void TokenFileWriter::remove_leftovers(const fs::path& path) {
  const std::string begin = path.filename().string() + kTemporary;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path.parent_path(), ignored)) {
    if (entry.path().filename().string().starts_with(begin)) fs::remove(entry.path(), ignored);
  }
}

}  // namespace dstrain::text
