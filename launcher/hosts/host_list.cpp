#include "launcher/hosts/host_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/recipe/text.h"
#include "launcher/hosts/host_text.h"

namespace dstrain::launcher {
namespace {

constexpr int kMaxSlots = 1024;
constexpr int kMaxPorts = 65535;
constexpr std::size_t kMaxUserBytes = 64;
constexpr const char* kNoCount = "say how many ranks it takes, e.g. ";

/// "[user@]host".
Host read_host(Word word, const std::string& this_host) {
  Host host;
  if (const auto end = word.text.find('@'); end != std::string_view::npos) {
    const std::string_view user = word.text.substr(0, end);
    if (user.empty() || user.size() > kMaxUserBytes || user.front() == '-' ||
        !std::all_of(user.begin(), user.end(), is_name_character)) {
      throw LineError{word.at, fmt::format("{} is no user name", in_quotes(user))};
    }
    host.user = user;
    word = word.from(end + 1);
  }
  host.name = read_name(word);
  // Another user, like another port, asks for ssh even to this machine.
  host.reach = host.user.empty() && is_this_machine(key_of(host.name), this_host) ? Reach::local
                                                                                  : Reach::ssh;
  return host;
}

int read_slots(Word word) {
  const std::optional<int> slots = read_count(word.text, 1, kMaxSlots);
  if (!slots) {
    throw LineError{word.at, fmt::format("{} is no number of ranks; a host takes 1 to {}",
                                         in_quotes(word.text), kMaxSlots)};
  }
  return *slots;
}

void read_slots_field(Word word, Host& host) {
  const auto equals = word.text.find('=');
  const std::string_view key = word.text.substr(0, equals);
  if (equals == std::string_view::npos || (key != "slots" && key != "port" && key != "gpus")) {
    throw LineError{word.at, fmt::format("{}: after the host stand slots=, port= and gpus=, "
                                         "without blanks around '='",
                                         in_quotes(word.text))};
  }
  const Word value = word.from(equals + 1);
  const auto once = [&](bool seen) {
    if (seen) throw LineError{word.at, fmt::format("{}= stands twice", key)};
  };
  if (key == "slots") {
    once(host.slots != 0);
    host.slots = read_slots(value);
  } else if (key == "port") {
    once(host.port != 0);
    const std::optional<int> port = read_count(value.text, 1, kMaxPorts);
    if (!port) {
      throw LineError{value.at, fmt::format("{} is no port; ports are 1 to {}",
                                            in_quotes(value.text), kMaxPorts)};
    }
    host.port = *port;
    host.reach = Reach::ssh;
  } else {
    once(!host.devices.empty());
    host.devices = read_devices(value);
    host.gpus = static_cast<int>(host.devices.size());
  }
}

/// A line of a hostfile without its comment; nothing when it is blank. `bare`: of a list of names,
/// where each line is a slot.
std::optional<Host> read_host_line(Word line, const std::string& this_host, bool bare) {
  check_bytes(line);
  line = line.to(line.text.find('#'));
  const Word first = next_word(line);
  if (first.text.empty()) return std::nullopt;
  if (const auto colon = first.text.find(':');
      first.text.front() != '-' && colon != std::string_view::npos &&
      first.text.find_first_of(":[]", colon + 1) == std::string_view::npos) {
    throw LineError{first.at + colon, fmt::format("{}: a hostfile says slots=N for ranks and "
                                                  "port=N for the port of ssh",
                                                  in_quotes(first.text))};
  }
  Host host = read_host(first, this_host);
  host.slots = 0;
  for (Word word = next_word(line); !word.text.empty(); word = next_word(line)) {
    read_slots_field(word, host);
  }
  if (bare) host.slots = 1;
  if (host.slots == 0) {
    throw LineError{first.at, fmt::format("{}: {}slots=8", shown(host.name), kNoCount)};
  }
  if (host.gpus > 0 && host.slots > host.gpus) {
    throw LineError{first.at, fmt::format("{}: slots={} needs as many GPUs, gpus= names {}",
                                          shown(host.name), host.slots, host.gpus)};
  }
  return host;
}

/// "host:8".
Host read_item(Word item, const std::string& this_host) {
  if (item.text.empty()) throw LineError{item.at, "a host is missing here; write a:8,b:8"};
  check_bytes(item);
  const auto bracket = item.text.rfind(']');
  const auto colon = item.text.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (bracket == std::string_view::npos &&
      std::count(item.text.begin(), item.text.end(), ':') > 1) {
    throw LineError{item.at, fmt::format("{}: one ':' stands between host and ranks; an IPv6 "
                                         "address is written in brackets, [fd00::1]:8",
                                         in_quotes(item.text))};
  }
  Host host = read_host(item.to(colon), this_host);
  if (colon == std::string_view::npos) {
    throw LineError{item.at,
                    fmt::format("{}: {}{}:8", shown(host.name), kNoCount, shown(item.text))};
  }
  host.slots = read_slots(item.from(colon + 1));
  return host;
}

/// Finds a host that was named before, by whatever spelling.
class Seen {
 public:
  explicit Seen(const std::string& this_host) : this_host_(this_host) {}

