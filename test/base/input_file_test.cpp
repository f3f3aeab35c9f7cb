#include "engine/base/input_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "engine/base/file.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// What opening says, by each of the ways to read a file; it must not wait.
std::string open_error(const fs::path& path) {
  const auto begin = std::chrono::steady_clock::now();
  const auto say = [&](auto open) -> std::string {
    try {
      open();
      return "no error";
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::data);
      return error.what();
    }
  };
  const std::string text = say([&] { (void)open_input_file(path); });
  CHECK(say([&] { (void)read_file(path); }) == text);
  CHECK(say([&] { MappedFile{path}; }) == text);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
  return text;
}

void make_socket(const fs::path& path) {
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.native().size() < sizeof(address.sun_path));
  std::strcpy(address.sun_path, path.c_str());
  REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
}

TEST_CASE("a file and links to it are opened", "[input_file]") {
  const test::TempDir folder;
  write_file_atomically(folder / "file", "content");
  fs::create_symlink("file", folder / "link");
  fs::create_symlink(folder / "link", folder / "link-to-link");
  for (const char* name : {"file", "link", "link-to-link"}) {
    CHECK(open_error(folder / name) == "no error");
    CHECK(read_file(folder / name) == "content");
    CHECK(path_kind(folder / name) == PathKind::file);
  }
}

TEST_CASE("what is no file is refused by name and never waited for", "[input_file]") {
  const test::TempDir folder;
  const auto refused = [&](const fs::path& path, const std::string& why) {
    CHECK(open_error(path) == "cannot read " + path.string() + ": " + why);
  };
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  make_socket(folder / "socket");
  fs::create_symlink("fifo", folder / "link-to-fifo");
  fs::create_symlink("absent", folder / "link-to-nothing");
  refused(folder / "fifo", "it is a FIFO (pipe), not a file");
  refused(folder / "link-to-fifo", "it is a FIFO (pipe), not a file");
  refused(folder / "socket", "it is a socket, not a file");
  refused(folder.path(), "it is a directory, not a file");
  refused("/dev/zero", "it is a device, not a file");
  refused("/dev/tty", "it is a device, not a file");
  refused(folder / "absent", "No such file or directory");
  refused(folder / "link-to-nothing", "No such file or directory");
  CHECK(path_kind(folder / "fifo") == PathKind::other);
  CHECK(path_kind(folder.path()) == PathKind::folder);
  CHECK(path_kind(folder / "link-to-nothing") == PathKind::nothing);
  CHECK(path_kind(folder / "fifo/below") == PathKind::nothing);
}

TEST_CASE("a pipe of the shell is refused", "[input_file]") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const UniqueFd in(ends[0]), out(ends[1]);
  const std::string path = "/dev/fd/" + std::to_string(in.get());
  CHECK(open_error(path) == "cannot read " + path + ": it is a FIFO (pipe), not a file");
}

TEST_CASE("links in a circle and long names are said as such", "[input_file]") {
  const test::TempDir folder;
  fs::create_symlink("b", folder / "a");
  fs::create_symlink("a", folder / "b");
  CHECK(open_error(folder / "a") ==
        "cannot read " + (folder / "a").string() + ": its symbolic links lead in a circle");
  CHECK_THROWS_WITH(path_kind(folder / "a"), Catch::Contains("lead in a circle"));
  CHECK_THROWS_WITH(path_exists(folder / "a/below"), Catch::Contains("lead in a circle"));
  const fs::path lengthy = folder / std::string(5000, 'n');
  const std::string error = open_error(lengthy);
  CHECK(error.ends_with(" bytes is longer than the system takes"));
  CHECK(error.size() < 300);
  CHECK_THROWS_WITH(path_exists(lengthy), Catch::Contains("is longer than the system takes"));
}

TEST_CASE("names of any bytes are opened", "[input_file]") {
  const test::TempDir folder;
  const fs::path path = folder / "a\xff\n\x1b[31m\x80";
  write_file_atomically(path, "content");
  CHECK(read_file(path) == "content");
}

}  // namespace
}  // namespace dstrain
