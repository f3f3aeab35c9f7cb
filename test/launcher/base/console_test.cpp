#include "launcher/base/console.h"

#include <unistd.h>

#include <array>
#include <thread>

#include "launcher/base/fd.h"
#include "launcher/base/standard_output.h"
#include "test/support/catch.h"

using namespace dstrain::launcher;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

struct Recorder {
  std::string text;
  int columns = 10;
  ConsoleSink sink(bool terminal) {
    ConsoleSink sink{.write = [this](std::string_view part) { text += part; }};
    sink.is_terminal = terminal;
    sink.columns = [this] { return columns; };
    return sink;
  }
};

const Console::Time kConsoleStart{};

}  // namespace

TEST_CASE("control characters of ranks and of their names become visible", "[launcher][console]") {
  Recorder recorder;
  Console console(recorder.sink(true));
  console.lines("a\x1b]0;x\x07\r\n\xc2\x9bz\xff", "[h\x1b] ");
  console.progress("\x1b[2J", kConsoleStart);
  CHECK(recorder.text == "[h\\x1b] a\\x1b]0;x\\x07\n[h\\x1b] \\u009bz\\xff\n\\x1b[2J");
}

TEST_CASE("lines stand above the live line", "[launcher][console]") {
  Recorder recorder;
  Console console(recorder.sink(true));
  console.progress("step 1", kConsoleStart);
  console.lines("note\n", "> ");
  console.progress("step 2 with much more", kConsoleStart);
  console.finish_progress();
  CHECK(recorder.text == "step 1\r\x1b[K> note\nstep 1\r\x1b[Kstep 2 wi\n");
}

TEST_CASE("the live line fits a window that became narrower", "[launcher][console]") {
  Recorder recorder;
  Console console(recorder.sink(true));
  console.progress("step 1 of many", kConsoleStart);
  recorder.columns = 7;
  console.lines("note");
  console.progress("step 2 of many", kConsoleStart);
  CHECK(recorder.text == "step 1 of\r\x1b[Knote\nstep 1\r\x1b[Kstep 2");
}

TEST_CASE("piped, progress comes every 2 s, the first and the last always", "[launcher][console]") {
  Recorder recorder;
  Console console(recorder.sink(false));
  console.progress("1", kConsoleStart);
  console.progress("2", kConsoleStart + milliseconds(500));
  console.lines("note");
  console.progress("3", kConsoleStart + seconds(2));
  console.progress("4", kConsoleStart + milliseconds(2100));
  console.progress("5", kConsoleStart + milliseconds(2200));
  console.finish_progress();
  CHECK(recorder.text == "1\nnote\n3\n5\n");
}

TEST_CASE("a line of any length is cut for the console", "[launcher][console]") {
  Recorder recorder;
  Console console(recorder.sink(false));
  console.lines(std::string(100000, 'x') + "\r\nnext");
  CHECK(recorder.text.size() < 5000);
  CHECK(recorder.text.ends_with(" ...\nnext\n"));
}

TEST_CASE("a stuck output keeps the launcher's own words and tells what it dropped",
          "[launcher][console]") {
  Pipe pipe = make_pipe();
  std::string shown;
  std::thread reader;
  {
    StandardOutput output(pipe.write.get());
    Console console(output.sink());
    const std::string line(999, 'x');
    for (int i = 0; i < 3000; ++i) console.lines(line, "[rank 0] ");
    console.lines("the report");
    for (int i = 0; i < 5; ++i) console.lines(line, "[rank 0] ");
    reader = std::thread([&pipe, &shown] {
      std::array<char, 65536> block{};
      for (ssize_t got = 0; (got = ::read(pipe.read.get(), block.data(), block.size())) > 0;)
        shown.append(block.data(), static_cast<std::size_t>(got));
    });
  }
  pipe.write.reset();
  reader.join();
  const auto first = shown.find(" lines: the console was too slow; they are in the log\n");
  REQUIRE(first != std::string::npos);
  CHECK(shown.find("the report\n") > first);
  CHECK(shown.ends_with("dropped 5 lines: the console was too slow; they are in the log\n"));
  CHECK(shown.size() < std::size_t{2} << 20);
}
