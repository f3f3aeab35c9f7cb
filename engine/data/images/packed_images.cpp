#include "engine/data/images/packed_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/input_file.h"

namespace dstrain {
namespace {

constexpr std::uint64_t kMaxImages = std::uint64_t{1} << 40;
constexpr std::size_t kMaxProblems = 20;

std::span<const std::byte> before_hash(const PackHeader& header) {
  return std::as_bytes(std::span(&header, 1)).first(offsetof(PackHeader, header_hash));
}

}  // namespace

std::unique_ptr<PackedImages> PackedImages::open(const std::filesystem::path& path,
                                                 const text::KeyField& key, std::string& problem) {
  problem.clear();
  if (!path_exists(path)) {
    problem = "there is none yet";
    return nullptr;
  }
  std::unique_ptr<PackedImages> file(new PackedImages(path));
  problem = file->check(key);
  if (!problem.empty()) return nullptr;
  return file;
}

std::string PackedImages::check(const text::KeyField& key) {
  const auto bytes = file_.bytes();
  if (bytes.size() < sizeof(header_)) return "it is cut off";
  std::memcpy(&header_, bytes.data(), sizeof(header_));
  const PackHeader& h = header_;
  if (h.magic != PackHeader::kMagic) return text::wrong_magic(h.magic, PackHeader::kMagic);
  if (h.header_hash != text::hash64(before_hash(h)) || h.images > kMaxImages || h.frames == 0 ||
      h.images % h.frames != 0 || h.list_bytes > kMaxImages || h.index_at > bytes.size()) {
    return "its header is damaged";
  }
  if (h.key != key) return text::kOtherKey;
  const std::uint64_t index_bytes = h.images * sizeof(Entry);
  if (bytes.size() - h.index_at != index_bytes + h.list_bytes) return "it is cut off";
  if (h.index_at % alignof(Entry) != 0 || h.index_hash != text::hash64(bytes.subspan(h.index_at))) {
    return "its index is damaged";
  }
  index_ = {reinterpret_cast<const Entry*>(bytes.data() + h.index_at), h.images};
  const bool sound = std::ranges::all_of(index_, [&](const Entry& e) {
    const std::uint64_t pixels = std::uint64_t{e.width} * e.height;
    return e.offset <= h.index_at && e.bytes <= h.index_at - e.offset && e.label < h.classes &&
           pixels > 0 && pixels <= static_cast<std::uint64_t>(kMaxImagePixels) &&
           (h.raw == 0 || e.bytes == pixels * 3);
  });
  if (!sound) return "its index is damaged";
  std::string_view list = file_.text().substr(h.index_at + index_bytes);
  while (!list.empty()) {
    const std::string_view line = list.substr(0, list.find('\n'));
    problems_.emplace_back(line);
    list.remove_prefix(std::min(list.size(), line.size() + 1));
  }
  checked_ = std::vector<std::atomic<bool>>(h.images);
  return "";
}

const PackedImages::Entry& PackedImages::entry(std::int64_t sample, int frame) const {
  DSTRAIN_CHECK(
      sample >= 0 && sample < size() && frame >= 0 && std::cmp_less(frame, header_.frames),
      "no such image");
  return index_[static_cast<std::size_t>(sample) * header_.frames +
                static_cast<std::size_t>(frame)];
}

int PackedImages::label(std::int64_t sample) const {
  return static_cast<int>(entry(sample, 0).label);
}

std::span<const std::byte> PackedImages::checked_bytes(const Entry& e) const {
  const auto number = static_cast<std::size_t>(&e - index_.data());
  const auto bytes = file_.bytes().subspan(e.offset, e.bytes);
  file_.have_read(e.bytes);
  if (checked_[number].load(std::memory_order_relaxed)) return bytes;
  if (text::hash64(bytes) != e.hash) {
    throw Error(ErrorKind::data,
                fmt::format("{}: image {} is damaged: its hash is not the one in the index",
                            path_.string(), number),
                "the disk of data.cache may be failing; remove the file, and it is made again");
  }
  checked_[number].store(true, std::memory_order_relaxed);
  return bytes;
}

std::int64_t PackedImages::stored_bytes(std::int64_t sample, int frame) const {
  return std::ssize(checked_bytes(entry(sample, frame)));
}

std::optional<std::string_view> PackedImages::file(std::int64_t sample, int frame) const {
  if (header_.raw != 0) return {};
  const auto bytes = checked_bytes(entry(sample, frame));
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

ImagePart PackedImages::decode(std::int64_t sample, int frame, const DecodeRequest& request) const {
  const Entry& e = entry(sample, frame);
  const auto bytes = checked_bytes(e);
  if (header_.raw == 0) {
    return decode_part({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, request,
                       fmt::format("{}: image {}", path_.string(), &e - index_.data()));
  }
  return cut_part({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()},
                  static_cast<int>(e.width), static_cast<int>(e.height), 3, request);
}

PackWriter::PackWriter(const std::filesystem::path& path, const text::KeyField& key, bool raw,
                       int frames, int classes)
    : file_(path) {
  header_.key = key;
  header_.raw = raw ? 1 : 0;
  header_.frames = static_cast<std::uint64_t>(frames);
  header_.classes = static_cast<std::uint64_t>(classes);
  file_.write(std::as_bytes(std::span(&header_, 1)));
}

void PackWriter::add(std::string_view bytes, int width, int height, int label) {
  const auto data = std::as_bytes(std::span(bytes));
  index_.push_back({.offset = file_.size(),
                    .bytes = bytes.size(),
                    .width = static_cast<std::uint32_t>(width),
                    .height = static_cast<std::uint32_t>(height),
                    .label = static_cast<std::uint32_t>(label),
                    .hash = text::hash64(data)});
  file_.write(data);
}

void PackWriter::leave_out(const std::string& why) {
  if (header_.left_out++ < kMaxProblems) list_ += why + "\n";
}

void PackWriter::finish() {
  constexpr std::byte kZeros[alignof(PackedImages::Entry)] = {};
  const std::size_t over = file_.size() % sizeof(kZeros);
  file_.write(std::span(kZeros).first(over == 0 ? 0 : sizeof(kZeros) - over));
  header_.images = index_.size();
  header_.index_at = file_.size();
  header_.list_bytes = list_.size();
  text::Hasher hasher;
  for (const auto part : {std::as_bytes(std::span(index_)), std::as_bytes(std::span(list_))}) {
    hasher.add(part);
    file_.write(part);
  }
  header_.index_hash = hasher.hash64();
  header_.header_hash = text::hash64(before_hash(header_));
  file_.finish(std::as_bytes(std::span(&header_, 1)));
}

}  // namespace dstrain
