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
#include "engine/base/zip_directory.h"

namespace dstrain {
namespace {

constexpr std::uint64_t kMaxDirectory = std::uint64_t{256} << 20;
constexpr std::uint64_t kMaxPickle = std::uint64_t{1} << 30;
constexpr std::size_t kMaxName = 4096;

constexpr const char* kDamaged =
    "the file is damaged or was not written by torch.save; copy it again";

std::string rewrite_hint(const std::filesystem::path& path) {
  return fmt::format(
      "write it anew where you trust it: python3 -c \"import torch; f = '{}'; "
      "torch.save(torch.load(f, map_location='cpu', weights_only=False), f)\"",
      path.string());
}

std::vector<std::byte> read_part(const PartFile& file, std::uint64_t offset, std::uint64_t bytes) {
  std::vector<std::byte> part(bytes);
  file.read(offset, part);
  return part;
}

std::string read_text(const PartFile& file, std::uint64_t offset, std::uint64_t bytes) {
  std::string part(bytes, '\0');
  file.read(offset, std::as_writable_bytes(std::span(part)));
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
  constexpr std::size_t kMax = std::size_t{1} << 30;  // the kernel takes no more at once
  const UniqueFd again = fd_ ? UniqueFd() : open_input_file(path_);
  const int fd = fd_ ? fd_.get() : again.get();
  while (!out.empty()) {
    const auto got =
        ::pread(fd, out.data(), std::min(out.size(), kMax), static_cast<off_t>(offset));
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
  const std::string first = read_text(*file_, begin_, 4);
  if (!begins_zip(first)) {
    if (first[0] == '\x80') {
      throw Error(ErrorKind::data,
                  fmt::format("{} is a torch file of before PyTorch 1.6, or a plain pickle",
                              path().string()),
                  rewrite_hint(path()));
    }
    fail("no zip begins there, as torch.save writes it");
  }
  read_records();
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
  if (pickle->second.bytes > kMaxPickle)
    fail(fmt::format("a data.pkl of {} bytes, more than {}", pickle->second.bytes, kMaxPickle));
  // One that is no pickle is refused before all of it is read.
  if (pickle->second.bytes < 2 ||
      read_part(*file_, pickle->second.offset, 1).front() != std::byte{0x80})
    fail("its data.pkl is no pickle");
  const auto program = read_part(*file_, pickle->second.offset, pickle->second.bytes);
  pickle_.emplace(program, path().string() + (whole ? "" : fmt::format(" from byte {}", begin_)) +
                               ": data.pkl");
}

std::string TorchZip::name() const {
  return path().string() + (begin_ == 0 ? "" : fmt::format(" from byte {}", begin_));
}

void TorchZip::fail(const std::string& what) const {
  throw Error(ErrorKind::data, fmt::format("{}: {}", name(), what), kDamaged);
}

void TorchZip::read_records() {
  const ZipSource zip = {.name = name(),
                         .hint = kDamaged,
                         .size = end_ - begin_,
                         .max_directory = kMaxDirectory,
                         .read = [this](std::uint64_t offset, std::uint64_t bytes) {
                           return read_text(*file_, begin_ + offset, bytes);
                         }};
  for (const ZipMember& member : zip_directory(zip)) {
    const std::string shown_name = shown(member.name);
    if (member.name.size() > kMaxName || leads_out_of_zip(member.name))
      fail(fmt::format("a record with the name '{}'", shown_name));
    if (member.encrypted) fail(fmt::format("record '{}' is encrypted", shown_name));
    if (member.method != kZipStored || member.packed != member.bytes) {
      throw Error(ErrorKind::data,
                  fmt::format("{}: record '{}' is compressed, torch.save only stores",
                              path().string(), shown_name),
                  rewrite_hint(path()));
    }
    if (member.name.ends_with('/')) continue;
    const std::uint64_t data = zip_data_offset(zip, member);
    // Records stand under the name of the archive, which is that of the file when it was written.
    const std::size_t slash = member.name.find('/');
    std::string inner = slash == std::string::npos ? member.name : member.name.substr(slash + 1);
    if (inner == "data.pkl" && slash != std::string::npos) archive_ = member.name.substr(0, slash);
    if (!records_.emplace(std::move(inner), Place{begin_ + data, member.bytes}).second)
      fail(fmt::format("two records '{}'", shown_name));
  }
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
