#include "engine/weights/torch_zip.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/printable.h"

namespace dstrain {
namespace {

constexpr std::uint32_t kLocalHeader = 0x04034B50, kCentralHeader = 0x02014B50, kEnd = 0x06054B50,
                        kEnd64 = 0x06064B50, kLocator64 = 0x07064B50;
constexpr std::uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                        kLocatorBytes = 20;
constexpr std::uint64_t kMostDirectory = std::uint64_t{256} << 20;
constexpr std::uint64_t kMostPickle = std::uint64_t{1} << 30;
constexpr std::size_t kMostName = 4096;
constexpr std::uint16_t kStored = 0;

std::string rewrite_hint(const std::filesystem::path& path) {
  return fmt::format(
      "write it anew where you trust it: python3 -c \"import torch; f = '{}'; "
      "torch.save(torch.load(f, map_location='cpu', weights_only=False), f)\"",
      path.string());
}

/// Numbers of a zip: little endian.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> bytes) : bytes_(bytes) {}
  [[nodiscard]] std::uint64_t at(std::size_t offset, std::size_t width) const {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < width; ++i)
      value |= static_cast<std::uint64_t>(bytes_[offset + i]) << (8 * i);
    return value;
  }
  [[nodiscard]] std::uint16_t half(std::size_t offset) const {
    return static_cast<std::uint16_t>(at(offset, 2));
  }
  [[nodiscard]] std::uint32_t word(std::size_t offset) const {
    return static_cast<std::uint32_t>(at(offset, 4));
  }

 private:
  std::span<const std::byte> bytes_;
};

std::vector<std::byte> read_part(const PartFile& file, std::uint64_t offset, std::uint64_t bytes) {
  std::vector<std::byte> part(bytes);
  file.read(offset, part);
  return part;
}

}  // namespace