  /// `place` is where `name` stands, e.g. "on line 3".
  void add(const std::string& name, std::string place, std::size_t at) {
    std::string key = key_of(name);
    if (is_this_machine(key, this_host_)) key.clear();
    const auto [found, is_new] = places_.try_emplace(std::move(key), std::move(place), name);
    if (is_new) return;
    const auto& [first, spelling] = found->second;
    throw LineError{
        at,
        fmt::format("{} stands {} already{}; name a host once, with all its slots", in_quotes(name),
                    first, spelling == name ? "" : fmt::format(" as {}", in_quotes(spelling)))};
  }

 private:
  const std::string& this_host_;
  std::map<std::string, std::pair<std::string, std::string>> places_;
};

/// The hosts of a list of names, in the order in which they first stand there.
class CountedHosts {
 public:
  explicit CountedHosts(const std::string& this_host) : this_host_(this_host) {}

  /// One slot more of this host. LineError, at byte `at`, for another user than before, or too
  /// many.
  void add(Host host, std::size_t at) {
    std::string key = key_of(host.name);
    if (is_this_machine(key, this_host_)) key.clear();
    const auto [found, is_new] = places_.try_emplace(std::move(key), hosts_.size());
    if (is_new) {
      hosts_.push_back(std::move(host));
      return;
    }
    Host& known = hosts_[found->second];
    if (known.user != host.user) {
      throw LineError{at, fmt::format("{} stands above with another user", in_quotes(host.name))};
    }
    if (known.slots == kMaxSlots) {
      throw LineError{at, fmt::format("{} stands more than {} times; a host takes 1 to {} ranks",
                                      in_quotes(host.name), kMaxSlots, kMaxSlots)};
    }
    ++known.slots;
  }
  std::vector<Host> take() { return std::move(hosts_); }

 private:
  const std::string& this_host_;
  std::vector<Host> hosts_;
  std::map<std::string, std::size_t> places_;
};

/// The encoding marks and line ends that other systems leave. Returns the text without its mark.
std::string_view check_encoding(std::string_view text, const std::string& name,
                                LineErrors& complaints) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw Error(ErrorKind::usage, fmt::format("{}:1:1: the file is UTF-16", shown(name)),
                "save it as UTF-8 without a byte order mark");
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    complaints.add(shown(name) + ":1", {},
                   {0,
                    "the file begins with a byte order mark (EF BB BF); save it as UTF-8 "
                    "without one"});
    text.remove_prefix(3);
  }
  if (const auto at = text.find("\r\n"); at != std::string_view::npos) {
    const std::string_view before = text.substr(0, at);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const auto begin = before.rfind('\n') + 1;
    complaints.add(fmt::format("{}:{}", shown(name), line), before.substr(begin),
                   {at - begin,
                    "the line ends as on Windows (CR LF); remove the CRs of the file, "
                    "e.g. sed -i 's/\\r$//'"});
  }
  return text;
}

}  // namespace

bool is_list_of_names(std::string_view text) {
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.substr(0, line.find('#')).find('=') != std::string_view::npos) return false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return true;
}

std::vector<Host> parse_hostfile(std::string_view text, const std::string& name,
                                 const std::string& this_host) {
  if (text.size() > kHostfileLimit) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: {} bytes; a hostfile has at most {}", shown(name), text.size(),
                            kHostfileLimit),
                "is this the right file?");
  }
  LineErrors complaints;
  text = check_encoding(text, name, complaints);
  const bool bare = is_list_of_names(text);
  std::vector<Host> hosts;
  Seen seen(this_host);
  CountedHosts counted(this_host);
  for (std::size_t number = 1; !text.empty() && !complaints.full(); ++number) {
    const auto end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);  // reported once for the file
    try {
      std::optional<Host> host = read_host_line({line}, this_host, bare);
      if (!host) continue;
      const auto at = line.find_first_not_of(" \t");
      if (bare) {
        counted.add(std::move(*host), at);
      } else {
        seen.add(host->name, fmt::format("on line {}", number), at);
        hosts.push_back(std::move(*host));
      }
    } catch (const LineError& complaint) {
      complaints.add(fmt::format("{}:{}", shown(name), number), line, complaint);
    }
  }
  complaints.throw_if_any("a line is 'host slots=8', see hostfiles/README.md");
  if (bare) hosts = counted.take();
  if (hosts.empty()) {
    throw Error(ErrorKind::usage, fmt::format("{}: names no host", shown(name)),
                "a line is 'host slots=8', see hostfiles/README.md");
  }
  return hosts;
}

std::vector<Host> parse_hosts(std::string_view text, const std::string& this_host) {
  if (text.size() > kHostfileLimit) {
    throw Error(ErrorKind::usage, fmt::format("--hosts: {} bytes are too many", text.size()),
                "write the hosts into a file and use --hostfile");
  }
  LineErrors complaints;
  std::vector<Host> hosts;
  Seen seen(this_host);
  for (std::size_t at = 0; at <= text.size() && !complaints.full();) {
    const auto end = std::min(text.find(',', at), text.size());
    Word rest{text.substr(at, end - at), at};
    try {
      const Word word = next_word(rest);
      if (const Word more = next_word(rest); !more.text.empty()) {
        throw LineError{more.at, "a ',' stands between two hosts"};
      }
      Host host = read_item(word, this_host);
      seen.add(host.name, fmt::format("at column {}", word.at + 1), word.at);
      hosts.push_back(std::move(host));
    } catch (const LineError& complaint) {
      complaints.add("--hosts", text, complaint);
    }
    at = end + 1;
  }
  complaints.throw_if_any("write --hosts a:8,b:8");
  return hosts;
}

}  // namespace dstrain::launcher
