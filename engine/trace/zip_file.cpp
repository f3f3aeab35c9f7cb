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

constexpr std::uint32_t kLocalHeader = 0x04034B50, kCentralHeader = 0x02014B50, kEnd = 0x06054B50,
                        kEnd64 = 0x06064B50, kLocator64 = 0x07064B50;
constexpr std::uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                        kLocatorBytes = 20;
constexpr std::uint64_t kMostDirectory = std::uint64_t{64} << 20;
constexpr std::uint16_t kStored = 0, kDeflated = 8;
constexpr std::size_t kPackedBlock = std::size_t{64} << 10;
constexpr const char* kHint = "copy or pack it again, or unpack it and name the folder";

[[noreturn]] void fail_zip(const fs::path& zip, const std::string& what) {
  throw Error(ErrorKind::data, fmt::format("{}: {}", shown_path(zip), what), kHint);
}

/// A little-endian number.
std::uint64_t number_at(std::string_view bytes, std::size_t offset, std::size_t width) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < width; ++i)
    value |= std::uint64_t{static_cast<unsigned char>(bytes[offset + i])} << (8 * i);
  return value;
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

struct Directory {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// The record of the end may have a comment after it.
Directory find_directory(const UniqueFd& fd, const fs::path& zip) {
  const std::uint64_t size = size_of_file(fd);
  const std::uint64_t tail_bytes = std::min<std::uint64_t>(size, kEndBytes + 0xFFFF);
  const std::string tail = part_of(fd, zip, size - tail_bytes, tail_bytes);
  for (std::size_t i = tail.size() < kEndBytes ? 0 : tail.size() - kEndBytes + 1; i-- > 0;) {
    const std::string_view end = std::string_view(tail).substr(i);
    if (number_at(end, 0, 4) != kEnd || number_at(end, 20, 2) != end.size() - kEndBytes) continue;
    Directory found = {.offset = number_at(end, 16, 4), .bytes = number_at(end, 12, 4)};
    const std::uint64_t end_at = size - tail_bytes + i;
    if (end_at >= kLocatorBytes) {
      const std::string locator = part_of(fd, zip, end_at - kLocatorBytes, kLocatorBytes);
      if (number_at(locator, 0, 4) == kLocator64) {
        const std::uint64_t at = number_at(locator, 8, 8);
        if (at > size || size - at < kEnd64Bytes)
          fail_zip(zip, "its zip64 record lies outside of it");
        const std::string record = part_of(fd, zip, at, kEnd64Bytes);
        if (number_at(record, 0, 4) != kEnd64) fail_zip(zip, "it has no zip64 record");
        found = {.offset = number_at(record, 48, 8), .bytes = number_at(record, 40, 8)};
      }
    }
    if (found.offset > size || found.bytes > size - found.offset)
      fail_zip(zip, "its directory lies outside of it");
    if (found.bytes > kMostDirectory)
      fail_zip(zip, fmt::format("a directory of {} bytes", found.bytes));
    return found;
  }
  fail_zip(zip, "a ZIP without its directory: its end is cut off");
}

bool leads_out(const std::string& name) {
  return name.empty() || name.front() == '/' || name.find('\\') != std::string::npos ||
         name.find('\0') != std::string::npos ||
         ("/" + name + "/").find("/../") != std::string::npos;
}

/// Zip64 replaces the fields that are all ones, in this order.
void take_zip64(std::string_view extra, ZipMember& member, const fs::path& zip) {
  while (extra.size() >= 4) {
    const std::size_t length = number_at(extra, 2, 2);
    if (length > extra.size() - 4) fail_zip(zip, "an extra field of its directory is cut off");
    std::size_t next = 4;
    for (std::uint64_t* value : {&member.bytes, &member.packed, &member.header}) {
      if (number_at(extra, 0, 2) != 1 || *value != 0xFFFFFFFF) continue;
      if (next + 8 > length + 4) fail_zip(zip, "a zip64 field of its directory is cut off");
      *value = number_at(extra, next, 8);
      next += 8;
    }
    extra.remove_prefix(4 + length);
  }
}

}  // namespace

