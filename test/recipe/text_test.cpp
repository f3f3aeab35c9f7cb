#include "engine/recipe/text.h"

#include <cstdlib>

#include "test/support/catch.h"

namespace dstrain {

TEST_CASE("only plain decimal is a whole number, and the hint gives it", "[recipe]") {
  CHECK(read_integer("0").value == 0);
  CHECK(read_integer("-12").value == -12);
  CHECK(read_integer("123456789012345678").value == 123456789012345678);
  for (const auto& [text, hint] :
       std::initializer_list<std::pair<const char*, const char*>>{{"010", "write 10"},
                                                                  {"0x10", "write 16"},
                                                                  {"0o17", "write 15"},
                                                                  {"1_000", "write 1000"},
                                                                  {"1e3", "write 1000"},
                                                                  {"5.0", "write 5"},
                                                                  {"+5", "write 5"},
                                                                  {"-007", "write -7"},
                                                                  {"1.5", ""},
                                                                  {"12:30", ""},
                                                                  {"", ""},
                                                                  {"-", ""},
                                                                  {"x", ""},
                                                                  {"1e999", ""},
                                                                  {"0x", ""},
                                                                  {"_", ""},
                                                                  {"9999999999999999999", ""}}) {
    CAPTURE(text);
    CHECK_FALSE(read_integer(text).value);
    CHECK_FALSE(read_integer(text).mistake.empty());
    CHECK(read_integer(text).hint == hint);
  }
}

TEST_CASE("a number is a finite number of YAML", "[recipe]") {
  CHECK(read_real("1e-3").value == 1e-3);
  CHECK(read_real("-0.5").value == -0.5);
  CHECK(read_real("5.0E-5").value == 5e-5);
  CHECK(read_real("64").value == 64.0);
  CHECK(read_real(".5e-3").value == 5e-4);
  CHECK(read_real("-.5").value == -0.5);
  CHECK(read_real("0.").value == 0.0);
  CHECK(read_real("1.e-4").value == 1e-4);
  CHECK(read_real("+1e-4").value == 1e-4);
  for (const char* text :
       {".nan", ".inf", "-.INF", "nan", "inf", "1e999", "010", "0x10", "1_000", ".",   "+.",
        "-.e1", "+-1",  "00.5",  "1e",  "e5",  "",      "-",   "1,5",  "1e5x",  "1..", "+1e999"}) {
    CAPTURE(text);
    CHECK_FALSE(read_real(text).value);
    CHECK_FALSE(read_real(text).mistake.empty());
  }
  CHECK(read_real("010").hint == "write 10");
}

TEST_CASE("the nearest word forgives a slip and no more", "[recipe]") {
  const std::vector<std::string_view> words = {"global", "micro", "lr"};
  CHECK(nearest("globl", words) == "global");
  CHECK(nearest("gloabl", words) == "global");
  CHECK(nearest("rl", words) == "lr");
  CHECK(nearest("width", words).empty());
  CHECK(nearest("bloom-7b", {"bloom-3b", "bloom-7b1"}) == "bloom-7b1");  // both are one slip away
  CHECK(nearest("", words).empty());
  CHECK(nearest(std::string(100000, 'g'), words).empty());
}

TEST_CASE("variables expand once, with defaults, and say when they cannot", "[recipe]") {
  ::setenv("DSTRAIN_TEST_A", "one", 1);
  ::setenv("DSTRAIN_TEST_EMPTY", "", 1);
  ::setenv("DSTRAIN_TEST_NESTED", "${DSTRAIN_TEST_A}", 1);
  ::setenv("DSTRAIN_TEST_BINARY", "a\nb", 1);
  ::unsetenv("DSTRAIN_TEST_UNSET");
  CHECK(expand_variables("x/${DSTRAIN_TEST_A}/y").text == "x/one/y");
  CHECK(expand_variables("${DSTRAIN_TEST_UNSET:-data}/y").text == "data/y");
  CHECK(expand_variables("${DSTRAIN_TEST_EMPTY:-data}").text == "data");
  CHECK(expand_variables("${DSTRAIN_TEST_EMPTY}").text.empty());
  CHECK(expand_variables("${DSTRAIN_TEST_NESTED}").text == "${DSTRAIN_TEST_A}");
  CHECK(expand_variables("$$ $HOME $${x} $").text == "$ $HOME ${x} $");
  CHECK(expand_variables("${DSTRAIN_TEST_UNSET}").mistake ==
        "environment variable DSTRAIN_TEST_UNSET is not set");
  CHECK(expand_variables("${DSTRAIN_TEST_UNSET}").hint ==
        "export DSTRAIN_TEST_UNSET=..., or give a default: ${DSTRAIN_TEST_UNSET:-default}");
  for (const char* wrong :
       {"${", "${}", "${1}", "${a b}", "${a", "${DSTRAIN_TEST_BINARY}", "${a-b}"}) {
    CAPTURE(wrong);
    CHECK_FALSE(expand_variables(wrong).mistake.empty());
  }
}

}  // namespace dstrain
