#include "engine/metrics/wandb_sync.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/file.h"
#include "engine/base/redact.h"
#include "engine/base/spawn.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLook{50};
constexpr std::uint64_t kMaxNetrcBytes = std::uint64_t{1} << 20;

std::string from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

bool in_path(std::string_view program) {
  const std::string path = from_environment("PATH");
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    if (end > at && ::access((fs::path(path.substr(at, end - at)) / program).c_str(), X_OK) == 0)
      return true;
    at = end + 1;
  }
  return false;
}

/// Where `wandb login` writes the key; empty when there is no such file.
std::string netrc() {
  std::string file = from_environment("NETRC");
  if (file.empty()) file = from_environment("HOME") + "/.netrc";
  try {
    return read_file(file, kMaxNetrcBytes);
  } catch (const std::exception&) {
    return "";
  }
}

bool has_key() {
  if (!from_environment("WANDB_API_KEY").empty()) return true;
  std::string host = from_environment("WANDB_BASE_URL");
  if (host.empty()) host = "https://api.wandb.ai";
  host = host.substr(host.find("//") == std::string::npos ? 0 : host.find("//") + 2);
  host = host.substr(0, host.find_first_of(":/"));
  return netrc().find("machine " + host) != std::string::npos;
}

/// NAME=VALUE entries: the environment, and the passwords of netrc.
std::vector<std::string> secrets_of_wandb() {
  std::vector<std::string> known = own_environment();
  std::istringstream words(netrc());
  for (std::string word; words >> word;) {
    if (word == "password" && words >> word) known.push_back("NETRC_PASSWORD=" + word);
  }
  return known;
}

}  // namespace

std::string WandbSync::obstacle() {
  if (!in_path("wandb")) return "there is no program wandb in PATH";
  if (!has_key()) return "there is no key; run `wandb login`, or set WANDB_API_KEY";
  return "";
}

WandbSync::WandbSync(fs::path folder)
    : folder_(std::move(folder)), log_(folder_ / "sync.log", Redactor(secrets_of_wandb())) {
  pid_ = spawn_program({"wandb", "beta", "sync", "--live", folder_.string()},
                       {.out = log_.end(), .error = log_.end()});
  if (pid_ < 0) status_ = errno;
  log_.close_end();
}

WandbSync::~WandbSync() {
  if (pid_ < 0) return;
  ::kill(-pid_, SIGKILL);  // it leads its session
  ::waitpid(pid_, nullptr, 0);
}

bool WandbSync::ended() {
  const pid_t pid = ::waitpid(pid_, &status_, WNOHANG);
  if (pid == 0 || (pid < 0 && errno == EINTR)) return false;
  pid_ = -1;
  return true;
}

std::string WandbSync::finish(std::chrono::milliseconds limit) {
  const std::string remedy = fmt::format("; `wandb sync {}` sends it", folder_.string());
  if (pid_ < 0) {
    return fmt::format("wandb cannot be started: {}{}", std::strerror(status_), remedy);
  }
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!ended()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return fmt::format("wandb has not sent all of the run in {:.0f} s{}",
                         std::chrono::duration<double>(limit).count(), remedy);
    }
    std::this_thread::sleep_for(kLook);
  }
  log_.finish();
  if (WIFEXITED(status_) && WEXITSTATUS(status_) == 0) return "";
  return fmt::format("wandb has not sent the run, {} says why{}", (folder_ / "sync.log").string(),
                     remedy);
}

}  // namespace dstrain
