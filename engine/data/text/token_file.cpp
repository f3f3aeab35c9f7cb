#include "engine/data/text/token_file.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/units.h"
#include "engine/data/text/encoder.h"
#include "engine/data/text/file_stamp.h"
#include "engine/data/text/hash.h"
#include "engine/data/text/token_file_summary.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kMax = std::uint64_t{1} << 48;  ///< no size of ours is larger

/// Where a file's hashes were found right, for this stamp of it.
fs::path stamp_file_of(const fs::path& path) { return path.string() + ".checked"; }

}  // namespace

std::optional<TokenFile> TokenFile::open(const fs::path& path, const KeyField& key,
                                         std::string& problem) {
  problem.clear();
  if (!path_exists(path)) {
    problem = "there is none yet";
    return std::nullopt;
  }
  TokenFile file(path);
  problem = file.check(&key);
  if (!problem.empty()) return std::nullopt;
  return file;
}

std::optional<TokenFile> TokenFile::open_any(const fs::path& path, std::string& problem) {
  TokenFile file(path);
  problem = file.check(nullptr);
  if (!problem.empty()) return std::nullopt;
  return file;
}

std::string TokenFile::check(const KeyField* key) {
  const auto bytes = file_.bytes();
  if (bytes.size() < sizeof(header_)) return "it is cut off";
  std::memcpy(&header_, bytes.data(), sizeof(header_));
  const TokenFileHeader& h = header_;
  if (h.magic != TokenFileHeader::kMagic) return wrong_magic(h.magic, TokenFileHeader::kMagic);
  if (h.header_hash != hash64(bytes.first(offsetof(TokenFileHeader, header_hash))) ||
      (h.token_bytes != 2 && h.token_bytes != 4) || h.tokens > kMax || h.samples > kMax ||
      h.summary_bytes > kMax) {
    return "its header is damaged";
  }
  if (key != nullptr && h.key != *key) return kOtherKey;
  const std::uint64_t token_bytes = h.tokens * h.token_bytes;
  const std::uint64_t index_at = sizeof(h) + (token_bytes + 7) / 8 * 8;
  const std::uint64_t index_bytes = h.samples * sizeof(Sample);
  if (bytes.size() != index_at + index_bytes + h.summary_bytes) return "it is cut off";
  if (h.index_hash != hash64(bytes.subspan(index_at))) return "its index is damaged";
  index_ = {reinterpret_cast<const Sample*>(bytes.data() + index_at), h.samples};
  for (std::size_t i = 0; i < index_.size(); ++i) {
    if (index_[i].end > h.tokens || (i > 0 && index_[i].end < index_[i - 1].end))
      return "its index is damaged";
  }
  if (!parse_summary(file_.text().substr(index_at + index_bytes), summary_))
    return "its summary is damaged";

  const auto stamp = stamp_of(path_);
  if (stamp && read_stamped(stamp_file_of(path_), *stamp)) return "";
  if (h.tokens_hash != hash64(bytes.subspan(sizeof(h), token_bytes)))
    return "its tokens are damaged";
  file_.have_read(token_bytes);
  if (stamp) write_stamped(stamp_file_of(path_), *stamp, "ok");
  return "";
}

void TokenFile::copy(std::int64_t i, std::span<std::int64_t> tokens,
                     std::span<std::uint8_t> trained) const {
  DSTRAIN_CHECK(i >= 0 && i < size() && static_cast<std::int64_t>(tokens.size()) <= length(i),
                "no such tokens");
  const std::byte* from = file_.bytes().data() + sizeof(header_) + begin(i) * header_.token_bytes;
  file_.have_read(tokens.size() * header_.token_bytes);
  std::int64_t highest = 0;
  const auto convert = [&]<class Token>(Token) {
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      Token token{};
      std::memcpy(&token, from + t * sizeof(Token), sizeof(Token));
      if (summary_.marked) {
        if (!trained.empty()) trained[t] = (token & kTrainedMark) != 0;
        token = static_cast<Token>(token & ~kTrainedMark);
      }
      tokens[t] = token;
      highest = std::max(highest, tokens[t]);
    }
  };
  if (header_.token_bytes == 2) {
    convert(std::uint16_t{});
  } else {
    convert(std::uint32_t{});
  }
  if (highest <= std::int64_t{summary_.highest}) return;
  throw Error(ErrorKind::data,
              fmt::format("{}: sample {} holds token {}, above the highest of the file, {}",
                          path_.string(), i, highest, summary_.highest),
              "the file is damaged; remove it, and it is made again");
}

}  // namespace dstrain::text
