#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "engine/base/error.h"
#include "launcher/base/words.h"
#include "launcher/hosts/host_list.h"
#include "launcher/hosts/host_text.h"

namespace dstrain::launcher {
namespace {

constexpr std::size_t kMaxNamed = 8;

/// One entry of a filter: a host of the list, and its GPUs; none means the whole host.
struct Choice {
  std::size_t host = 0;
  std::vector<int> devices;
};

/// GPUs that the host offers by its own account; one per slot while only those are known.
std::vector<int> offered(const Host& host) {
  if (!host.devices.empty()) return host.devices;
  std::vector<int> devices(static_cast<std::size_t>(host.gpus > 0 ? host.gpus : host.slots));
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

bool contains(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

void use_devices(Host& host, std::vector<int> devices) {
  host.devices = std::move(devices);
  host.slots = host.gpus = static_cast<int>(host.devices.size());
}

std::string names_of(const std::vector<Host>& hosts) {
  std::vector<std::string> names;
  for (const Host& host : hosts) {
    if (names.size() == kMaxNamed) {
      return fmt::format("{} and {} more", fmt::join(names, ", "), hosts.size() - kMaxNamed);
    }
    names.push_back(host.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// "b:0,2" or "b".
Choice read_choice(Word entry, const std::vector<Host>& hosts) {
  check_bytes(entry);
  const auto bracket = entry.text.rfind(']');
  const auto colon = entry.text.find(':', bracket == std::string_view::npos ? 0 : bracket);
  const std::string key = key_of(read_name(entry.to(colon)));
  // This machine has several names; the list has one of them.
  const auto found = std::find_if(hosts.begin(), hosts.end(), [&](const Host& host) {
    return key_of(host.name) == key ||
           (host.reach == Reach::local && is_this_machine(key, host.name));
  });
  if (found == hosts.end()) {
    throw LineError{entry.at, fmt::format("{} is none of the hosts {}",
                                          in_quotes(entry.text.substr(0, colon)), names_of(hosts))};
  }
  Choice choice{static_cast<std::size_t>(found - hosts.begin()), {}};
  if (colon == std::string_view::npos) return choice;
  choice.devices = read_devices(entry.from(colon + 1));
  const std::vector<int> known = offered(*found);
  for (const int device : choice.devices) {
    if (!contains(known, device)) {
      throw LineError{entry.at + colon + 1, fmt::format("GPU {} is none of those of {}: {}", device,
                                                        found->name, fold_ranks(known))};
    }
  }
  return choice;
}

/// For each host what `text` says about it.
std::vector<std::optional<Choice>> read_filter(std::string_view text, const char* option,
                                               const std::vector<Host>& hosts) {
  LineErrors complaints;
  std::vector<std::optional<Choice>> choices(hosts.size());
  for (std::size_t at = 0; at <= text.size() && !complaints.full();) {
    const auto end = std::min(text.find('@', at), text.size());
    try {
      const Choice choice = read_choice({text.substr(at, end - at), at}, hosts);
      if (choices[choice.host]) {
        throw LineError{at, fmt::format("{} stands twice; list its GPUs once, {}:0,2",
                                        hosts[choice.host].name, hosts[choice.host].name)};
      }
      choices[choice.host] = choice;
    } catch (const LineError& complaint) {
      complaints.add(option, text, complaint);
    }
    at = end + 1;
  }
  complaints.throw_if_any(fmt::format("write {} a@b:0,2: the hosts, and of b two GPUs", option));
  return choices;
}

std::vector<Host> include_hosts(const std::vector<Host>& hosts, std::string_view text) {
  const auto choices = read_filter(text, "--include", hosts);
  std::vector<Host> kept;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!choices[i]) continue;
    kept.push_back(hosts[i]);
    if (!choices[i]->devices.empty()) use_devices(kept.back(), choices[i]->devices);
  }
  return kept;
}

std::vector<Host> exclude_hosts(const std::vector<Host>& hosts, std::string_view text) {
  const auto choices = read_filter(text, "--exclude", hosts);
  std::vector<Host> kept;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!choices[i]) {
      kept.push_back(hosts[i]);
    } else if (!choices[i]->devices.empty()) {
      std::vector<int> left = offered(hosts[i]);
      std::erase_if(left, [&](int device) { return contains(choices[i]->devices, device); });
      if (left.empty()) continue;
      kept.push_back(hosts[i]);
      use_devices(kept.back(), std::move(left));
    }
  }
  return kept;
}

}  // namespace

std::vector<Host> filter_hosts(std::vector<Host> hosts, std::string_view include,
                               std::string_view exclude) {
  if (!include.empty()) hosts = include_hosts(hosts, include);
  if (!exclude.empty()) hosts = exclude_hosts(hosts, exclude);
  if (hosts.empty()) throw Error(ErrorKind::usage, "--exclude leaves no host");
  return hosts;
}

}  // namespace dstrain::launcher
