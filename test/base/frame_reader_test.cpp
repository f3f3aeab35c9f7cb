#include "engine/base/frame_reader.h"

#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "test/support/catch.h"

using namespace dstrain;

namespace {

/// A header of the length and one mark.
std::string frame(char mark, const std::string& payload) {
  std::string bytes;
  put_little_endian(bytes, static_cast<std::uint32_t>(payload.size()));
  return bytes + mark + payload;
}

}  // namespace

TEST_CASE("integers lie little-endian and come back", "[base][bytes]") {
  std::string bytes;
  put_little_endian(bytes, std::uint8_t{0xfe});
  put_little_endian(bytes, std::uint32_t{0x01020304});
  put_little_endian(bytes, std::int64_t{-2});
  CHECK(bytes == "\xfe\x04\x03\x02\x01\xfe" + std::string(7, '\xff'));
  std::string_view rest = bytes;
  std::uint8_t small = 0;
  std::uint32_t middle = 0;
  std::int64_t large = 0;
  CHECK(take_little_endian(rest, small));
  CHECK(take_little_endian(rest, middle));
  CHECK(take_little_endian(rest, large));
  CHECK(small == 0xfe);
  CHECK(middle == 0x01020304);
  CHECK(large == -2);
  CHECK_FALSE(take_little_endian(rest, small));
  CHECK(small == 0xfe);
}

TEST_CASE("frames do not depend on how the stream is cut", "[base][frames]") {
  const std::string stream = frame('a', "first") + frame('b', "") + frame('c', {"x\0y", 3});
  const std::size_t piece = GENERATE(1U, 2U, 3U, 5U, 8U, 100U);
  FrameReader reader(5, 100);
  std::vector<std::string> found;
  for (std::size_t at = 0; at < stream.size(); at += piece) {
    reader.append(std::string_view(stream).substr(at, piece));
    for (; reader.state() == FrameReader::State::complete; reader.pop())
      found.push_back(reader.header().back() + std::string(reader.front()));
    reader.compact();
  }
  CHECK(found == std::vector<std::string>{"afirst", "b", {"cx\0y", 4}});
  CHECK(reader.state() == FrameReader::State::incomplete);
  CHECK(reader.header().empty());
}

TEST_CASE("a frame above the limit is known by its length alone", "[base][frames]") {
  FrameReader reader(5, 100);
  reader.append(frame('a', std::string(100, 'x')));
  CHECK(reader.state() == FrameReader::State::complete);
  reader.pop();
  reader.append(frame('a', std::string(101, 'x')).substr(0, 3));
  CHECK(reader.state() == FrameReader::State::incomplete);
  reader.append(std::string(1, '\0'));
  CHECK(reader.state() == FrameReader::State::too_long);
}
