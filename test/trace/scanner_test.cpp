#include "engine/trace/scanner.h"

#include <zstd.h>

#include <nlohmann/json.hpp>
#include <random>

#include "engine/base/error.h"
#include "engine/trace/output_file.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"
#include "test/trace/made_trace.h"

using namespace dstrain;
using namespace dstrain::trace;
using dstrain::test::MadeTrace;
using dstrain::test::spit;
using dstrain::test::TempDir;

namespace {

struct Read {
  std::vector<std::string> objects;
  std::vector<std::string> names;
  std::vector<std::uint64_t> offsets;
  std::uint64_t problems = 0;
  std::vector<ScanProblem> first;
};

Read read_all(const std::filesystem::path& path) {
  Read read;
  Scanner scanner(path);
  Event event;
  while (scanner.next(event)) {
    read.objects.emplace_back(event.object);
    read.names.push_back(unescape(event.name));
    read.offsets.push_back(event.offset);
  }
  read.problems = scanner.problems();
  read.first = scanner.first_problems();
  return read;
}
Read read_text(const std::string& text) {
  const TempDir dir;
  spit(dir / "t.json", text);
  return read_all(dir / "t.json");
}

MadeTrace small_trace(int num_kernels) {
  MadeTrace made(0);
  made.names();
  for (int i = 0; i < num_kernels; ++i)
    made.kernel("k\\\"{[\\u00e9" + std::to_string(i), 7, 1000 * i + i, 900, i);
  return made;
}

std::string message_of(const std::string& text) {
  try {
    (void)read_text(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// A frame as libzstd makes it at once, without a checksum.
std::string zstd_of(const std::string& text) {
  std::string packed(::ZSTD_compressBound(text.size()), '\0');
  const std::size_t size =
      ::ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3);
  REQUIRE(::ZSTD_isError(size) == 0);
  packed.resize(size);
  return packed;
}

}  // namespace

TEST_CASE("the scanner finds the events and values that nlohmann finds", "[trace]") {
  const std::string text = small_trace(20'000).text();
  const TempDir dir;
  spit(dir / "t.json", text);
  for (const char* name : {"t.json.gz", "t.json.zst"}) {
    OutputFile packed(dir / name);
    packed.write(text);
    REQUIRE(packed.close() < text.size() / 5);
  }
  spit(dir / "frames.json.zst", zstd_of(text.substr(0, 10'000)) + zstd_of(text.substr(10'000)));
  const auto json = nlohmann::json::parse(text);
  for (const char* name : {"t.json", "t.json.gz", "t.json.zst", "frames.json.zst"}) {
    CAPTURE(name);
    Scanner scanner(dir / name);
    Event event;
    std::size_t i = 0;
    bool equal = true;
    while (scanner.next(event)) {
      const auto& wanted = json["traceEvents"][i++];
      equal = equal && text.substr(event.offset, event.object.size()) == event.object;
      equal = equal && nlohmann::json::parse(event.object) == wanted;
      equal = equal && unescape(event.name) == wanted["name"].get<std::string>();
      equal = equal && event.pid == wanted["pid"].dump() && event.tid == wanted["tid"].dump();
    }
    REQUIRE(equal);
    REQUIRE(i == json["traceEvents"].size());
    REQUIRE(scanner.problems() == 0);
    REQUIRE(scanner.bytes() == text.size());
    for (const char* key : {"deviceProperties", "distributedInfo", "traceName", "stop"})
      REQUIRE(nlohmann::json::parse(*scanner.top(key)) == json[key]);
    REQUIRE_FALSE(scanner.top("traceEvents"));
  }
}

TEST_CASE("decimal microseconds become exact nanoseconds", "[trace]") {
  REQUIRE(microseconds_to_ns("1700000000000000.123") == 1700000000000000123);
  REQUIRE(microseconds_to_ns("0.001") == 1);
  REQUIRE(microseconds_to_ns("-12.345") == -12345);
  REQUIRE(microseconds_to_ns("17") == 17000);
  REQUIRE(microseconds_to_ns("1.5e3") == 1'500'000);
  REQUIRE(microseconds_to_ns("1234567E-3") == 1'234'567);
  REQUIRE(microseconds_to_ns("1.0005") == 1001);
  REQUIRE(microseconds_to_ns("1.00049999999999999999999") == 1000);
  REQUIRE(microseconds_to_ns("0e500") == 0);
  for (const char* wrong : {"", "-", ".", "1e", "12x", "1e400", "99999999999999999999", "NaN"})
    REQUIRE_FALSE(microseconds_to_ns(wrong));
}

TEST_CASE("arguments are found behind values of every kind", "[trace]") {
  const std::string args = R"({"a": [1, {"b": 2}], "b": -7, "c": "x\"y", "d": 12})";
  REQUIRE(find_integer(args, "b") == -7);
  REQUIRE(find_integer(args, "d") == 12);
  REQUIRE(find_argument(args, "c") == R"(x\"y)");
  REQUIRE(find_argument(args, "a") == R"([1, {"b": 2}])");
  REQUIRE_FALSE(find_integer(args, "c"));
  REQUIRE_FALSE(find_argument(args, "e"));
  REQUIRE_FALSE(find_argument("", "e"));
  REQUIRE(unescape(R"(\u00e9\ud83d\ude00\n\ud83d)") == "\xC3\xA9\xF0\x9F\x98\x80\n\xEF\xBF\xBD");
}

TEST_CASE("a bare list of events is a trace, with and without its end", "[trace]") {
  const std::string event = R"({"ph":"X","name":"a","ts":1,"dur":2})";
  REQUIRE(read_text("[" + event + "," + event + "]").objects.size() == 2);
  const Read open = read_text("[" + event + "," + event + ",");
  REQUIRE(open.objects.size() == 2);
  REQUIRE(open.problems == 0);
}

TEST_CASE("a trace cut anywhere gives the events before the cut, and says where", "[trace]") {
  const MadeTrace made = small_trace(6);
  const std::string text = made.cut();
  const Read whole = read_text(made.text());
  const std::size_t first = text.find("\"traceEvents\": [") + 16;
  for (std::size_t size = first; size < text.size(); size += 7) {
    const Read cut = read_text(text.substr(0, size));
    std::size_t wanted = 0;
    while (wanted < whole.objects.size() &&
           whole.offsets[wanted] + whole.objects[wanted].size() <= size)
      ++wanted;
    REQUIRE(cut.objects.size() == wanted);
    REQUIRE(cut.problems >= 1);
  }
}

TEST_CASE("a broken event costs itself alone", "[trace]") {
  const std::string good = R"({"ph": "X", "name": "good", "ts": 1, "dur": 2, "args": {"a": 1}})";
  for (const std::string& bad : std::vector<std::string>{
           R"({"ph": "X", "name": "a"b", "ts": 1})",
           R"({"ph": "X", "name": "a, "ts": 1})",
           R"({"ph": "X", "name": "C:\users", "ts": 1})",
           R"({"ph": "X" "name": "a", "ts": 1})",
           R"({"ph": "X", "name": "a", "ts": })",
           R"({"ph": "X", "name": "a", "ts": 1, "args": {"a")",
           R"({"ph": "X", "name": "a", "ts": 12x})",
           R"({"name": "a", "ts": 1})",
           R"(17)",
           R"({"ph": "X", "name": "a", "ts": 1, "args": {"a": {"b": })",
           std::string("{\"ph\": \"X\", \"name\": \"\0\", \"ts\": 1}", 33),
       }) {
    CAPTURE(bad);
    const std::string before = "{\"traceEvents\": [\n" + good + ",\n";
    const Read read = read_text(before + bad + ",\n" + good + ",\n" + good + "\n]}");
    REQUIRE(read.objects == std::vector<std::string>(3, good));
    REQUIRE(read.problems >= 1);
    REQUIRE(read.first[0].offset == before.size());
  }
}

