#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <limits>
#include <vector>

#include "engine/base/disk_error.h"
#include "engine/base/file.h"
#include "engine/base/finite.h"
#include "engine/base/make_folder.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace fs = std::filesystem;
using namespace dstrain;
using dstrain::test::TempDir;

namespace {

/// Error code of writing `bytes` bytes in a process whose files may have 1,000; 0: none.
int code_of_write(const fs::path& path, std::size_t bytes) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 1000, .rlim_max = 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file_atomically(path, std::string(bytes, 'x'));
    } catch (const Error& error) {
      const bool named = std::string(error.what()).find(path.string()) != std::string::npos;
      ::_exit(named ? exit_code(error.kind()) : 1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

std::size_t num_files(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("a file that the disk does not take is 74, and the old one stays alone", "[base]") {
  const TempDir dir;
  const fs::path path = dir / "plan.json";
  REQUIRE(code_of_write(path, 10) == 0);
  REQUIRE(code_of_write(path, 5000) == 74);
  REQUIRE(read_file(path) == std::string(10, 'x'));
  REQUIRE(num_files(dir.path()) == 1);
  REQUIRE(code_of_write(dir / "none" / "plan.json", 10) == 74);
}

TEST_CASE("a full or broken disk is 74, a path that cannot be made 64", "[base]") {
  const auto code = [](std::errc error) {
    return exit_code(refusal_kind(std::make_error_code(error)));
  };
  REQUIRE(code(std::errc::no_space_on_device) == 74);
  REQUIRE(code(std::errc::io_error) == 74);
  REQUIRE(exit_code(refusal_kind({EDQUOT, std::generic_category()})) == 74);
  REQUIRE(code(std::errc::permission_denied) == 64);
  REQUIRE(code(std::errc::not_a_directory) == 64);
  REQUIRE(code(std::errc::read_only_file_system) == 64);
}

TEST_CASE("a folder is made with its parents, and one that cannot be made is named with a way out",
          "[base]") {
  const TempDir dir;
  make_folder(dir / "a" / "b");
  make_folder(dir / "a" / "b");
  REQUIRE(fs::is_directory(dir / "a" / "b"));
  write_file_atomically(dir / "file", "x");
  const fs::path below = dir / "file" / "b";
  try {
    make_folder(below, "name another one");
    FAIL("a file became a folder");
  } catch (const Error& error) {
    REQUIRE(exit_code(error.kind()) == 64);
    REQUIRE(error.what() == "cannot make the folder " + below.string() + ": Not a directory");
    REQUIRE(error.hint() == "name another one");
  }
}

TEST_CASE("the first value that is not finite is found wherever it stands", "[base]") {
  std::vector<float> values(10'000, std::numeric_limits<float>::max());
  values[1] = std::numeric_limits<float>::denorm_min();
  values[2] = -0.0f;
  REQUIRE(first_non_finite(values) == -1);
  REQUIRE(first_non_finite({}) == -1);
  for (const std::size_t at : {9'999, 8'192, 8'191, 4'096, 4'095, 1, 0}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      values[at] = bad;
      REQUIRE(first_non_finite(values) == static_cast<std::int64_t>(at));
    }
  }
}
