#include "launcher/console.h"

#include "test/support/catch.h"

using namespace dstrain::launcher;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

struct Recorder {
  std::string text;
  ConsoleSink sink(bool terminal) {
    ConsoleSink sink{.write = [this](std::string_view part) { text += part; }};
    sink.is_terminal = terminal;
    sink.columns = 10;
    return sink;
  }
};

const Console::Time kStart{};

}  // namespace

TEST_CASE("control characters become visible, UTF-8 stays", "[launcher][console]") {
  CHECK(neutralise("a\x1b]0;x\x07") == "a^[]0;x^G");
  CHECK(neutralise("\t\xc3\xbc \xe2\x82\xac\n") == "\t\xc3\xbc \xe2\x82\xac\n");
  CHECK(neutralise("\xc2\x9b"
                   "2J") == "\\u009b2J");
  CHECK(neutralise("\x9b"
                   "2J") == "\\x9b2J");
  CHECK(neutralise("a\rb\x7f") == "a^Mb^?");
}

TEST_CASE("lines stand above the live line", "[launcher][console]") {
  Recorder recorder;
  Console console(recorder.sink(true));
  console.progress("step 1", kStart);
  console.lines("note\n", "> ");
  console.progress("step 2 with much more", kStart);
  console.finish_progress();
  CHECK(recorder.text == "step 1\r\x1b[K> note\nstep 1\r\x1b[Kstep 2 wi\n");
}

TEST_CASE("piped, progress comes every 2 s, the first and the last always", "[launcher][console]") {
  Recorder recorder;
  Console console(recorder.sink(false));
  console.progress("1", kStart);
  console.progress("2", kStart + milliseconds(500));
  console.lines("note");
  console.progress("3", kStart + seconds(2));
  console.progress("4", kStart + milliseconds(2100));
  console.progress("5", kStart + milliseconds(2200));
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
