#include "engine/base/limits.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>
#include <thread>

#include "engine/base/file.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace dstrain;

namespace {

/// What `body` says in a process of its own whose limit is `bytes`.
std::string said_under(__rlimit_resource resource, rlim_t bytes,
                       const std::function<std::string()>& body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
    ::setrlimit(resource, &limit);
    const std::string text = body();
    [[maybe_unused]] const auto written = ::write(ends[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text(4096, '\0');
  const auto got = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

std::string reason_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return std::to_string(exit_code(error.kind())) + " " + error.what();
  }
  return "ok";
}

}  // namespace

TEST_CASE("a file that may not grow is an error of its write, with the limit", "[base][limits]") {
  const test::TempDir dir;
  const std::string said = said_under(RLIMIT_FSIZE, 4096, [&] {
    prepare_limits();
    return reason_of([&] { write_file_atomically(dir / "file", std::string(5000, 'x')); });
  });
  CHECK(said == "74 cannot write " + (dir / "file").string() +
                    ": File too large; a file of this process may have 4.00 KiB (ulimit -f, "
                    "RLIMIT_FSIZE)");
}

TEST_CASE("a stack that is too small is refused by name", "[base][limits][not_emulated]") {
  const std::string said =
      said_under(RLIMIT_STACK, 64 << 10, [] { return reason_of([] { prepare_limits(); }); });
  CHECK(said ==
        "69 the stack of this process may have 64.00 KiB (ulimit -s, RLIMIT_STACK), and it needs "
        "1.00 MiB");
  CHECK(said_under(RLIMIT_STACK, 2 << 20, [] { return reason_of([] { prepare_limits(); }); }) ==
        "ok");
}

TEST_CASE("a thread that finds no room is told from one that the system refuses",
          "[base][limits][not_emulated]") {
  const auto code = std::make_error_code(std::errc::resource_unavailable_try_again);
  CHECK_FALSE(address_space_error(std::make_error_code(std::errc::io_error)).has_value());
  const std::string said = said_under(RLIMIT_AS, rlim_t{1} << 40, [&] {
    return reason_of([&] {
      if (const auto error = address_space_error(code)) throw *error;
    });
  });
  CHECK(said.starts_with("70 out of memory on the host; "));
  CHECK(said.find("limited to 1.00 TiB (ulimit -v, RLIMIT_AS)") != std::string::npos);
  CHECK(limit_note(ENOENT).empty());
}
