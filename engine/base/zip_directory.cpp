#include "engine/base/zip_directory.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/printable.h"

namespace dstrain {
namespace {

constexpr std::uint32_t kLocalHeader = 0x04034B50, kCentralHeader = 0x02014B50, kEnd = 0x06054B50,
                        kEnd64 = 0x06064B50, kLocator64 = 0x07064B50;
constexpr std::uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                        kLocatorBytes = 20;

/// A little-endian number.
std::uint64_t number_at(std::string_view bytes, std::size_t offset, std::size_t width) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < width; ++i)
    value |= std::uint64_t{static_cast<unsigned char>(bytes[offset + i])} << (8 * i);
  return value;
}

struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// The directory's place. The record of the end, which names it, may have a comment after it.
Extent find_directory(const ZipSource& zip) {
  const std::uint64_t tail_bytes = std::min<std::uint64_t>(zip.size, kEndBytes + 0xFFFF);
  const std::string tail = zip.read(zip.size - tail_bytes, tail_bytes);
  for (std::size_t i = tail.size() < kEndBytes ? 0 : tail.size() - kEndBytes + 1; i-- > 0;) {
    const std::string_view end = std::string_view(tail).substr(i);
    if (number_at(end, 0, 4) != kEnd || number_at(end, 20, 2) != end.size() - kEndBytes) continue;
    Extent found = {.offset = number_at(end, 16, 4), .bytes = number_at(end, 12, 4)};
    const std::uint64_t end_at = zip.size - tail_bytes + i;
    if (end_at >= kLocatorBytes) {
      const std::string locator = zip.read(end_at - kLocatorBytes, kLocatorBytes);
      if (number_at(locator, 0, 4) == kLocator64) {
        const std::uint64_t at = number_at(locator, 8, 8);
        if (at > zip.size || zip.size - at < kEnd64Bytes)
          zip.fail("its zip64 record lies outside of it");
        const std::string record = zip.read(at, kEnd64Bytes);
        if (number_at(record, 0, 4) != kEnd64) zip.fail("it has no zip64 record");
        found = {.offset = number_at(record, 48, 8), .bytes = number_at(record, 40, 8)};
      }
    }
    if (found.offset > zip.size || found.bytes > zip.size - found.offset)
      zip.fail("its directory lies outside of it");
    if (found.bytes > zip.max_directory)
      zip.fail(
          fmt::format("a directory of {} bytes, more than {}", found.bytes, zip.max_directory));
    return found;
  }
  zip.fail("a ZIP without its directory: its end is cut off");
}

/// Zip64 replaces the fields that are all ones, in this order.
void take_zip64(std::string_view extra, ZipMember& member, const ZipSource& zip) {
  while (extra.size() >= 4) {
    const std::size_t length = number_at(extra, 2, 2);
    if (length > extra.size() - 4) zip.fail("an extra field of its directory is cut off");
    std::size_t next = 4;
    for (std::uint64_t* value : {&member.bytes, &member.packed, &member.header}) {
      if (number_at(extra, 0, 2) != 1 || *value != 0xFFFFFFFF) continue;
      if (next + 8 > length + 4) zip.fail("a zip64 field of its directory is cut off");
      *value = number_at(extra, next, 8);
      next += 8;
    }
    extra.remove_prefix(4 + length);
  }
}

}  // namespace

void ZipSource::fail(const std::string& what) const {
  throw Error(ErrorKind::data, fmt::format("{}: {}", name, what), hint);
}

bool begins_zip(std::string_view first) {
  if (first.size() < 4) return false;
  const std::uint64_t magic = number_at(first, 0, 4);
  return magic == kLocalHeader || magic == kEnd;
}

std::vector<ZipMember> zip_directory(const ZipSource& zip) {
  const Extent where = find_directory(zip);
  const std::string directory = zip.read(where.offset, where.bytes);
  std::vector<ZipMember> members;
  for (std::size_t at = 0; at < directory.size();) {
    const std::string_view entry = std::string_view(directory).substr(at);
    if (entry.size() < kCentralBytes || number_at(entry, 0, 4) != kCentralHeader)
      zip.fail("its directory is damaged");
    const std::size_t name_bytes = number_at(entry, 28, 2), extra_bytes = number_at(entry, 30, 2);
    const std::size_t whole = kCentralBytes + name_bytes + extra_bytes + number_at(entry, 32, 2);
    if (entry.size() < whole) zip.fail("its directory is cut off");
    ZipMember member = {.name = std::string(entry.substr(kCentralBytes, name_bytes)),
                        .method = static_cast<std::uint16_t>(number_at(entry, 10, 2)),
                        .encrypted = (number_at(entry, 8, 2) & 1U) != 0,
                        .header = number_at(entry, 42, 4),
                        .packed = number_at(entry, 20, 4),
                        .bytes = number_at(entry, 24, 4),
                        .crc = static_cast<std::uint32_t>(number_at(entry, 16, 4))};
    take_zip64(entry.substr(kCentralBytes + name_bytes, extra_bytes), member, zip);
    members.push_back(std::move(member));
    at += whole;
  }
  return members;
}

std::uint64_t zip_data_offset(const ZipSource& zip, const ZipMember& member) {
  const std::string name = shown(member.name, 200);
  if (member.header > zip.size || zip.size - member.header < kLocalBytes)
    zip.fail(fmt::format("'{}' begins outside of it", name));
  const std::string local = zip.read(member.header, kLocalBytes);
  if (number_at(local, 0, 4) != kLocalHeader)
    zip.fail(fmt::format("'{}' does not begin at byte {}", name, member.header));
  const std::uint64_t data =
      member.header + kLocalBytes + number_at(local, 26, 2) + number_at(local, 28, 2);
  if (data > zip.size || member.packed > zip.size - data)
    zip.fail(fmt::format("'{}' of {} bytes from byte {} is cut off", name, member.packed, data));
  return data;
}

bool leads_out_of_zip(const std::string& name) {
  return name.empty() || name.front() == '/' || name.find('\\') != std::string::npos ||
         name.find('\0') != std::string::npos ||
         ("/" + name + "/").find("/../") != std::string::npos;
}

}  // namespace dstrain
