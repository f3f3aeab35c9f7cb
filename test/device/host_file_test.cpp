#include "engine/device/host_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using test::TempDir;

std::vector<std::byte> random_bytes(std::size_t count, unsigned seed) {
  std::vector<std::byte> bytes(count);
  std::mt19937 random(seed);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

/// The error of making a file.
Error refusal(const fs::path& directory, Bytes bytes = 4096) {
  try {
    const HostFile file(directory, bytes);
  } catch (const Error& error) {
    return error;
  }
  FAIL("no error for " << directory);
  return {ErrorKind::internal, ""};
}

struct Case {
  const char* name;
  HostFile::Options options;
};
const Case kCases[] = {{"as the file system can", {}},
                       {"through the page cache", {.direct = false}},
                       {"named for a moment", {.tmpfile = false}}};

TEST_CASE("what is written to a host file is read from it, at any offset and address", "[device]") {
  const TempDir dir;
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    const Bytes size = 3 * HostFile::kPiece + 12'345;
    HostFile file(dir.path(), size, c.options);
    REQUIRE(fs::is_empty(dir.path()));
    if (!c.options.direct) REQUIRE_FALSE(file.direct());
    std::vector<std::byte> model(to_index(size));  // zeros, as of a new file
    std::mt19937_64 random(7);
    for (int i = 0; i < 60; ++i) {
      auto offset = static_cast<Bytes>(random() % static_cast<std::uint64_t>(size));
      auto bytes = static_cast<Bytes>(random() % static_cast<std::uint64_t>(size - offset + 1));
      if (i % 3 == 0) bytes = std::min<Bytes>(bytes, static_cast<Bytes>(random() % 10'000));
      if (i % 4 == 0) offset -= offset % HostFile::kAlignment;
      // Both an address that is aligned and one that is not.
      const auto data = random_bytes(to_index(bytes) + 1, static_cast<unsigned>(i));
      const auto from = std::span(data).subspan(i % 2, to_index(bytes));
      file.write(offset, from);
      std::ranges::copy(from, model.begin() + offset);
      std::vector<std::byte> back(to_index(bytes) + 3);
      file.read(offset, std::span(back).subspan(3));
      REQUIRE(std::equal(from.begin(), from.end(), back.begin() + 3));
    }
    std::vector<std::byte> all(to_index(size));
    file.read(0, all);
    REQUIRE((all == model));
  }
}

TEST_CASE("a host file has all its blocks from the start", "[device]") {
  const TempDir dir;
  const HostFile file(dir.path(), Bytes{8} << 20);
  struct stat facts{};
  REQUIRE(::fstat(file.descriptor(), &facts) == 0);
  REQUIRE(facts.st_size == Bytes{8} << 20);
  REQUIRE(facts.st_blocks * 512 >= Bytes{8} << 20);
  REQUIRE(facts.st_nlink == 0);
}

TEST_CASE("a host file of no bytes is a file", "[device]") {
  const TempDir dir;
  HostFile file(dir.path(), 0);
  file.write(0, {});
  file.read(0, {});
  std::byte one{};
  REQUIRE_THROWS_AS(file.read(0, std::span(&one, 1)), Error);
}

TEST_CASE("a host file refuses ranges beyond its end", "[device]") {
  const TempDir dir;
  HostFile file(dir.path(), 100);
  std::vector<std::byte> bytes(101);
  REQUIRE_THROWS_AS(file.write(0, bytes), Error);
  REQUIRE_THROWS_AS(file.read(1, std::span(bytes).first(100)), Error);
  REQUIRE_THROWS_AS(file.read(-1, std::span(bytes).first(1)), Error);
  REQUIRE_THROWS_AS(file.read(101, {}), Error);
  REQUIRE_NOTHROW(file.read(100, {}));
}

TEST_CASE("many threads write neighbouring ranges that share blocks", "[device]") {
  const TempDir dir;
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    constexpr std::size_t kThreads = 8, kRanges = 200, kBytes = 3'001;
    const auto data = random_bytes(kThreads * kRanges * kBytes, 1);
    HostFile file(dir.path(), static_cast<Bytes>(data.size()), c.options);
    std::vector<std::jthread> threads;
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        std::vector<std::byte> back(kBytes);
        for (std::size_t range = thread; range < kThreads * kRanges; range += kThreads) {
          const auto from = std::span(data).subspan(range * kBytes, kBytes);
          file.write(static_cast<Bytes>(range * kBytes), from);
          file.read(static_cast<Bytes>(range * kBytes), back);
          if (!std::ranges::equal(back, from)) std::abort();
        }
      });
    }
    threads.clear();
    std::vector<std::byte> all(data.size());
    file.read(0, all);
    REQUIRE((all == data));
  }
}

