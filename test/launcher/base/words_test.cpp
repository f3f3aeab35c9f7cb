#include "launcher/base/words.h"

#include <csignal>

#include "test/support/catch.h"

using namespace dstrain::launcher;

TEST_CASE("ranks are folded into ranges", "[launcher][words]") {
  CHECK(fold_ranks({3, 0, 1, 2}) == "0-3");
  CHECK(fold_ranks({5, 0, 2, 3}) == "0, 2-3, 5");
  CHECK(fold_ranks({}).empty());
}

TEST_CASE("a signal is named, or numbered where it has no name", "[launcher][words]") {
  CHECK(signal_name(SIGKILL) == "SIGKILL");
  CHECK(signal_name(64) == "signal 64");
  for (int number = 1; number < 32; ++number) {
    const char* name = ::sigabbrev_np(number);  // of the C library, where it has them
    CHECK(signal_name(number) == std::string("SIG") + name);
  }
}

TEST_CASE("a word of a shell is quoted only where it must be", "[launcher][words]") {
  CHECK(shell_quote("/opt/a-b_c.d:e=f,g+h@i%j") == "/opt/a-b_c.d:e=f,g+h@i%j");
  CHECK(shell_quote("") == "''");
  CHECK(shell_quote("two words") == "'two words'");
  CHECK(shell_quote("it's $HOME") == "'it'\\''s $HOME'");
}
