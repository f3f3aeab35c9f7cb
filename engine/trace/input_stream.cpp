#include "engine/trace/input_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/unique_fd.h"
#include "engine/trace/zip_file.h"

namespace dstrain::trace {
namespace {

constexpr std::size_t kFileBlock = std::size_t{256} << 10;
constexpr int kZlibWindow = 15 + 16;  // gzip's header and trailer
enum class Compression : std::uint8_t { none, gzip, zstd };

}  // namespace

struct InputStream::State {
  explicit State(const std::filesystem::path& file) : path(file) {}
  ~State() {
    if (inflating) ::inflateEnd(&zlib);
    ::ZSTD_freeDCtx(zstd);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::filesystem::path path;
  UniqueFd fd;
  std::optional<ZipReader> zip;  ///< in the place of `fd` where the path leads into a ZIP
  Compression compression = Compression::none;
  std::vector<char> block = std::vector<char>(kFileBlock);
  std::size_t begin = 0;  ///< of what is not used of the block
  std::size_t end = 0;
  std::uint64_t file_bytes = 0;
  bool file_ended = false;
  bool ended = false;
  bool inside = false;  ///< a gzip member or zstd frame has begun and not ended
  std::string problem;
  z_stream zlib{};
  bool inflating = false;
  ZSTD_DCtx* zstd = nullptr;

  void load();
  std::size_t load_from_file();
  void end_early(const std::string& what);
  std::size_t inflate_into(char* to, std::size_t size);
  std::size_t unzstd_into(char* to, std::size_t size);
};

std::size_t InputStream::State::load_from_file() {
  ssize_t count = 0;
  do {
    count = ::read(fd.get(), block.data(), block.size());
  } while (count < 0 && errno == EINTR);
  if (count < 0) {
    throw Error(ErrorKind::data,
                fmt::format("{}: cannot be read after byte {}: {}", path.string(), file_bytes,
                            std::generic_category().message(errno)),
                "a trace is a file in JSON, plain or compressed by gzip or zstd");
  }
  return static_cast<std::size_t>(count);
}

/// The next block of the file, when the last one is used up.
void InputStream::State::load() {
  if (begin < end || file_ended) return;
  begin = 0;
  end = zip ? zip->read(block.data(), block.size()) : load_from_file();
  file_bytes = zip ? zip->packed_bytes() : file_bytes + end;
  file_ended = end == 0;
  if (file_ended && zip) problem = zip->problem();
}

void InputStream::State::end_early(const std::string& what) {
  problem = fmt::format("{} at byte {} of the file", what, file_bytes - (end - begin));
  ended = true;
}

std::size_t InputStream::State::inflate_into(char* to, std::size_t size) {
  zlib.next_out = reinterpret_cast<Bytef*>(to);
  zlib.avail_out = static_cast<uInt>(size);
  while (zlib.avail_out == size && !ended) {
    load();
    if (begin == end) {
      if (inside) end_early("the compressed data is cut off");
      ended = true;
      break;
    }
    if (!inside && inflating && ::inflateReset(&zlib) != Z_OK) {
      end_early("zlib cannot go on");
      break;
    }
    inside = true;
    zlib.next_in = reinterpret_cast<Bytef*>(block.data() + begin);
    zlib.avail_in = static_cast<uInt>(end - begin);
    const int status = ::inflate(&zlib, Z_NO_FLUSH);
    begin = end - zlib.avail_in;
    if (status == Z_STREAM_END) inside = false;
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
      end_early(fmt::format("the compressed data is broken ({})",
                            zlib.msg != nullptr ? zlib.msg : "zlib gives no reason"));
    }
  }
  return size - zlib.avail_out;
}

std::size_t InputStream::State::unzstd_into(char* to, std::size_t size) {
  ZSTD_outBuffer out{.dst = to, .size = size, .pos = 0};
  while (out.pos == 0 && !ended) {
    load();
    // What is left inside the decoder comes out without more input.
    if (begin == end && !inside) {
      ended = true;
      break;
    }
    ZSTD_inBuffer in{.src = block.data() + begin, .size = end - begin, .pos = 0};
    const bool no_input = in.size == 0;
    const std::size_t hint = ::ZSTD_decompressStream(zstd, &out, &in);
    begin += in.pos;
    if (::ZSTD_isError(hint) != 0) {
      end_early(fmt::format("the compressed data is broken ({})", ::ZSTD_getErrorName(hint)));
      break;
    }
    inside = hint != 0;
    if (no_input && out.pos == 0 && inside) end_early("the compressed data is cut off");
  }
  return out.pos;
}

InputStream::InputStream(const std::filesystem::path& path)
    : state_(std::make_unique<State>(path)) {
  State& s = *state_;
  if (const auto place = place_in_zip(path)) {
    s.zip.emplace(*place);
  } else {
    s.fd = open_input_file(path);
    (void)::posix_fadvise(s.fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  s.load();
  const auto starts_with = [&](std::string_view bytes) {
    return std::string_view(s.block.data(), s.end).starts_with(bytes);
  };
  if (starts_with("PK\x03\x04")) {
    throw Error(ErrorKind::data, fmt::format("{}: a ZIP inside of a ZIP", path.string()),
                "unpack it and name what is in it");
  }
  if (starts_with("\x1f\x8b")) {
    s.compression = Compression::gzip;
    s.inflating = ::inflateInit2(&s.zlib, kZlibWindow) == Z_OK;
    DSTRAIN_CHECK(s.inflating, "zlib cannot start");
  } else if (starts_with("\x28\xb5\x2f\xfd")) {
    s.compression = Compression::zstd;
    s.zstd = ::ZSTD_createDCtx();
    DSTRAIN_CHECK(s.zstd != nullptr, "zstd cannot start");
  }
}

InputStream::~InputStream() = default;

std::size_t InputStream::read(char* to, std::size_t size) {
  State& s = *state_;
  if (s.ended || size == 0) return 0;
  switch (s.compression) {
    case Compression::gzip:
      return s.inflate_into(to, size);
    case Compression::zstd:
      return s.unzstd_into(to, size);
    case Compression::none:
      break;
  }
  s.load();
  const std::size_t count = std::min(size, s.end - s.begin);
  std::memcpy(to, s.block.data() + s.begin, count);
  s.begin += count;
  s.ended = count == 0;
  return count;
}

bool has_trace_file(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return true;
  const auto place = place_in_zip(path);
  return place && std::ranges::any_of(zip_members(place->zip), [&](const ZipMember& member) {
           return member.name == place->member;
         });
}

std::uint64_t stored_bytes(const std::filesystem::path& path) {
  if (const auto place = place_in_zip(path)) return zip_member(*place).packed;
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  return error ? 0 : bytes;
}

std::string read_text(const std::filesystem::path& path, std::size_t max) {
  InputStream stream(path);
  std::string text;
  std::array<char, 65536> block{};
  while (const std::size_t count = stream.read(block.data(), block.size())) {
    text.append(block.data(), count);
    if (text.size() > max) break;
  }
  const std::string what = text.size() > max          ? fmt::format("more than {} bytes", max)
                           : stream.problem().empty() ? ""
                                                      : stream.problem();
  if (!what.empty())
    throw Error(ErrorKind::data, fmt::format("{}: {}", path.string(), what), "copy the file again");
  return text;
}

const std::string& InputStream::problem() const { return state_->problem; }
std::uint64_t InputStream::file_bytes() const { return state_->file_bytes; }

}  // namespace dstrain::trace
