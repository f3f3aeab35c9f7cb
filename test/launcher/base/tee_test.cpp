#include "launcher/base/tee.h"

#include "engine/base/error.h"
#include "test/support/catch.h"

using namespace dstrain;
using namespace dstrain::launcher;

TEST_CASE("the ranks to show are all, none or a list", "[launcher][tee]") {
  CHECK(Tee{} == tee_from("0"));
  CHECK(tee_from("all").shows(7));
  CHECK(tee_from("all").shows_several());
  CHECK_FALSE(tee_from("none").shows(0));
  CHECK(tee_from("8,1").shows(1));
  CHECK_FALSE(tee_from("8,1").shows(0));
  CHECK(tee_from("8,1").shows_several());
  CHECK_FALSE(tee_from("8").shows_several());
  const std::string text = GENERATE("all", "none", "0", "0,8", "12,3");
  CHECK(to_text(tee_from(text)) == text);
}

TEST_CASE("another text is no list of ranks", "[launcher][tee]") {
  const std::string text = GENERATE("", "some", "0,", ",0", "-1", "1 2", "99999999999", "0,8x");
  REQUIRE_THROWS_WITH(tee_from(text), "'" + text + "': use all, none or 0,8");
}
