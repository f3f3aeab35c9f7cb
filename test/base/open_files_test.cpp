#include "engine/base/open_files.h"

#include <sys/resource.h>

#include <cerrno>

#include "engine/base/error.h"
#include "test/support/catch.h"

using namespace dstrain;

namespace {

rlimit limit() {
  rlimit found{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &found) == 0);
  return found;
}

}  // namespace

TEST_CASE("a soft limit of open files is raised, a hard one is named", "[base][open_files]") {
  const rlimit before = limit();
  const rlimit low = {.rlim_cur = 64, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  require_open_files(100, "this test");
  CHECK(limit().rlim_cur == 100);
  require_open_files(50, "this test");
  CHECK(limit().rlim_cur == 100);
  if (before.rlim_max == RLIM_INFINITY) return;
  const auto too_many = static_cast<std::int64_t>(before.rlim_max) + 1;
  try {
    require_open_files(too_many, "this test");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::hosts);
    CHECK_THAT(error.what(), Catch::Contains("this test may need") &&
                                 Catch::Contains("RLIMIT_NOFILE") && Catch::Contains("ulimit -n"));
    // What would do, not a number that is as low as the one that was found.
    CHECK_THAT(error.hint(), Catch::Contains(std::to_string(too_many)));
  }
  CHECK_THAT(open_files_note(EMFILE), Catch::Contains("RLIMIT_NOFILE"));
  CHECK(open_files_note(ENOENT).empty());
  (void)::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("a rank of thousands needs few open files but on rank 0, and Gloo's one per pair",
          "[base][open_files]") {
  CHECK(open_files_of_rank(/*all_pairs=*/true, 5, 8) == 96);
  CHECK(open_files_of_rank(/*all_pairs=*/true, 0, 1009) == 64 + 4 * 1009);
  CHECK(open_files_of_rank(/*all_pairs=*/false, 5, 8) == 96);
  CHECK(open_files_of_rank(/*all_pairs=*/false, 5, 8192) < 1024);
  CHECK(open_files_of_rank(/*all_pairs=*/false, 0, 8192) > 8192);
}
