#include "engine/base/tar_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"

namespace dstrain {
namespace {

constexpr std::int64_t kBlock = 512;
/// Headers of one member that only say its name: more is no name.
constexpr std::int64_t kMaxNameBytes = 1 << 20;

/// POSIX.1-1988 and GNU; texts end at a zero or at the end of their field.
struct Header {
  std::string_view block;

  [[nodiscard]] std::string_view text(std::size_t at, std::size_t size) const {
    const std::string_view field = block.substr(at, size);
    return field.substr(0, field.find('\0'));
  }
  /// Octal digits, or base 256 where the first bit is set; nothing for what is neither.
  [[nodiscard]] std::optional<std::int64_t> number(std::size_t at, std::size_t size) const {
    const std::string_view field = block.substr(at, size);
    std::int64_t value = 0;
    if ((static_cast<unsigned char>(field[0]) & 0x80) != 0) {
      for (std::size_t i = 0; i < size; ++i) {
        const auto byte = static_cast<unsigned char>(field[i]);
        if (value > INT64_MAX >> 8) return std::nullopt;
        value = value << 8 | (i == 0 ? byte & 0x7F : byte);
      }
      return value;
    }
    std::size_t i = field.find_first_not_of(' ');
    bool any = false;
    for (; i < size && field[i] >= '0' && field[i] <= '7'; ++i, any = true)
      value = value << 3 | (field[i] - '0');
    const bool ended = i >= size || field[i] == ' ' || field[i] == '\0';
    return any && ended ? std::optional(value) : std::nullopt;
  }
  [[nodiscard]] bool is_end() const {
    return std::ranges::all_of(block, [](char c) { return c == '\0'; });
  }
  /// The sum of all bytes, its own field as blanks.
  [[nodiscard]] bool is_sound() const {
    constexpr std::size_t kSumAt = 148, kSumSize = 8;
    const auto said = number(kSumAt, kSumSize);
    std::int64_t sum = 0, of_signed = 0;  // old programs added signed bytes
    for (std::size_t i = 0; i < block.size(); ++i) {
      const char byte = i >= kSumAt && i < kSumAt + kSumSize ? ' ' : block[i];
      sum += static_cast<unsigned char>(byte);
      of_signed += static_cast<signed char>(byte);
    }
    return said && (*said == sum || *said == of_signed);
  }
  [[nodiscard]] std::string name() const {
    const std::string_view own = text(0, 100);
    const bool posix = block.substr(257, 6) == std::string_view("ustar\0", 6);
    const std::string_view before = posix ? text(345, 155) : std::string_view();
    return before.empty() ? std::string(own) : fmt::format("{}/{}", before, own);
  }
  [[nodiscard]] std::optional<std::int64_t> size() const { return number(124, 12); }
  [[nodiscard]] char type() const { return block[156]; }
};

/// What a file of these first bytes is compressed with; null: with nothing known.
const char* compression_of(std::string_view bytes) {
  using namespace std::string_view_literals;
  if (bytes.starts_with("\x1f\x8b"sv)) return "gzip";
  if (bytes.starts_with("BZh"sv)) return "bzip2";
  if (bytes.starts_with("\xfd"
                        "7zXZ"sv))
    return "xz";
  if (bytes.starts_with("\x28\xb5\x2f\xfd"sv)) return "zstd";
  return nullptr;
}

/// What headers before a member say of it.
struct Extended {
  std::optional<std::string> name = {};
  std::optional<std::int64_t> size = {};
  bool sparse = false;
};

/// Records "LENGTH KEY=VALUE\n". False for what is none.
bool take_pax(std::string_view records, Extended& to) {
  while (!records.empty()) {
    std::size_t length = 0, digits = 0;
    while (digits < records.size() && records[digits] >= '0' && records[digits] <= '9' &&
           length < records.size() + 1)
      length = length * 10 + static_cast<std::size_t>(records[digits++] - '0');
    if (digits == 0 || digits >= records.size() || records[digits] != ' ' || length <= digits + 1 ||
        length > records.size() || records[length - 1] != '\n')
      return false;
    const std::string_view record = records.substr(digits + 1, length - digits - 2);
    records.remove_prefix(length);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") to.name = std::string(value);
    if (key.starts_with("GNU.sparse.")) to.sparse = true;
    if (key != "size") continue;
    std::int64_t size = 0;
    for (const char c : value) {
      if (c < '0' || c > '9' || size > INT64_MAX / 16) return false;
      size = size * 10 + (c - '0');
    }
    to.size = size;
  }
  return true;
}

/// Why a member of this type is no file that is read; null: it is one.
const char* refusal_of(char type, bool sparse) {
  if (sparse || type == 'S') return "is a sparse file";
  switch (type) {
    case '0':
    case '\0':
    case '7':
      return nullptr;
    case '1':
    case '2':
      return "is a link";
    case '3':
    case '4':
    case '6':
      return "is a device or a pipe";
    case 'V':
    case 'M':
    case 'N':
      return "belongs to a tar of several volumes or an old form of GNU's";
    default:
      return "is of an unknown type";
  }
}

}  // namespace

TarFile::TarFile(std::filesystem::path path)
    : path_(std::move(path)), file_(open_input_file(path_)) {}

std::string TarFile::read(std::int64_t offset, std::int64_t bytes) const {
  std::string content(static_cast<std::size_t>(bytes), '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const auto got = ::pread(file_.get(), content.data() + done, content.size() - done,
                             offset + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw Error(ErrorKind::data,
                  fmt::format("cannot read {}: {}", path_.string(), std::strerror(errno)));
    if (got == 0)
      throw Error(ErrorKind::data,
                  fmt::format("{}: it is cut off at byte {}", path_.string(),
                              offset + static_cast<std::int64_t>(done)),
                  "fetch it again");
    done += static_cast<std::size_t>(got);
  }
  return content;
}

std::vector<TarMember> TarFile::members() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) status.st_size = 0;
  const std::int64_t end = status.st_size;
  const auto fail = [&](std::int64_t at, const std::string& what, const char* hint) {
    throw Error(ErrorKind::data, fmt::format("{}: {} (byte {})", path_.string(), what, at), hint);
  };
  std::vector<TarMember> members;
  Extended extended;
  std::int64_t at = 0;
  const auto refuse_compressed = [&](std::string_view begin) {
    if (const char* how = compression_of(begin))
      fail(0, fmt::format("it is compressed by {}", how),
           "unpack it to .tar: a compressed one has no places to read at");
  };
  while (true) {
    if (at == 0 && end < kBlock) refuse_compressed(read(0, end));
    if (at + kBlock > end)
      fail(end, "it ends without a block of zeros, so it is cut off", "fetch it again");
    const std::string block = read(at, kBlock);
    const Header header{block};
    if (header.is_end()) return members;
    if (!header.is_sound()) {
      if (at == 0) refuse_compressed(block);
      fail(at, at == 0 ? "it is no tar" : "a header is damaged", "fetch it again");
    }
    const char type = header.type();
    const auto said = header.size();
    if (!said || *said < 0) fail(at, "the size in a header is no number", "fetch it again");
    const bool about_next = type == 'L' || type == 'K' || type == 'x' || type == 'g';
    const std::int64_t size = !about_next && extended.size ? *extended.size : *said;
    const std::int64_t begin = at + kBlock;
    const std::string name = extended.name.value_or(header.name());
    if (size > end - begin) fail(at, fmt::format("{} is cut off", name), "fetch it again");
    at = begin + (size + kBlock - 1) / kBlock * kBlock;
    if (about_next) {
      if (size > kMaxNameBytes) fail(begin, "a name in a header is too long", "fetch it again");
      const std::string content = read(begin, size);
      Extended global;
      if (type == 'L') extended.name = content.substr(0, content.find('\0'));
      if ((type == 'x' && !take_pax(content, extended)) ||
          (type == 'g' && !take_pax(content, global)))
        fail(begin, "an extended header is damaged", "fetch it again");
      if (global.name || global.size || global.sparse)
        fail(begin, "a global header gives all members one name, size or form",
             "write it anew with another program");
      continue;
    }
    const bool sparse = extended.sparse;
    extended = {};
    if (type == '5') continue;  // a folder
    if (const char* why = refusal_of(type, sparse))
      fail(begin - kBlock, fmt::format("{} {}", name, why),
           "write the tar anew, with the files themselves");
    members.push_back({name, begin, size});
  }
}

}  // namespace dstrain
