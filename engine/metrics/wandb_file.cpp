#include "engine/metrics/wandb_file.h"

#include <algorithm>
#include <array>

#include "engine/base/bytes.h"
#include "engine/base/protobuf_writer.h"

namespace dstrain {
namespace {

using namespace protobuf;

constexpr std::uint64_t kBlock = 32768;
constexpr std::uint64_t kChunkHeader = 7;
enum ChunkType : std::uint8_t { kWhole = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

// Fields of Record.
constexpr unsigned kHistory = 2, kSummary = 3, kStats = 7, kRun = 17, kExit = 18, kFinal = 20,
                   kHeader = 21, kFooter = 22;

/// CRC-32 of IEEE 802.3, as zlib's.
std::uint32_t crc32_ieee(std::string_view bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> all{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit)
        value = (value & 1) != 0 ? value >> 1 ^ 0xEDB88320u : value >> 1;
      all[i] = value;
    }
    return all;
  }();
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ crc >> 8;
  return ~crc;
}

std::string timestamp(double time_s) {
  std::string message;
  const auto seconds = static_cast<std::int64_t>(time_s);
  put_varint(message, 1, static_cast<std::uint64_t>(seconds));
  put_varint(message, 2, static_cast<std::uint64_t>((time_s - static_cast<double>(seconds)) * 1e9));
  return message;
}

/// Items under field `field`, with their values under `value_json` (16).
void put_items(std::string& message, unsigned field, const WandbFile::Items& items) {
  for (const auto& [key, json] : items) {
    std::string item;
    put_bytes(item, 1, key);
    put_bytes(item, 16, json);
    put_bytes(message, field, item);
  }
}

void put_text(std::string& message, unsigned field, const std::string& text) {
  if (!text.empty()) put_bytes(message, field, text);
}

}  // namespace

void WandbFile::open(const std::filesystem::path& path, const Run& run) {
  file_.open(path);
  std::string magic = ":W&B";
  put_little_endian(magic, std::uint16_t{0xBEE1});
  magic.push_back(0);  // version
  file_.append(magic);
  size_ = magic.size();
  std::string version;
  put_bytes(version, 1, "dstrain");
  std::string header;
  put_bytes(header, 1, version);
  record(kHeader, header);
  std::string config;
  put_items(config, 1, run.config);
  std::string message;
  put_text(message, 1, run.id);
  put_text(message, 2, run.entity);
  put_text(message, 3, run.project);
  put_bytes(message, 4, config);
  put_text(message, 6, run.group);
  put_text(message, 8, run.name);
  put_text(message, 13, run.host);
  put_bytes(message, 17, timestamp(run.start_time_s));
  if (run.resumes) put_varint(message, 24, 1);
  record(kRun, message);
}

void WandbFile::history(std::int64_t step, const Items& items) {
  std::string message;
  put_items(message, 1, items);
  std::string number;
  put_varint(number, 1, static_cast<std::uint64_t>(step));
  put_bytes(message, 2, number);
  record(kHistory, message);
}

void WandbFile::summary(const Items& items) {
  std::string message;
  put_items(message, 1, items);
  record(kSummary, message);
}

void WandbFile::stats(double time_s, const Items& items) {
  std::string message;
  put_bytes(message, 2, timestamp(time_s));
  put_items(message, 3, items);
  record(kStats, message);
}

void WandbFile::exit(int code, double runtime_s) {
  std::string message;
  put_varint(message, 1, static_cast<std::uint64_t>(code));
  put_varint(message, 2, static_cast<std::uint64_t>(runtime_s));
  record(kExit, message);
  record(kFinal, {});
  record(kFooter, {});
}

void WandbFile::record(unsigned field, std::string_view message) {
  std::string data;
  put_varint(data, 1, static_cast<std::uint64_t>(++records_));
  put_bytes(data, field, message);
  append(data);
}

/// In chunks that do not cross a block, all of a record in one write.
void WandbFile::append(std::string_view data) {
  std::string chunks;
  bool first = true;
  do {
    std::uint64_t left = kBlock - (size_ + chunks.size()) % kBlock;
    if (left < kChunkHeader) {
      chunks.append(left, '\0');
      left = kBlock;
    }
    const std::size_t length = std::min<std::size_t>(left - kChunkHeader, data.size());
    const bool last = length == data.size();
    const ChunkType type = first ? (last ? kWhole : kFirst) : (last ? kLast : kMiddle);
    std::string body(1, static_cast<char>(type));
    body.append(data.substr(0, length));
    put_little_endian(chunks, crc32_ieee(body));
    put_little_endian(chunks, static_cast<std::uint16_t>(length));
    chunks += body;
    data.remove_prefix(length);
    first = false;
  } while (!data.empty());
  file_.append(chunks);
  size_ += chunks.size();
}

}  // namespace dstrain