TEST_CASE("events of two writers in one file are found around the place where they collide",
          "[trace]") {
  const std::string good = R"({"ph": "X", "name": "good", "ts": 1, "dur": 2})";
  const Read read =
      read_text("{\"traceEvents\": [" + good + ", {\"ph\": \"X\", \"na" + good + "," + good + "]}");
  REQUIRE(read.objects == std::vector<std::string>(3, good));
  REQUIRE(read.problems == 1);
}

TEST_CASE("what is no trace is refused by its path", "[trace]") {
  REQUIRE(message_of("").find("t.json: no trace: it is empty") != std::string::npos);
  REQUIRE(message_of("hello").find("neither with an object nor with a list") != std::string::npos);
  REQUIRE(message_of("{\"a\": 1}").find("no list \"traceEvents\"") != std::string::npos);
}

TEST_CASE("a compressed trace that is cut off gives what came before", "[trace]") {
  const TempDir dir;
  for (const char* name : {"t.json.gz", "t.json.zst"}) {
    CAPTURE(name);
    OutputFile packed(dir / name);
    packed.write(small_trace(20'000).text());
    packed.close();
    const std::string bytes = test::slurp(dir / name);
    spit(dir / name, bytes.substr(0, bytes.size() / 2));
    const Read read = read_all(dir / name);
    REQUIRE(read.objects.size() > 1000);
    REQUIRE(read.problems >= 1);
    REQUIRE(read.first[0].what.find("cut off") != std::string::npos);
  }
}

TEST_CASE("random damage neither ends the scanner nor makes it invent events", "[trace]") {
  const std::string text = small_trace(30).text();
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::string hurt = text;
    for (int i = 0; i < 5; ++i) {
      const std::size_t at = text.size() / 8 + random() % (text.size() * 7 / 8);
      hurt[at] = "{}[]\",:\\x\0"[random() % 10];
    }
    const Read read = read_text(hurt);
    for (const std::string& object : read.objects) REQUIRE(nlohmann::json::accept(object));
    REQUIRE(read.objects.size() <= 123);
    REQUIRE(read.objects.size() >= 80);
  }
}