bool is_zip(const fs::path& file) {
  const UniqueFd fd = open_input_file(file);
  char first[4] = {};
  if (::pread(fd.get(), first, sizeof(first), 0) != sizeof(first)) return false;
  const std::uint64_t magic = number_at({first, sizeof(first)}, 0, 4);
  return magic == kLocalHeader || magic == kEnd;
}

std::vector<ZipMember> zip_members(const fs::path& zip) {
  const UniqueFd fd = open_input_file(zip);
  const Directory where = find_directory(fd, zip);
  const std::string directory = part_of(fd, zip, where.offset, where.bytes);
  std::vector<ZipMember> members;
  for (std::size_t at = 0; at < directory.size();) {
    const std::string_view entry = std::string_view(directory).substr(at);
    if (entry.size() < kCentralBytes || number_at(entry, 0, 4) != kCentralHeader)
      fail_zip(zip, "its directory is damaged");
    const std::size_t name_bytes = number_at(entry, 28, 2), extra_bytes = number_at(entry, 30, 2);
    const std::size_t whole = kCentralBytes + name_bytes + extra_bytes + number_at(entry, 32, 2);
    if (entry.size() < whole) fail_zip(zip, "its directory is cut off");
    ZipMember member = {.name = std::string(entry.substr(kCentralBytes, name_bytes)),
                        .method = static_cast<std::uint16_t>(number_at(entry, 10, 2)),
                        .encrypted = (number_at(entry, 8, 2) & 1U) != 0,
                        .header = number_at(entry, 42, 4),
                        .packed = number_at(entry, 20, 4),
                        .bytes = number_at(entry, 24, 4),
                        .crc = static_cast<std::uint32_t>(number_at(entry, 16, 4))};
    take_zip64(entry.substr(kCentralBytes + name_bytes, extra_bytes), member, zip);
    at += whole;
    if (!leads_out(member.name) && member.name.back() != '/') members.push_back(std::move(member));
  }
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
  if (member_.method != kStored && member_.method != kDeflated)
    fail_zip(place.zip, fmt::format("'{}' is packed by method {}; deflate is read, and what is not "
                                    "packed",
                                    name, member_.method));
  const std::uint64_t size = size_of_file(fd_);
  if (member_.header > size || size - member_.header < kLocalBytes)
    fail_zip(place.zip, fmt::format("'{}' begins outside of it", name));
  const std::string local = part_of(fd_, place.zip, member_.header, kLocalBytes);
  if (number_at(local, 0, 4) != kLocalHeader)
    fail_zip(place.zip, fmt::format("'{}' does not begin at byte {}", name, member_.header));
  const std::uint64_t data =
      member_.header + kLocalBytes + number_at(local, 26, 2) + number_at(local, 28, 2);
  (void)::lseek(fd_.get(), static_cast<off_t>(data), SEEK_SET);
  if (member_.method == kStored) return;
  block_.resize(kPackedBlock);
  DSTRAIN_CHECK(::inflateInit2(&zlib_, -MAX_WBITS) == Z_OK, "zlib cannot start");
}

ZipReader::~ZipReader() {
  if (!block_.empty()) ::inflateEnd(&zlib_);
}

/// Reads what is packed; 0 at its end, with a problem where the file ends before.
std::size_t ZipReader::load(char* to, std::size_t size) {
  const auto wanted = static_cast<std::size_t>(
      std::min<std::uint64_t>(size, member_.packed - packed_read_));
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
  if (member_.method == kStored) {
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
  crc_ = static_cast<std::uint32_t>(
      ::crc32_z(crc_, reinterpret_cast<const Bytef*>(to), count));
  if (count > 0 && problem_.empty()) return count;
  ended_ = true;
  if (problem_.empty() && bytes_read_ != member_.bytes)
    problem_ = fmt::format("{} bytes are there of {}", bytes_read_, member_.bytes);
  if (problem_.empty() && crc_ != member_.crc)
    problem_ = "its checksum is not that of the ZIP's directory";
  return count;
}

}  // namespace dstrain::trace