PartFile::PartFile(const std::filesystem::path& path) : path_(path), fd_(open_input_file(path)) {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) {
    throw Error(ErrorKind::data,
                fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)));
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void PartFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // the kernel takes no more at once
  const UniqueFd again = fd_ ? UniqueFd() : open_input_file(path_);
  const int fd = fd_ ? fd_.get() : again.get();
  while (!out.empty()) {
    const auto got =
        ::pread(fd, out.data(), std::min(out.size(), kMost), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw Error(ErrorKind::data,
                  fmt::format("cannot read {} at byte {}: {}", path_.string(), offset,
                              got < 0 ? std::strerror(errno) : "the file ends there"),
                  "the file was cut off; copy it again");
    }
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

void PartFile::will_read(std::uint64_t offset, std::uint64_t bytes) const {
  const UniqueFd again = fd_ ? UniqueFd() : open_input_file(path_);
  (void)::posix_fadvise(fd_ ? fd_.get() : again.get(), static_cast<off_t>(offset),
                        static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

TorchZip::TorchZip(const std::filesystem::path& path)
    : TorchZip(std::make_shared<PartFile>(path), 0, 0) {
  file_->close();
}

TorchZip::TorchZip(std::shared_ptr<PartFile> file, std::uint64_t offset, std::uint64_t bytes)
    : file_(std::move(file)), begin_(offset) {
  const bool whole = offset == 0 && bytes == 0;
  if (!whole && (offset > file_->size() || bytes > file_->size() - offset)) {
    throw Error(ErrorKind::data,
                fmt::format("{}: {} bytes from byte {} do not lie in its {} bytes", path().string(),
                            bytes, offset, file_->size()),
                "the file was cut off, or belongs to another checkpoint");
  }
  end_ = whole ? file_->size() : offset + bytes;
  if (end_ - begin_ < 4) fail(fmt::format("{} bytes are no torch file", end_ - begin_));
  const auto first = read_part(*file_, begin_, 4);
  if (Fields(first).word(0) != kLocalHeader) {
    if (first[0] == std::byte{0x80}) {
      throw Error(ErrorKind::data,
                  fmt::format("{} is a torch file of before PyTorch 1.6, or a plain pickle",
                              path().string()),
                  rewrite_hint(path()));
    }
    fail("no zip begins there, as torch.save writes it");
  }
  // The record of the end may have a comment after it.
  const std::uint64_t tail_bytes = std::min<std::uint64_t>(end_ - begin_, kEndBytes + 0xFFFF);
  const auto tail = read_part(*file_, end_ - tail_bytes, tail_bytes);
  if (tail.size() < kEndBytes) fail("its end is cut off");
  std::optional<std::size_t> found;
  for (std::size_t i = tail.size() - kEndBytes + 1; i-- > 0;) {
    const Fields fields(std::span<const std::byte>(tail).subspan(i));
    if (fields.word(0) == kEnd && fields.half(20) == tail.size() - i - kEndBytes) {
      found = i;
      break;
    }
  }
  if (!found) fail("it has no central directory: its end is cut off");
  const Fields fields(std::span<const std::byte>(tail).subspan(*found));
  const std::uint64_t end_record = end_ - tail_bytes + *found;
  std::uint64_t directory = fields.word(16), directory_bytes = fields.word(12);
  if (end_record - begin_ >= kLocatorBytes) {
    const auto locator = read_part(*file_, end_record - kLocatorBytes, kLocatorBytes);
    if (Fields(locator).word(0) == kLocator64) {
      const std::uint64_t at = Fields(locator).at(8, 8);
      if (at > end_ - begin_ || end_ - begin_ - at < kEnd64Bytes)
        fail("its zip64 record lies outside of it");
      const auto record = read_part(*file_, begin_ + at, kEnd64Bytes);
      if (Fields(record).word(0) != kEnd64) fail("it has no zip64 record");
      directory = Fields(record).at(48, 8);
      directory_bytes = Fields(record).at(40, 8);
    }
  }
  read_directory(directory, directory_bytes);
  if (records_.contains("constants.pkl") || records_.contains("version_torchscript")) {
    throw Error(ErrorKind::data, fmt::format("{} is a TorchScript program", path().string()),
                "save the model's state_dict() with torch.save");
  }
  if (const auto order = records_.find("byteorder"); order != records_.end()) {
    const auto text =
        read_part(*file_, order->second.offset, std::min<std::uint64_t>(order->second.bytes, 16));
    if (std::string_view(reinterpret_cast<const char*>(text.data()), text.size()) != "little")
      fail("it was written on a machine of another byte order");
  }
  const auto pickle = records_.find("data.pkl");
  if (pickle == records_.end()) fail("it has no data.pkl, so it is no torch file");
  if (pickle->second.bytes > kMostPickle)
    fail(fmt::format("a data.pkl of {} bytes, more than {}", pickle->second.bytes, kMostPickle));
  // One that is no pickle is refused before all of it is read.
  if (pickle->second.bytes < 2 ||
      read_part(*file_, pickle->second.offset, 1).front() != std::byte{0x80})
    fail("its data.pkl is no pickle");
  const auto program = read_part(*file_, pickle->second.offset, pickle->second.bytes);
  pickle_.emplace(program, path().string() + (whole ? "" : fmt::format(" from byte {}", begin_)) +
                               ": data.pkl");
}

void TorchZip::fail(const std::string& what) const {
  throw Error(ErrorKind::data,
              fmt::format("{}{}: {}", path().string(),
                          begin_ == 0 ? "" : fmt::format(" from byte {}", begin_), what),
              "the file is damaged or was not written by torch.save; copy it again");
}

void TorchZip::read_directory(std::uint64_t offset, std::uint64_t bytes) {
  if (offset > end_ - begin_ || bytes > end_ - begin_ - offset)
    fail("its central directory lies outside of it");
  if (bytes > kMostDirectory) fail(fmt::format("a central directory of {} bytes", bytes));
  const auto directory = read_part(*file_, begin_ + offset, bytes);
  for (std::size_t at = 0; at < directory.size();) {
    const auto rest = std::span(directory).subspan(at);
    if (rest.size() < kCentralBytes || Fields(rest).word(0) != kCentralHeader)
      fail("its central directory is damaged");
    const Fields entry(rest);
    const std::size_t name_bytes = entry.half(28), extra_bytes = entry.half(30),
                      comment_bytes = entry.half(32);
    const std::size_t whole = kCentralBytes + name_bytes + extra_bytes + comment_bytes;
    if (rest.size() < whole) fail("its central directory is cut off");
    const std::string name(reinterpret_cast<const char*>(rest.data()) + kCentralBytes, name_bytes);
    const std::uint16_t flags = entry.half(8);
    std::uint64_t packed = entry.word(20), unpacked = entry.word(24), header = entry.word(42);
    // Zip64 replaces the fields that are all ones, in this order.
    auto extra = rest.subspan(kCentralBytes + name_bytes, extra_bytes);
    while (extra.size() >= 4) {
      const Fields field(extra);
      const std::size_t length = field.half(2);
      if (length > extra.size() - 4) fail("an extra field of its central directory is cut off");
      if (field.half(0) == 1) {
        std::size_t next = 4;
        for (std::uint64_t* value : {&unpacked, &packed, &header}) {
          if (*value != 0xFFFFFFFF) continue;
          if (next + 8 > length + 4) fail("a zip64 field of its central directory is cut off");
          *value = field.at(next, 8);
          next += 8;
        }
      }
      extra = extra.subspan(4 + length);
    }
    const std::string shown_name = shown(name);
    if (name_bytes == 0 || name_bytes > kMostName || name.front() == '/' ||
        name.find('\\') != std::string::npos || name.find('\0') != std::string::npos ||
        ("/" + name + "/").find("/../") != std::string::npos)
      fail(fmt::format("a record with the name '{}'", shown_name));
    if ((flags & 1U) != 0) fail(fmt::format("record '{}' is encrypted", shown_name));
    if (entry.half(10) != kStored || packed != unpacked) {
      throw Error(ErrorKind::data,
                  fmt::format("{}: record '{}' is compressed, torch.save only stores",
                              path().string(), shown_name),
                  rewrite_hint(path()));
    }
    if (!name.ends_with('/')) add_record(name, header, unpacked);
    at += whole;
  }
}

void TorchZip::add_record(const std::string& name, std::uint64_t header, std::uint64_t bytes) {
  const std::uint64_t size = end_ - begin_;
  if (header > size || size - header < kLocalBytes)
    fail(fmt::format("record '{}' begins outside of it", shown(name)));
  const auto local = read_part(*file_, begin_ + header, kLocalBytes);
  const Fields fields(local);
  if (fields.word(0) != kLocalHeader)
    fail(fmt::format("record '{}' does not begin at byte {}", shown(name), header));
  const std::uint64_t data = header + kLocalBytes + fields.half(26) + fields.half(28);
  if (data > size || bytes > size - data) {
    fail(fmt::format("record '{}' of {} bytes from byte {} is cut off", shown(name), bytes, data));
  }
  // Records stand under the name of the archive, which is that of the file when it was written.
  const std::size_t slash = name.find('/');
  std::string inner = slash == std::string::npos ? name : name.substr(slash + 1);
  if (inner == "data.pkl" && slash != std::string::npos) archive_ = name.substr(0, slash);
  if (!records_.emplace(std::move(inner), Place{begin_ + data, bytes}).second)
    fail(fmt::format("two records '{}'", shown(name)));
}

TorchZip::Place TorchZip::storage(const PickleStorage& storage) const {
  const auto found = records_.find("data/" + storage.key);
  if (found == records_.end()) fail(fmt::format("no record 'data/{}'", shown(storage.key)));
  const auto needed = static_cast<std::uint64_t>(storage.elements);
  if (needed > found->second.bytes / static_cast<std::uint64_t>(dtype_width(storage.dtype))) {
    fail(fmt::format("record 'data/{}' has {} bytes, too few for {} elements of {}",
                     shown(storage.key), found->second.bytes, storage.elements, storage.dtype));
  }
  return found->second;
}

}  // namespace dstrain
