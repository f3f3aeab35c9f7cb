#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/base/error.h"
#include "engine/import/import_state.h"
#include "engine/import/python_value.h"
#include "engine/recipe/text.h"

namespace dstrain::importing {
namespace {

constexpr Table kDeepspeed = Table::deepspeed_command;
constexpr long kMaxSlots = 1024;  // of a host of dstrain's hostfiles
constexpr std::size_t kMaxJobSlots = std::size_t{1} << 20;
constexpr std::size_t kMaxEntries = 4096;  // of a filter
constexpr const char* kLocal = "localhost";

/// A host and the numbers of its slots, which are GPUs.
struct HostSlots {
  std::string name;
  std::vector<long> slots;
};
using HostPool = std::vector<HostSlots>;

HostSlots* host_in(HostPool& pool, std::string_view name) {
  const auto found = std::ranges::find(pool, name, &HostSlots::name);
  return found == pool.end() ? nullptr : &*found;
}

std::vector<std::string> split(std::string_view text, char mark) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(mark, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// "h1 slots=4 ...", as the pattern ^(\S+)\s+slots=(\d+) of its launcher; no slots for other lines.
HostSlots host_line(std::string_view line) {
  constexpr std::string_view kSpaces = " \t\r\f\v";
  const std::size_t name_end = std::min(line.find_first_of(kSpaces), line.size());
  std::size_t at = std::min(line.find_first_not_of(kSpaces, name_end), line.size());
  HostSlots host = {std::string(line.substr(0, name_end)), {}};
  if (!line.substr(at).starts_with("slots=")) return host;
  at += 6;
  const std::size_t end = std::min(line.find_first_not_of("0123456789", at), line.size());
  const std::optional<long> count = python_whole(line.substr(at, end - at));
  if (!count || *count > kMaxSlots) return host;
  host.slots.resize(static_cast<std::size_t>(*count));
  std::iota(host.slots.begin(), host.slots.end(), 0L);
  return host;
}

/// The hosts of a hostfile; none when a mistake was reported.
HostPool hosts_of(Import& import, const Given& file, const std::string& text) {
  HostPool pool;
  std::set<std::string> names;
  std::size_t slots = 0;
  const std::vector<std::string> lines = split(text, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t begin = lines[i].find_first_not_of(" \t\r\f\v");
    if (begin == std::string::npos || lines[i][begin] == '#') continue;
    HostSlots host = host_line(std::string_view(lines[i]).substr(begin));
    slots += host.slots.size();
    if (host.slots.empty() || slots > kMaxJobSlots || !names.insert(host.name).second) {
      import.error(
          {.file = shown(file.node.text, 200),
           .line = static_cast<int>(i + 1),
           .column = static_cast<int>(begin + 1),
           .message = host.slots.empty()
                          ? fmt::format("'{}' is no line of a hostfile", shown(lines[i]))
                      : slots > kMaxJobSlots ? fmt::format("more than {} slots", kMaxJobSlots)
                                             : fmt::format("{} stands twice", shown(host.name)),
           .hint =
               fmt::format("a line is 'host slots=8', 1 to {} slots, each host once", kMaxSlots)});
      return {};
    }
    pool.push_back(std::move(host));
  }
  if (pool.empty())
    import.error(&file, fmt::format("{} names no host", file.value), "a line is 'host slots=8'");
  return pool;
}

/// "a@b:0,2": hosts in order, each once, with the slots that are listed for them; sorted. Nothing
/// when a mistake was reported.
std::optional<HostPool> read_filter(Import& import, const Given& given) {
  HostPool entries;
  for (const std::string& entry : split(given.node.text, '@')) {
    if (entries.size() == kMaxEntries) {
      import.error(&given, fmt::format("more than {} hosts", kMaxEntries), "name fewer");
      return std::nullopt;
    }
    const std::size_t colon = std::min(entry.find(':'), entry.size());
    const std::string name = entry.substr(0, colon);
    HostSlots* host = host_in(entries, name);
    if (host == nullptr) host = &entries.emplace_back(HostSlots{name, {}});
    if (colon == entry.size()) continue;
    for (const std::string& number : split(std::string_view(entry).substr(colon + 1), ',')) {
      const std::optional<long> slot = python_whole(number);
      if (!slot || *slot < 0) {
        import.error(&given, fmt::format("'{}' is no slot of {}", shown(number), shown(name)),
                     "write a@b:0,2: the hosts, and of b two GPUs");
        return std::nullopt;
      }
      host->slots.push_back(*slot);
    }
  }
  for (HostSlots& host : entries) {
    std::ranges::sort(host.slots);
    host.slots.erase(std::unique(host.slots.begin(), host.slots.end()), host.slots.end());
  }
  return entries;
}

std::string filter_text(const HostPool& entries) {
  std::vector<std::string> parts;
  for (const HostSlots& host : entries)
    parts.push_back(host.slots.empty()
                        ? host.name
                        : fmt::format("{}:{}", host.name, fmt::join(host.slots, ",")));
  return fmt::format("{}", fmt::join(parts, "@"));
}

/// Keeps or takes away what a filter names. Empty when a mistake was reported.
HostPool filtered(Import& import, const HostPool& pool, const Given& given, bool keeps,
                  const HostPool& entries) {
  HostPool left = pool;
  for (const HostSlots& entry : entries) {
    HostSlots* host = host_in(left, entry.name);
    const auto unknown = std::ranges::find_if(entry.slots, [&](long slot) {
      return host != nullptr && std::ranges::find(host->slots, slot) == host->slots.end();
    });
    if (host == nullptr || unknown != entry.slots.end()) {
      import.error(&given,
                   host == nullptr ? fmt::format("{} is no host of the hostfile", shown(entry.name))
                                   : fmt::format("{} has no slot {}", shown(entry.name), *unknown),
                   "name hosts and slots of the hostfile");
      return {};
    }
    if (keeps && !entry.slots.empty()) host->slots = entry.slots;
    if (keeps) continue;
    if (entry.slots.empty()) host->slots.clear();
    std::erase_if(host->slots, [&](long slot) {
      return std::ranges::find(entry.slots, slot) != entry.slots.end();
    });
  }
  std::erase_if(left, [&](const HostSlots& host) {
    const bool named = std::ranges::find(entries, host.name, &HostSlots::name) != entries.end();
    return host.slots.empty() || (keeps && !named);
  });
  if (left.empty()) import.error(&given, "leaves no host", "name fewer");
  return left;
}

void count_ranks(Import& import, const HostPool& pool) {
  Import::Ranks& ranks = import.ranks;
  ranks = {.total = 0, .nodes = static_cast<long>(pool.size()), .per_node = 0};
  for (const HostSlots& host : pool) {
    const long slots = static_cast<long>(host.slots.size());
    ranks.total += slots;
    for (long i = 0; i < slots; ++i)
      import.first_slots = import.first_slots && host.slots[static_cast<std::size_t>(i)] == i;
    ranks.per_node = ranks.per_node == 0 ? slots : std::min(ranks.per_node, slots);
  }
}

/// Without a hostfile there is this machine alone, whose GPUs no file counts.
void take_local(Import& import, const Given* include, const Given* exclude, long num_gpus) {
  const Given* given = include != nullptr ? include : exclude;
  if (given == nullptr) {
    if (num_gpus > 0) import.ranks.per_node = num_gpus;
    return;
  }
  const std::optional<HostPool> entries = read_filter(import, *given);
  if (!entries) return;
  for (const HostSlots& entry : *entries) {
    if (entry.name == kLocal) continue;
    return import.error(given,
                        fmt::format("{} is no host: without a hostfile there is localhost alone",
                                    shown(entry.name)),
                        "give --hostfile FILE in the command");
  }
  import.hosts = {include != nullptr ? "--include" : "--exclude", filter_text(*entries)};
  if (include != nullptr)
    import.ranks = {
        .total = 0, .nodes = 1, .per_node = static_cast<long>(entries->front().slots.size())};
}

/// A hostfile that is not here: only slots that the command itself lists can be counted.
void take_unread(Import& import, const Given* hostfile, const Given* include, const Given* exclude,
                 const Given* counts, const Error& why) {
  if (counts != nullptr) {
    return import.error(hostfile,
                        fmt::format("{}, and {} counts by its hosts", why.what(), counts->path),
                        "start the import where the file is");
  }
  import.hosts = {"--hostfile", hostfile->node.text};
  const Given* given = include != nullptr ? include : exclude;
  if (given == nullptr) return;
  const std::optional<HostPool> entries = read_filter(import, *given);
  if (!entries) return;
  import.hosts.insert(import.hosts.end(),
                      {include != nullptr ? "--include" : "--exclude", filter_text(*entries)});
  const bool counted =
      std::ranges::none_of(*entries, [](const HostSlots& entry) { return entry.slots.empty(); });
  if (include != nullptr && counted) count_ranks(import, *entries);
}

/// Hosts by num_nodes and num_gpus (0: all). A rank of theirs takes GPU 0, 1, ... of its host,
/// whatever slots the hostfile has.
void trim_hosts(Import& import, const std::string& file, HostPool pool, long num_nodes,
                long num_gpus) {
  if (num_nodes > 0 && num_nodes < static_cast<long>(pool.size()))
    pool.resize(static_cast<std::size_t>(num_nodes));
  bool as_written = true;
  for (HostSlots& host : pool) {
    if (num_gpus <= 0 || num_gpus == static_cast<long>(host.slots.size())) continue;
    as_written = false;
    host.slots.resize(static_cast<std::size_t>(num_gpus));
  }
  count_ranks(import, pool);
  if (as_written) {
    import.hosts = {"--hostfile", file};  // the first --ranks slots are those of these hosts
    return;
  }
  std::vector<std::string> hosts;
  for (const HostSlots& host : pool) hosts.push_back(fmt::format("{}:{}", host.name, num_gpus));
  import.hosts = {"--hosts", fmt::format("{}", fmt::join(hosts, ","))};
  import.result.notes.push_back(fmt::format(
      "{} ranks on each host, other than {} says: the hosts are named", num_gpus, shown(file)));
}

void take_hosts(Import& import, Given* hostfile, Given* include, Given* exclude, long num_nodes,
                long num_gpus, const Given* counts) {
  if (hostfile == nullptr) return take_local(import, include, exclude, num_gpus);
  std::string text;
  try {
    text = import.options().open(hostfile->node.text);
  } catch (const Error& error) {
    return take_unread(import, hostfile, include, exclude, counts, error);
  }
  if (first_invalid_utf8(text) != std::string::npos)
    return import.error(hostfile, fmt::format("{} is no text in UTF-8", hostfile->value),
                        "a line is 'host slots=8'");
  HostPool pool = hosts_of(import, *hostfile, text);
  if (pool.empty()) return;
  const Given* given = include != nullptr ? include : exclude;
  if (given == nullptr)
    return trim_hosts(import, hostfile->node.text, std::move(pool), num_nodes, num_gpus);
  const std::optional<HostPool> entries = read_filter(import, *given);
  if (!entries) return;
  pool = filtered(import, pool, *given, include != nullptr, *entries);
  if (pool.empty()) return;
  count_ranks(import, pool);
  import.hosts = {"--hostfile", hostfile->node.text, include != nullptr ? "--include" : "--exclude",
                  filter_text(*entries)};
}

/// The key where it is given and says something.
Given* said(Import& import, std::string_view path) {
  Given* given = import.find(kDeepspeed, path);
  return given != nullptr && !given->node.text.empty() ? given : nullptr;
}

}  // namespace

void take_deepspeed_hosts(Import& import, Given* hostfile, Given* include, Given* exclude,
                          long num_gpus) {
  take_hosts(import, hostfile, include, exclude, 0, num_gpus, hostfile);
}

void take_deepspeed_ranks(Import& import) {
  if (!import.has(kDeepspeed) && !import.visible_devices) return;
  Given* hostfile = said(import, "hostfile");
  Given* include = said(import, "include");
  Given* exclude = said(import, "exclude");
  Given* gpus = said(import, "num_gpus");
  if (gpus == nullptr) gpus = said(import, "num_accelerators");
  Given* nodes = said(import, "num_nodes");
  const auto count = [](const Given* given) {
    return given == nullptr ? -1 : std::atol(given->node.text.c_str());
  };
  if (count(gpus) > kMaxSlots)
    return import.error(gpus, fmt::format("{} ranks on a host", gpus->value),
                        fmt::format("use 1 to {}", kMaxSlots));
  const Given* counts = count(nodes) >= 0 ? nodes : count(gpus) >= 0 ? gpus : nullptr;
  const Given* filter = include != nullptr ? include : exclude;
  if (include != nullptr && exclude != nullptr)
    return import.error(exclude, "beside --include, which DeepSpeed refuses", "give one of them");
  if (counts != nullptr && filter != nullptr)
    return import.error(counts, fmt::format("beside --{}, which DeepSpeed refuses", filter->path),
                        "give one of them");
  if (import.has(Table::sbatch)) {  // Slurm names the hosts
    import.outcome(hostfile, Fate::no_effect, "Slurm names the hosts");
    import.ranks.nodes = std::max(0L, count(nodes));
    import.ranks.per_node = std::max(0L, count(gpus));
    return;
  }
  if (hostfile == nullptr && count(nodes) > 1)
    return import.error(nodes, fmt::format("{} nodes, but no hostfile names them", nodes->value),
                        "give --hostfile FILE in the command");
  Given visible;
  const bool has_visible = import.visible_devices && !import.visible_devices->empty();
  if (has_visible && hostfile == nullptr && filter == nullptr && count(nodes) <= 1 &&
      count(gpus) <= 0) {
    if (counts != nullptr)
      return import.error(counts, "beside CUDA_VISIBLE_DEVICES, which DeepSpeed refuses",
                          "give one of them");
    visible = {.path = "CUDA_VISIBLE_DEVICES", .file = "--command"};
    visible.node = {Node::Kind::scalar, Place{},
                    fmt::format("{}:{}", kLocal, *import.visible_devices)};
    include = &visible;
  } else if (has_visible) {
    import.result.notes.emplace_back(
        "CUDA_VISIBLE_DEVICES has no effect: deepspeed sets it by hosts and slots");
  }
  take_hosts(import, hostfile, include, exclude, std::max(0L, count(nodes)),
             std::max(0L, count(gpus)), count(nodes) > 0 || count(gpus) > 0 ? counts : nullptr);
}

}  // namespace dstrain::importing
