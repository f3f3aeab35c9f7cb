#include "engine/base/output_file.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>

#include "engine/base/append_file.h"
#include "engine/base/file.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace fs = std::filesystem;
using namespace dstrain;
using dstrain::test::slurp;
using dstrain::test::spit;
using dstrain::test::TempDir;

namespace {

/// What the error of `open` says; a test fails that gets none, another kind, or waits.
std::string refusal(const std::function<void()>& open) {
  const auto begin = std::chrono::steady_clock::now();
  std::string said;
  try {
    open();
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::checkpoint);
    said = error.what();
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
  return said;
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

void make_socket_file(const fs::path& path) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  REQUIRE(path.native().size() < sizeof name.sun_path);
  path.native().copy(name.sun_path, path.native().size());
  REQUIRE(::bind(socket.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0);
}

}  // namespace

TEST_CASE("what is no file is never waited for, and never written through", "[output_file]") {
  const TempDir dir;
  REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
  make_socket_file(dir / "socket");
  fs::create_directory(dir / "folder");
  spit(dir / "target", "old");
  fs::create_symlink(dir / "target", dir / "link");
  fs::create_symlink(dir / "none", dir / "dangling");
  const std::pair<const char*, const char*> cases[] = {{"fifo", "it is a FIFO"},
                                                       {"socket", "it is a socket"},
                                                       {"folder", "Is a directory"},
                                                       {"link", "it is a symbolic link"},
                                                       {"dangling", "it is a symbolic link"}};
  for (const auto& [name, reason] : cases) {
    const fs::path path = dir / name;
    for (const OldContent old : {OldContent::append, OldContent::edit, OldContent::cut}) {
      const std::string said = refusal([&] { (void)open_output_file(path, {.old = old}); });
      CAPTURE(name, said);
      CHECK(said.starts_with("cannot write " + path.string() + ": " + reason));
    }
    CHECK_FALSE(
        refusal([&] { (void)open_output_file(path, {.old = OldContent::refuse}); }).empty());
    AppendFile file;
    CHECK_FALSE(refusal([&] { file.open(path); }).empty());
  }
  CHECK(slurp(dir / "target") == "old");
  CHECK_FALSE(fs::exists(dir / "none"));
  // With a reader, too: a log or a file of metrics is no pipe.
  const UniqueFd reader(::open((dir / "fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  CHECK(refusal([&] {
          (void)open_output_file(dir / "fifo", {.old = OldContent::append});
        }).ends_with("it is a FIFO (pipe), not a file"));
}

TEST_CASE("a temporary file takes the place of whatever lies under its name", "[output_file]") {
  const TempDir dir;
  spit(dir / "precious", "precious");
  const std::string temporary = (dir / "out").string() + ".tmp" + std::to_string(::getpid());
  fs::create_symlink(dir / "precious", temporary);
  write_file_atomically(dir / "out", "new");
  CHECK(slurp(dir / "precious") == "precious");
  CHECK(slurp(dir / "out") == "new");
  REQUIRE(::mkfifo(temporary.c_str(), 0600) == 0);
  write_file_atomically(dir / "out", "newer");
  CHECK(slurp(dir / "out") == "newer");
  // The file itself: a link is replaced, not followed.
  fs::create_symlink(dir / "precious", dir / "link");
  write_file_atomically(dir / "link", "mine");
  CHECK(slurp(dir / "precious") == "precious");
  CHECK_FALSE(fs::is_symlink(dir / "link"));
  fs::create_directory(temporary);
  CHECK(refusal([&] { write_file_atomically(dir / "out", "x"); }).find((dir / "out").string()) !=
        std::string::npos);
  CHECK(slurp(dir / "out") == "newer");
}

TEST_CASE("a FIFO that a user names is written when somebody reads it, and not for ever",
          "[output_file]") {
  const TempDir dir;
  const fs::path fifo = dir / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(
      refusal([&] {
        write_file_atomically(fifo, "x");
      }).starts_with("cannot write " + fifo.string() + ": it is a FIFO (pipe) that nobody reads"));
  const UniqueFd reader(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const auto begin = std::chrono::steady_clock::now();
  try {
    write_file_atomically(fifo, std::string(1 << 20, 'x'));
    FAIL("a pipe took a mebibyte that nobody read");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).ends_with("its reader has taken nothing for ten seconds"));
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE("files of the owner alone are so under every umask, others as the umask says",
          "[output_file]") {
  const TempDir dir;
  for (const mode_t mask : {mode_t{0}, mode_t{022}, mode_t{077}, mode_t{0777}}) {
    const mode_t before = ::umask(mask);
    const std::string name = std::to_string(mask);
    write_file_atomically(dir / ("secret" + name), "x", Readers::owner);
    if (mask != 0777) write_file_atomically(dir / ("plain" + name), "x");
    ::umask(before);
    CHECK(mode_of(dir / ("secret" + name)) == 0600);
    if (mask != 0777) CHECK(mode_of(dir / ("plain" + name)) == (0644 & ~mask));
  }
  // One that everybody could read becomes the owner's alone.
  spit(dir / "log", "old\n");
  fs::permissions(dir / "log", fs::perms(0644));
  (void)open_output_file(dir / "log", {.old = OldContent::append, .readers = Readers::owner});
  CHECK(mode_of(dir / "log") == 0600);
  CHECK(slurp(dir / "log") == "old\n");
}

TEST_CASE("a zero byte in a name is refused, and cuts off no error", "[output_file]") {
  const TempDir dir;
  const fs::path path = dir.path().string() + "/a" + std::string(1, '\0') + "b";
  CHECK(refusal([&] {
          write_file_atomically(path, "x");
        }).ends_with("a\\x00b: the name has a zero byte"));
  CHECK(fs::is_empty(dir.path()));
  spit(dir / "a", "other");
  try {
    (void)read_file(path);
    FAIL("another file was read");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).ends_with("a\\x00b: the name has a zero byte"));
  }
}
