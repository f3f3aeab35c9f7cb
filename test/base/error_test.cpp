#include "engine/base/error.h"

#include <string>

#include "test/support/catch.h"

namespace dstrain {
namespace {

using namespace std::string_literals;

TEST_CASE("a zero byte in an error's text hides nothing that follows", "[base]") {
  const Error error(ErrorKind::data, "\0a\0\0b"s, "hint\0"s);
  CHECK(std::string(error.what()) == R"(\x00a\x00\x00b)");
  CHECK(error.hint() == R"(hint\x00)");
}

}  // namespace
}  // namespace dstrain
