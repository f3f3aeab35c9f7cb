#include "engine/trace/output_file.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <string>

#include "engine/base/error.h"
#include "engine/base/output_file.h"
#include "engine/base/special_file.h"
#include "engine/base/unique_fd.h"

namespace dstrain::trace {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;
constexpr int kGzipLevel = 4;  // a fifth larger than the best one at a third of its time

}  // namespace

struct OutputFile::State {
  State() = default;
  ~State() {
    if (gzip) ::deflateEnd(&stream);
    ::ZSTD_freeCCtx(zstd);
    if (open && part != path) ::unlink(part.c_str());
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::filesystem::path path;
  std::filesystem::path part;
  UniqueFd fd;
  bool gzip = false;
  bool open = false;
  z_stream stream{};
  ZSTD_CCtx* zstd = nullptr;
  std::string buffer;
  std::string packed;
  std::uint64_t bytes = 0;

  void put(const char* from, std::size_t size) {
    write_fully(fd.get(), {from, size}, path);
    bytes += size;
  }
  void deflate_buffer(bool last) {
    stream.next_in = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_in = static_cast<uInt>(buffer.size());
    do {
      stream.next_out = reinterpret_cast<Bytef*>(packed.data());
      stream.avail_out = static_cast<uInt>(packed.size());
      const int result = ::deflate(&stream, last ? Z_FINISH : Z_NO_FLUSH);
      DSTRAIN_CHECK(result != Z_STREAM_ERROR, "zlib refuses a stream that it made");
      put(packed.data(), packed.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  }
  void zstd_buffer(bool last) {
    ZSTD_inBuffer in{.src = buffer.data(), .size = buffer.size(), .pos = 0};
    for (bool done = false; !done;) {
      ZSTD_outBuffer out{.dst = packed.data(), .size = packed.size(), .pos = 0};
      const std::size_t left =
          ::ZSTD_compressStream2(zstd, &out, &in, last ? ZSTD_e_end : ZSTD_e_continue);
      DSTRAIN_CHECK(::ZSTD_isError(left) == 0, "zstd refuses a stream that it made");
      put(packed.data(), out.pos);
      done = last ? left == 0 : in.pos == in.size;
    }
  }
  void flush(bool last) {
    if (gzip) {
      deflate_buffer(last);
    } else if (zstd != nullptr) {
      zstd_buffer(last);
    } else {
      put(buffer.data(), buffer.size());
    }
    buffer.clear();
  }
};

OutputFile::OutputFile(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path;
  const bool in_place = is_special_file(path);
  s.part = path.string() + (in_place ? "" : ".part");
  s.fd = in_place ? open_special_file(path)
                  : open_output_file(s.part, {.old = OldContent::replace, .name = path});
  s.open = true;
  const std::filesystem::path ending = path.extension();
  if (ending == ".gz") {
    s.packed.resize(kBuffer);
    s.gzip =
        ::deflateInit2(&s.stream, kGzipLevel, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK;
    DSTRAIN_CHECK(s.gzip, "zlib cannot start");
  } else if (ending == ".zst") {
    s.packed.resize(kBuffer);
    s.zstd = ::ZSTD_createCCtx();
    DSTRAIN_CHECK(s.zstd != nullptr, "zstd cannot start");
    (void)::ZSTD_CCtx_setParameter(s.zstd, ZSTD_c_checksumFlag, 1);
  }
}

OutputFile::~OutputFile() = default;

void OutputFile::write(std::string_view text) {
  state_->buffer.append(text);
  if (state_->buffer.size() >= kBuffer) state_->flush(/*last=*/false);
}

std::uint64_t OutputFile::close() {
  State& s = *state_;
  s.flush(/*last=*/true);
  s.fd.reset();
  if (s.part != s.path && ::rename(s.part.c_str(), s.path.c_str()) != 0)
    fail_output_file("rename", s.path, errno);
  s.open = false;
  return s.bytes;
}

}  // namespace dstrain::trace
