#include "engine/trace/zip_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/printable.h"

namespace dstrain::trace {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxDirectory = std::uint64_t{64} << 20;
constexpr std::size_t kPackedBlock = std::size_t{64} << 10;
constexpr const char* kHint = "copy or pack it again, or unpack it and name the folder";

[[noreturn]] void fail_zip(const fs::path& zip, const std::string& what) {
  throw Error(ErrorKind::data, fmt::format("{}: {}", shown_path(zip), what), kHint);
}

std::string part_of(const UniqueFd& fd, const fs::path& zip, std::uint64_t offset,
                    std::uint64_t bytes) {
  std::string part(bytes, '\0');
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got =
        ::pread(fd.get(), part.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      fail_zip(zip, fmt::format("cannot be read at byte {}: {}", offset + done,
                                got < 0 ? std::generic_category().message(errno)
                                        : std::string("the file ends there")));
    done += static_cast<std::size_t>(got);
  }
  return part;
}

std::uint64_t size_of_file(const UniqueFd& fd) {
  struct stat status {};
  return ::fstat(fd.get(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

ZipSource source_of(const UniqueFd& fd, const fs::path& zip) {
  return {.name = shown_path(zip),
          .hint = kHint,
          .size = size_of_file(fd),
          .max_directory = kMaxDirectory,
          .read = [&fd, zip](std::uint64_t offset, std::uint64_t bytes) {
            return part_of(fd, zip, offset, bytes);
          }};
}

}  // namespace

bool is_zip(const fs::path& file) {
  const UniqueFd fd = open_input_file(file);
  char first[4] = {};
  if (::pread(fd.get(), first, sizeof(first), 0) != sizeof(first)) return false;
  return begins_zip({first, sizeof(first)});
}

std::vector<ZipMember> zip_members(const fs::path& zip) {
  const UniqueFd fd = open_input_file(zip);
  std::vector<ZipMember> members = zip_directory(source_of(fd, zip));
  std::erase_if(members, [](const ZipMember& member) {
    return leads_out_of_zip(member.name) || member.name.back() == '/';
  });
  return members;
}

std::optional<ZipPlace> place_in_zip(const fs::path& path) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) return std::nullopt;
  const std::string whole = path.string();
  for (fs::path above = path.parent_path(); !above.empty() && above != above.parent_path();
       above = above.parent_path()) {
    if (fs::is_directory(above, ignored)) return std::nullopt;
    if (fs::is_regular_file(above, ignored))
      return ZipPlace{.zip = above, .member = whole.substr(above.string().size() + 1)};
  }
  return std::nullopt;
}

ZipMember zip_member(const ZipPlace& place) {
  for (ZipMember& member : zip_members(place.zip))
    if (member.name == place.member) return std::move(member);
  fail_zip(place.zip, fmt::format("no '{}' in it", shown(place.member, 200)));
}

ZipReader::ZipReader(const ZipPlace& place)
    : fd_(open_input_file(place.zip)), member_(zip_member(place)) {
  const std::string name = shown(place.member, 200);
  if (member_.encrypted) fail_zip(place.zip, fmt::format("'{}' is encrypted", name));
  if (member_.method != kZipStored && member_.method != kZipDeflated)
    fail_zip(place.zip, fmt::format("'{}' is packed by method {}; deflate is read, and what is not "
                                    "packed",
                                    name, member_.method));
  const std::uint64_t data = zip_data_offset(source_of(fd_, place.zip), member_);
  (void)::lseek(fd_.get(), static_cast<off_t>(data), SEEK_SET);
  if (member_.method == kZipStored) return;
  block_.resize(kPackedBlock);
  DSTRAIN_CHECK(::inflateInit2(&zlib_, -MAX_WBITS) == Z_OK, "zlib cannot start");
}

ZipReader::~ZipReader() {
  if (!block_.empty()) ::inflateEnd(&zlib_);
}

/// Reads what is packed; 0 at its end, with a problem where the file ends before.
std::size_t ZipReader::load(char* to, std::size_t size) {
  const auto wanted =
      static_cast<std::size_t>(std::min<std::uint64_t>(size, member_.packed - packed_read_));
  if (wanted == 0) return 0;
  ssize_t got = 0;
  do {
    got = ::read(fd_.get(), to, wanted);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) {
    problem_ = got < 0 ? std::generic_category().message(errno) : "the ZIP is cut off";
    return 0;
  }
  packed_read_ += static_cast<std::uint64_t>(got);
  return static_cast<std::size_t>(got);
}

std::size_t ZipReader::read(char* to, std::size_t size) {
  if (ended_ || size == 0) return 0;
  std::size_t count = 0;
  if (member_.method == kZipStored) {
    count = load(to, size);
  } else {
    zlib_.next_out = reinterpret_cast<Bytef*>(to);
    zlib_.avail_out = static_cast<uInt>(std::min<std::size_t>(size, std::size_t{1} << 30));
    const uInt room = zlib_.avail_out;
    int status = Z_OK;
    while (zlib_.avail_out == room && status == Z_OK) {
      if (zlib_.avail_in == 0) {
        zlib_.next_in = reinterpret_cast<Bytef*>(block_.data());
        zlib_.avail_in = static_cast<uInt>(load(block_.data(), block_.size()));
        if (zlib_.avail_in == 0) break;
      }
      status = ::inflate(&zlib_, Z_NO_FLUSH);
    }
    count = room - zlib_.avail_out;
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
      problem_ = fmt::format("the compressed data is broken ({})",
                             zlib_.msg != nullptr ? zlib_.msg : "zlib gives no reason");
  }
  bytes_read_ += count;
  crc_ = static_cast<std::uint32_t>(::crc32_z(crc_, reinterpret_cast<const Bytef*>(to), count));
  if (count > 0 && problem_.empty()) return count;
  ended_ = true;
  if (problem_.empty() && bytes_read_ != member_.bytes)
    problem_ = fmt::format("{} bytes are there of {}", bytes_read_, member_.bytes);
  if (problem_.empty() && crc_ != member_.crc)
    problem_ = "its checksum is not that of the ZIP's directory";
  return count;
}

}  // namespace dstrain::trace
