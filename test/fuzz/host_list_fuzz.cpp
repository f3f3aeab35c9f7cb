#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/recipe/text.h"
#include "launcher/hosts/host_list.h"

namespace {

using namespace dstrain;
using namespace dstrain::launcher;

constexpr const char* kThisHost = "me.cluster.example";
constexpr std::size_t kMaxMessageBytes = 20 * 512;

void require(bool condition) {
  if (!condition) std::abort();
}

/// What may be said to ssh: no option, nothing that a shell acts upon.
void check_word(std::string_view word, bool may_be_address) {
  require(!word.empty() && word.size() <= 255 && word.front() != '-');
  for (const char c : word) {
    require((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
            c == '.' || c == '_' || c == '-' || (may_be_address && c == ':'));
  }
}

void check_hosts(const std::vector<Host>& hosts) {
  require(!hosts.empty());
  std::set<std::string> names;
  for (const Host& host : hosts) {
    check_word(host.name, true);
    if (!host.user.empty()) check_word(host.user, false);
    require(names.insert(host.name).second);
    require(host.slots >= 1 && host.slots <= 1024);
    require(host.port >= 0 && host.port <= 65535);
    require(host.devices.empty() || host.slots <= static_cast<int>(host.devices.size()));
    require(std::set<int>(host.devices.begin(), host.devices.end()).size() == host.devices.size());
    require(host.reach == Reach::ssh ||
            (host.reach == Reach::local && host.user.empty() && host.port == 0));
  }
}

/// Nothing of the text can drive a terminal, and its length has a limit.
void check_message(const Error& error) {
  require(error.kind() == ErrorKind::usage);
  std::string text = error.what();
  require(!text.empty() && text.size() <= kMaxMessageBytes);
  std::replace(text.begin(), text.end(), '\n', ' ');
  require(is_plain_text(text));
}

std::string print_name(const Host& host) {
  return host.name.find(':') == std::string::npos ? host.name : fmt::format("[{}]", host.name);
}

std::string print(const Host& host) {
  std::string line = host.user.empty() ? "" : host.user + "@";
  line += fmt::format("{} slots={}", print_name(host), host.slots);
  if (host.port != 0) line += fmt::format(" port={}", host.port);
  for (std::size_t i = 0; i < host.devices.size(); ++i) {
    line += fmt::format("{}{}", i == 0 ? " gpus=" : ",", host.devices[i]);
  }
  return line + "\n";
}

std::string print(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts) text += print(host);
  return text;
}

void try_hostfile(std::string_view text) {
  const std::vector<Host> hosts = parse_hostfile(text, "fuzz", kThisHost);
  check_hosts(hosts);
  const std::string printed = print(hosts);
  require(print(parse_hostfile(printed, "printed", kThisHost)) == printed);
}

void try_hosts(std::string_view text) {
  const std::vector<Host> hosts = parse_hosts(text, kThisHost);
  check_hosts(hosts);
  std::string again;
  for (const Host& host : hosts) {
    again += fmt::format("{}{}{}{}:{}", again.empty() ? "" : ",", host.user,
                         host.user.empty() ? "" : "@", print_name(host), host.slots);
  }
  require(print(parse_hosts(again, kThisHost)) == print(hosts));
  require(print(parse_hostfile(print(hosts), "printed", kThisHost)) == print(hosts));
}

/// --include, a newline, --exclude, a newline, a hostfile.
void try_filter(std::string_view text) {
  const auto take_line = [&] {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return line;
  };
  const std::string_view include = take_line();
  const std::string_view exclude = take_line();
  const std::vector<Host> hosts = parse_hostfile(text, "fuzz", kThisHost);
  const std::vector<Host> kept = filter_hosts(hosts, include, exclude);
  check_hosts(kept);
  auto from = hosts.begin();
  for (const Host& host : kept) {
    from = std::find_if(from, hosts.end(), [&](const Host& h) { return h.name == host.name; });
    require(from != hosts.end());
    for (const int device : host.devices) {
      require(from->devices.empty() ? device < from->slots
                                    : std::find(from->devices.begin(), from->devices.end(),
                                                device) != from->devices.end());
    }
    ++from;
  }
  // What is left, when named, is what is left.
  std::string names;
  for (const Host& host : kept) {
    names += (names.empty() ? "" : "@") + print_name(host);
    for (std::size_t i = 0; i < host.devices.size(); ++i) {
      names += fmt::format("{}{}", i == 0 ? ':' : ',', host.devices[i]);
    }
  }
  const std::vector<Host> again = filter_hosts(hosts, names, "");
  require(again.size() == kept.size());
  for (std::size_t i = 0; i < kept.size(); ++i) require(again[i].devices == kept[i].devices);
}

}  // namespace

/// 'f' and a hostfile, 'h' and a text of --hosts, or 'i' and what try_filter says. Each is refused
/// with Error{usage} in words fit to print, or gives hosts that read back as themselves.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] == 'f') try_hostfile(text);
    if (data[0] == 'h') try_hosts(text);
    if (data[0] == 'i') try_filter(text);
  } catch (const Error& error) {
    check_message(error);
  }
  return 0;
}
