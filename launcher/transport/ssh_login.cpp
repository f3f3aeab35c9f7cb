#include "launcher/transport/ssh_login.h"

#include <fmt/format.h>

#include <cstdint>

#include "launcher/protocol/protocol.h"

namespace dstrain::launcher {
namespace {

constexpr std::size_t kLargestHello = 64 << 10;

}  // namespace

FirstFrame first_frame(std::string_view bytes, bool ended) {
  if (bytes.size() < kFrameHeader) return ended ? FirstFrame::none : FirstFrame::unfinished;
  const bool hello = static_cast<FrameType>(bytes[4]) == FrameType::hello &&
                     frame_bytes(bytes) <= kFrameHeader + kLargestHello;
  return hello ? FirstFrame::hello : FirstFrame::none;
}

std::vector<std::string> ssh_words(std::chrono::seconds connect_timeout,
                                   const std::filesystem::path& config) {
  std::vector<std::string> words = {"ssh", "-T", "-x", "-a"};
  // Commands, forwardings and shared connections of the user's configuration would take our
  // streams and ports; where and how to log in stays as it says.
  for (const std::string& option :
       {std::string("BatchMode=yes"), fmt::format("ConnectTimeout={}", connect_timeout.count()),
        std::string("ConnectionAttempts=1"), std::string("ServerAliveInterval=2"),
        std::string("ServerAliveCountMax=3"), std::string("ControlMaster=no"),
        std::string("ControlPath=none"), std::string("ClearAllForwardings=yes"),
        std::string("RemoteCommand=none"), std::string("LogLevel=INFO")}) {
    words.insert(words.end(), {"-o", option});
  }
  if (!config.empty()) words.insert(words.end(), {"-F", config.string()});
  return words;
}

std::vector<std::string> ssh_destination(const Host& host) {
  std::vector<std::string> words;
  if (host.port != 0) words.insert(words.end(), {"-p", std::to_string(host.port)});
  if (!host.user.empty()) words.insert(words.end(), {"-l", host.user});
  words.insert(words.end(), {"--", host.name});
  return words;
}

}  // namespace dstrain::launcher
