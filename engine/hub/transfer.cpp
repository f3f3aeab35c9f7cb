#include "engine/hub/transfer.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/make_folder.h"
#include "engine/base/output_file.h"
#include "engine/hub/http.h"
#include "engine/hub/transfer_lock.h"

namespace dstrain::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBufferBytes = std::size_t{256} << 10;

/// The file while it grows, with the digest of what it holds.
class Part {
 public:
  Part(const Remote& remote, fs::path path, const Moved& moved)
      : remote_(remote),
        path_(std::move(path)),
        moved_(moved),
        fd_(open_output_file(path_, {.old = OldContent::edit, .also_read = true})),
        digest_(fresh_digest()) {
    hash_what_is_there();
  }

  [[nodiscard]] std::int64_t size() const { return size_; }

  void add(std::string_view bytes) {
    if (size_ + static_cast<std::int64_t>(bytes.size()) > remote_.size) {
      start_again();
      throw Error(ErrorKind::data, fmt::format("{}: {} sends more than its {} bytes", remote_.name,
                                               remote_.url.host, remote_.size));
    }
    write_fully(fd_.get(), bytes, path_);
    digest_.add(bytes);
    size_ += static_cast<std::int64_t>(bytes.size());
    moved_(static_cast<std::int64_t>(bytes.size()));
  }

  void start_again() {
    if (::ftruncate(fd_.get(), 0) != 0 || ::lseek(fd_.get(), 0, SEEK_SET) != 0)
      fail_output_file("empty", path_, errno);
    moved_(-size_);
    size_ = 0;
    digest_ = fresh_digest();
  }

  /// Its digest, once it is whole and on the disk.
  std::string finish() {
    if (::fsync(fd_.get()) != 0) fail_output_file("flush", path_, errno);
    return digest_.hex();
  }

 private:
  [[nodiscard]] Digest fresh_digest() const {
    return remote_.git ? Digest::of_git_blob(remote_.size) : Digest(remote_.hash);
  }

  void hash_what_is_there() {
    std::vector<char> buffer(kBufferBytes);
    while (true) {
      const auto got = ::read(fd_.get(), buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_output_file("read", path_, errno);
      if (got == 0) break;
      size_ += got;
      if (size_ > remote_.size) break;
      digest_.add({buffer.data(), static_cast<std::size_t>(got)});
    }
    if (size_ > remote_.size) {
      size_ = 0;
      return start_again();
    }
    moved_(size_);
  }

  const Remote& remote_;
  fs::path path_;
  const Moved& moved_;
  UniqueFd fd_;
  Digest digest_;
  std::int64_t size_ = 0;
};

/// Whether the body goes on where the part ends. False: the part is to be emptied, as the body
/// begins with the first byte, or the server has no such place.
bool goes_on(const Remote& remote, const Part& part, const HttpResponse& response,
             const std::function<void(int)>& refuse) {
  const int status = response.status();
  if (status == 416) return false;
  if (status != 200 && status != 206) refuse(status);
  if (status == 200) {
    const auto length = response.head().content_length();
    if (length && *length != remote.size)
      throw Error(ErrorKind::data,
                  fmt::format("{}: {} sends {} bytes, {} are expected", remote.name,
                              response.url().host, *length, remote.size));
    return part.size() == 0;
  }
  const auto range = response.head().find("content-range");
  const auto said = range ? parse_content_range(*range) : std::nullopt;
  if (!said || said->first != part.size() || (said->size >= 0 && said->size != remote.size))
    throw Error(ErrorKind::data, fmt::format("{}: {} sends another part than was asked for",
                                             remote.name, response.url().host));
  return true;
}

/// Asks for what the part lacks until it is whole.
void fill(const Remote& remote, Part& part, const std::function<void(int)>& refuse) {
  constexpr int kMaxCuts = 5;  // without a byte that is new
  std::int64_t best = part.size();
  std::vector<char> buffer(kBufferBytes);
  for (int cuts = 0; part.size() < remote.size;) {
    const auto response = http_get({.url = remote.url, .token = remote.token, .from = part.size()});
    if (!goes_on(remote, part, *response, refuse)) {
      part.start_again();
      if (response->status() == 416) {
        if (++cuts > kMaxCuts) refuse(416);
        continue;
      }
    }
    try {
      while (const std::size_t got = response->read(buffer)) part.add({buffer.data(), got});
      if (part.size() < remote.size)
        throw Error(ErrorKind::again, fmt::format("{} cut {}", response->url().host, remote.name));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::again) throw;
      cuts = part.size() > best ? 0 : cuts + 1;
      best = std::max(best, part.size());
      if (cuts > kMaxCuts) throw Error(ErrorKind::hosts, error.what(), error.hint());
      pause_before_retry(cuts, cuts == 0 ? std::optional<std::string>("0") : std::nullopt);
    }
  }
}

bool is_whole(const fs::path& path, std::int64_t size) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size == size;
}

}  // namespace

fs::path part_path(const fs::path& path) {
  return path.parent_path() / fmt::format(".{}.dstrain.incomplete", path.filename().string());
}

void bring(const Remote& remote, const fs::path& path, const fs::path& lock, const Moved& moved,
           const std::function<void(int status)>& refuse) {
  const fs::path part_file = part_path(path);
  const auto there = [&] { return is_whole(path, remote.size); };
  make_folder(path.parent_path());
  std::string wrong;
  while (true) {
    const TransferLock held(lock, part_file, there);
    if (!held.holds()) return moved(remote.size);
    Part part(remote, part_file, moved);
    fill(remote, part, refuse);
    const std::string digest = part.finish();
    if (!held.is_still_ours()) {  // another may be writing to it
      moved(-remote.size);
      continue;
    }
    if (digest == remote.digest) {
      if (::rename(part_file.c_str(), path.c_str()) != 0) fail_output_file("rename", path, errno);
      return sync_directory(path.parent_path());
    }
    (void)::unlink(part_file.c_str());
    moved(-remote.size);
    if (!wrong.empty())
      throw Error(
          ErrorKind::data,
          fmt::format("{}: what {} sends is not what was promised, twice: its {} is {}, "
                      "{} is expected",
                      remote.name, remote.url.host, title(remote.hash), digest, remote.digest),
          "nothing of it was kept; a proxy or mirror may change files on the way");
    wrong = digest;
  }
}

}  // namespace dstrain::hub