TEST_CASE("a directory that can hold no file is refused by name with a cure", "[device]") {
  const TempDir dir;
  const Error missing = refusal(dir / "none");
  REQUIRE(missing.kind() == ErrorKind::usage);
  REQUIRE(std::string(missing.what()) ==
          "memory.offload.path: " + (dir / "none").string() + " does not exist");
  test::spit(dir / "file", "x");
  REQUIRE(std::string(refusal(dir / "file").what()).ends_with("file is not a directory"));
  REQUIRE(refusal(dir / "file" / "below").kind() == ErrorKind::usage);
  REQUIRE(refusal("/proc").kind() == ErrorKind::usage);  // takes no files
  REQUIRE_FALSE(refusal("/proc").hint().empty());
  if (::geteuid() != 0) {
    fs::permissions(dir.path(), fs::perms::owner_read | fs::perms::owner_exec);
    REQUIRE(std::string(refusal(dir.path()).what()).find("Permission denied") != std::string::npos);
    fs::permissions(dir.path(), fs::perms::owner_all);
  }
}

TEST_CASE("a directory in memory is refused, since memory is quicker without a file", "[device]") {
  if (!fs::is_directory("/dev/shm")) return;
  const Error error = refusal("/dev/shm");
  REQUIRE(error.kind() == ErrorKind::usage);
  REQUIRE(std::string(error.what()) == "memory.offload.path: /dev/shm lies in memory (tmpfs)");
  REQUIRE(error.hint().find("pageable") != std::string::npos);
}

TEST_CASE("a file beyond the disk is refused with wanted and free bytes, and fills nothing",
          "[device]") {
  const TempDir dir;
  struct statvfs disk{};
  REQUIRE(::statvfs(dir.path().c_str(), &disk) == 0);
  const Bytes all = static_cast<Bytes>(disk.f_blocks) * static_cast<Bytes>(disk.f_frsize);
  const Error error = refusal(dir.path(), 2 * all + 1);
  REQUIRE(error.kind() == ErrorKind::checkpoint);
  const std::string text = error.what();
  REQUIRE(text.starts_with("memory.offload.path: " + dir.path().string() +
                           " has no room for a file of "));
  REQUIRE(text.ends_with(" are free"));
  REQUIRE(error.hint().find("memory.offload.share") != std::string::npos);
  REQUIRE(fs::is_empty(dir.path()));
}

TEST_CASE("a limit of file sizes is told and does not end the process", "[device]") {
  const TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      const HostFile file(dir.path(), Bytes{2} << 20);
    } catch (const Error& error) {
      const bool named = std::string(error.what()).find("RLIMIT_FSIZE") != std::string::npos;
      ::_exit(named ? exit_code(error.kind()) : 1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 74);
}

/// The text of the error when `work` meets the descriptor of `path` in place of the file.
template <class Work>
std::string broken(HostFile& file, const char* path, int flags, const Work& work) {
  const int other = ::open(path, flags | O_CLOEXEC);
  REQUIRE(other >= 0);
  REQUIRE(::dup2(other, file.descriptor()) >= 0);
  ::close(other);
  try {
    work();
  } catch (const Error& error) {
    REQUIRE(error.kind() == ErrorKind::checkpoint);
    REQUIRE_FALSE(error.hint().empty());
    return error.what();
  }
  return "no error";
}

TEST_CASE("a failing disk is an error with directory, offset and cause", "[device]") {
  const TempDir dir;
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    HostFile file(dir.path(), Bytes{1} << 20, c.options);
    std::vector<std::byte> bytes(10'000);
    const std::string in = " of the offload file in " + dir.path().string() + " failed: ";
    // Half a block must be read before it can be written.
    const Bytes offset = 8192;
    REQUIRE(broken(file, "/dev/full", O_RDWR, [&] {
              file.write(offset, std::span(bytes).first(8192));
            }) == "writing 8192 bytes at offset 8192" + in + "No space left on device");
    REQUIRE(broken(file, "/dev/null", O_RDWR,
                   [&] { file.read(offset, std::span(bytes).first(8192)); }) ==
            "reading 8192 bytes at offset 8192" + in + "the disk gave fewer bytes than asked");
    REQUIRE(broken(file, "/proc/self/mem", O_RDWR, [&] {
              file.read(0, std::span(bytes).first(4096));
            }) == "reading 4096 bytes at offset 0" + in + "Input/output error");
    REQUIRE(broken(file, "/dev/null", O_WRONLY, [&] {
              file.read(5, std::span(bytes).first(10));
            }).ends_with("Bad file descriptor"));
  }
}

TEST_CASE("nothing is left of a host file when its process is killed", "[device]") {
  const TempDir dir;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    HostFile file(dir.path(), Bytes{4} << 20);
    const std::vector<std::byte> bytes(4096, std::byte{1});
    char c = 'x';
    while (true) {
      file.write(4096, bytes);
      if (::write(ready[1], &c, 1) != 1) ::_exit(1);
    }
  }
  char c = 0;
  REQUIRE(::read(ready[0], &c, 1) == 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  REQUIRE(fs::is_empty(dir.path()));
}

}  // namespace
}  // namespace dstrain
