#include "engine/hub/archive.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/make_folder.h"
#include "engine/base/output_file.h"
#include "engine/base/printable.h"
#include "engine/hub/repository.h"

namespace dstrain::hub {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_archive(const std::string& archive, const std::string& what) {
  throw Error(ErrorKind::data, fmt::format("{}: {}", archive, what));
}

/// A text field, which ends at its first zero byte.
std::string_view field(std::string_view block, std::size_t at, std::size_t size) {
  const std::string_view text = block.substr(at, size);
  return text.substr(0, text.find('\0'));
}

/// An octal number between blanks; -1: none.
std::int64_t octal(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  if (text.empty() || text.size() > 12) return -1;
  std::int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '7') return -1;
    value = value * 8 + (c - '0');
  }
  return value;
}

/// Bytes behind a file's content, up to the next block.
std::size_t padding_of(std::int64_t size) {
  const auto over = static_cast<std::size_t>(size) % kTarBlock;
  return over == 0 ? 0 : kTarBlock - over;
}

/// The bytes of a gzip file, one after the other.
class GzipReader {
 public:
  explicit GzipReader(const fs::path& path) : name_(path.string()), file_(path) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(file_.text().data()));
    constexpr int kGzipAlone = 16 + MAX_WBITS;
    if (inflateInit2(&stream_, kGzipAlone) != Z_OK)
      throw Error(ErrorKind::internal, "zlib does not start");
  }
  ~GzipReader() { (void)inflateEnd(&stream_); }
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  /// All of `buffer`, or less at the end.
  std::size_t read(char* buffer, std::size_t size) {
    constexpr std::size_t kAtOnce = std::size_t{1} << 20;
    stream_.next_out = reinterpret_cast<Bytef*>(buffer);
    stream_.avail_out = static_cast<uInt>(size);
    while (stream_.avail_out > 0 && !ended_) {
      if (stream_.avail_in == 0) {
        const std::size_t some = std::min(kAtOnce, file_.text().size() - given_);
        if (some == 0) refuse_archive(name_, "it is cut off");
        stream_.avail_in = static_cast<uInt>(some);
        given_ += some;
        file_.have_read(some);
      }
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END)
        ended_ = true;
      else if (result != Z_OK)
        refuse_archive(name_, "it is no gzip file, or broken");
    }
    return size - stream_.avail_out;
  }

 private:
  std::string name_;
  MappedFile file_;
  z_stream stream_{};
  std::size_t given_ = 0;
  bool ended_ = false;
};

}  // namespace

std::optional<TarEntry> parse_tar_header(std::string_view block, const std::string& archive) {
  if (block.size() != kTarBlock) refuse_archive(archive, "it is cut off");
  if (block.find_first_not_of('\0') == std::string_view::npos) return std::nullopt;
  constexpr std::size_t kSumAt = 148, kSumSize = 8;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < block.size(); ++i)
    sum += i >= kSumAt && i < kSumAt + kSumSize ? ' ' : static_cast<unsigned char>(block[i]);
  if (octal(field(block, kSumAt, kSumSize)) != sum)
    refuse_archive(archive, "it is no tar file, or broken");
  TarEntry entry;
  const std::string_view prefix =
      block.substr(257, 6) == std::string_view("ustar\0", 6) ? field(block, 345, 155) : "";
  entry.path = fmt::format("{}{}{}", prefix, prefix.empty() ? "" : "/", field(block, 0, 100));
  const char type = block[156];
  if (entry.path.starts_with("./")) entry.path.erase(0, 2);
  entry.folder = type == '5';
  if (entry.folder)
    while (entry.path.ends_with('/')) entry.path.pop_back();
  entry.records = type == 'x' || type == 'g';
  if (type != '0' && type != '\0' && type != '5' && !entry.records)
    refuse_archive(archive, fmt::format("'{}' is neither a file nor a folder (type {})",
                                        shown(entry.path), shown(std::string_view(&type, 1))));
  entry.size = entry.folder ? 0 : octal(field(block, 124, 12));
  if (entry.size < 0) refuse_archive(archive, fmt::format("'{}' has no size", shown(entry.path)));
  if (entry.folder && (entry.path.empty() || entry.path == "."))
    entry.path = "";
  else if (!is_safe_path(entry.path))
    refuse_archive(archive, fmt::format("the path '{}'", shown(entry.path, 200)));
  return entry;
}

void unpack(const fs::path& archive, const fs::path& folder, std::int64_t max_bytes) {
  constexpr int kMaxEntries = 1'000'000;
  const std::string name = archive.string();
  GzipReader reader(archive);
  std::vector<char> buffer(std::size_t{1} << 20);
  std::int64_t total = 0;
  for (int entries = 0;; ++entries) {
    const std::size_t got = reader.read(buffer.data(), kTarBlock);
    const auto entry = parse_tar_header({buffer.data(), got}, name);
    if (!entry) {
      // The padding and the sum of the whole.
      if (reader.read(buffer.data(), buffer.size()) == buffer.size())
        refuse_archive(name, "it holds more than it should");
      return;
    }
    if (entries >= kMaxEntries || entry->size > max_bytes - total)
      refuse_archive(name, "it holds more than it should");
    total += entry->size;
    const std::size_t padding = padding_of(entry->size);
    if (entry->records) {
      constexpr std::int64_t kMaxRecords = std::int64_t{64} << 10;
      const auto want = static_cast<std::size_t>(entry->size) + padding;
      if (entry->size > kMaxRecords || reader.read(buffer.data(), want) != want)
        refuse_archive(name, "it is cut off, or broken");
      for (const char* key : {" path=", " size=", " linkpath=", " GNU.sparse."})
        if (std::string_view(buffer.data(), want).find(key) != std::string_view::npos)
          refuse_archive(name, fmt::format("a pax record says '{}'", key));
      continue;
    }
    const fs::path path = folder / entry->path;
    if (entry->folder) {
      make_folder(path);
      continue;
    }
    make_folder(path.parent_path());
    const UniqueFd file = open_output_file(path, {.old = OldContent::refuse});
    for (std::int64_t left = entry->size; left > 0;) {
      const auto want = static_cast<std::size_t>(
          std::min<std::int64_t>(left, static_cast<std::int64_t>(buffer.size())));
      if (reader.read(buffer.data(), want) != want) refuse_archive(name, "it is cut off");
      write_fully(file.get(), {buffer.data(), want}, path);
      left -= static_cast<std::int64_t>(want);
    }
    if (reader.read(buffer.data(), padding) != padding) refuse_archive(name, "it is cut off");
  }
}

}  // namespace dstrain::hub
