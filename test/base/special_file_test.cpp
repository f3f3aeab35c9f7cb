#include "engine/base/special_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "engine/base/file.h"
#include "engine/base/unique_fd.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {

TEST_CASE("a pipe, or a link to it, is written in place and stays", "[special_file]") {
  const test::TempDir folder;
  const std::filesystem::path pipe = folder / "pipe", link = folder / "link";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::filesystem::create_symlink(pipe, link);
  const UniqueFd reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(reader);
  for (const auto& path : {pipe, link}) {
    CHECK(is_special_file(path));
    write_file_atomically(path, "content");
    std::array<char, 64> text{};
    REQUIRE(::read(reader.get(), text.data(), text.size()) == 7);
    CHECK(std::string(text.data()) == "content");
  }
  CHECK(std::filesystem::is_fifo(pipe));
  CHECK(std::filesystem::is_symlink(link));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("files, folders and what is not there are no special files", "[special_file]") {
  const test::TempDir folder;
  write_file_atomically(folder / "file", "");
  CHECK_FALSE(is_special_file(folder / "file"));
  CHECK_FALSE(is_special_file(folder.path()));
  CHECK_FALSE(is_special_file(folder / "none"));
  CHECK(is_special_file("/dev/null"));
}

}  // namespace dstrain
