#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <optional>

#include "engine/import/import_state.h"
#include "engine/recipe/text.h"

namespace dstrain::importing {
namespace {

constexpr long kMax = 1 << 20;

/// A count as sbatch takes it: digits, above 0.
std::optional<long> count_of(std::string_view text) {
  const bool digits = !text.empty() && text.size() < 8 &&
                      std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return std::nullopt;
  const long count = std::stol(std::string(text));
  return count >= 1 && count <= kMax ? std::optional(count) : std::nullopt;
}

std::vector<std::string_view> parts_of(std::string_view text, char mark) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = text.find(mark);
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parts;
}

/// Works out nodes, tasks and GPUs of the job; what is wrong is reported once.
class RequestReader {
 public:
  explicit RequestReader(Import& import) : import_(import) {}

  BatchRequest read() {
    read_nodes();
    read_tasks();
    read_list("gpus_per_node", false);
    read_list("gres", true);
    read_total();
    read_per_task();
    if (const Given* cpus = find("cpus_per_task")) request_.cpus_per_task = count(cpus);
    return request_;
  }

 private:
  Given* find(std::string_view name) { return import_.find(Table::sbatch, name); }

  /// 0 after a mistake.
  long count(const Given* given) {
    if (const auto value = count_of(given->node.text)) return *value;
    import_.error(given, fmt::format("{} is no number from 1", given->value), "correct the value");
    return 0;
  }

  void read_nodes() {
    if (const Given* given = find("nodes")) {
      const auto ends = parts_of(given->node.text, '-');
      if (count_of(ends.front()) && (ends.size() == 1 || (ends.size() == 2 && ends[0] == ends[1])))
        request_.nodes = *count_of(ends.front());
      else
        import_.error(given, fmt::format("{} is not one number of nodes", given->value),
                      "write the number that the training had");
    } else if (const Given* hosts = find("nodelist")) {
      import_.error(hosts, "sbatch counts the nodes in it", "say their number, too: --nodes=N");
    }
  }

  void read_tasks() {
    const Given* all = find("ntasks");
    const Given* each = find("ntasks_per_node");
    const long max = each == nullptr ? 0 : count(each);
    request_.tasks = max;
    if (all == nullptr) return;
    const long tasks = count(all);
    if (tasks == 0) return;
    if (request_.nodes == 0 && max > 0) request_.nodes = (tasks + max - 1) / max;
    if (request_.nodes == 0) assume_one_node(all);
    request_.total_tasks = tasks;
    if (tasks % request_.nodes != 0)
      import_.error(all,
                    fmt::format("{} tasks on {} nodes; dstrain starts as many ranks on each node",
                                tasks, request_.nodes),
                    "use a multiple of the nodes, or --ntasks-per-node");
    else if (max > 0 && tasks / request_.nodes > max)
      import_.error(
          all,
          fmt::format("{} tasks on {} nodes are more than {} a node", tasks, request_.nodes, max),
          "correct --ntasks-per-node");
    else
      request_.tasks = tasks / request_.nodes;
  }

  void assume_one_node(const Given* given) {
    request_.nodes = 1;
    import_.result.notes.push_back(
        fmt::format("{} says no --nodes: one node is asked for", given->origin()));
  }

  /// GPUs of a node by one option; all must agree.
  void take_gpus(const Given* given, long gpus, std::string_view type) {
    if (gpus_from_ != nullptr && request_.gpus != gpus) {
      import_.error(given,
                    fmt::format("{} GPUs of a node here, but {} in {}", gpus, request_.gpus,
                                gpus_from_->origin()),
                    "say it once");
      return;
    }
    if (gpus_from_ != nullptr && request_.gpu_type != type)
      import_.error(
          given,
          fmt::format("{} GPUs here, {} in {}", type.empty() ? "any" : type,
                      request_.gpu_type.empty() ? "any" : request_.gpu_type, gpus_from_->origin()),
          "name the type in both, or in none");
    request_.gpus = gpus;
    request_.gpu_type = type;
    gpus_from_ = given;
  }

  struct Gpus {
    long count = 0;
    std::string_view type = {};
  };
  /// "4", "TYPE:4", of --gres also "" and "TYPE"; nothing after a mistake.
  std::optional<Gpus> one_of_list(const Given* given, std::string_view entry, bool may_be_bare) {
    const auto parts = parts_of(entry, ':');
    const std::string_view last = parts.back();
    const bool bare = last.empty() || last[0] < '0' || last[0] > '9';
    if (may_be_bare && bare && parts.size() == 1) return Gpus{1, last};
    const auto number = count_of(last);
    if (number && parts.size() == 1) return Gpus{*number, {}};
    if (number && parts.size() == 2 && !parts[0].empty()) return Gpus{*number, parts[0]};
    import_.error(given, fmt::format("{} is no number of GPUs from 1", given->value),
                  "write N or TYPE:N");
    return std::nullopt;
  }

  /// The sum of a list of entries of one type.
  std::optional<Gpus> sum(const Given* given, const std::vector<std::string_view>& entries,
                          bool may_be_bare) {
    Gpus all;
    for (const std::string_view entry : entries) {
      const auto one = one_of_list(given, entry, may_be_bare);
      if (!one) return std::nullopt;
      if (all.count > 0 && one->type != all.type) {
        import_.error(given, fmt::format("{}: GPUs of two types", given->value),
                      "ask for one type");
        return std::nullopt;
      }
      all = {all.count + one->count, one->type};
    }
    return all;
  }

  void read_list(std::string_view name, bool with_names) {
    const Given* given = find(name);
    if (given == nullptr || (with_names && given->node.text == "none")) return;
    std::vector<std::string_view> gpus;
    for (std::string_view entry : parts_of(given->node.text, ',')) {
      if (with_names) {
        for (const std::string_view prefix : {"gres:", "gres/"})
          if (entry.starts_with(prefix)) entry.remove_prefix(prefix.size());
        const bool is_gpu = entry == "gpu" || entry.starts_with("gpu:");
        if (!is_gpu) {
          request_.other_gres += fmt::format("{}{}", request_.other_gres.empty() ? "" : ",", entry);
          continue;
        }
        entry.remove_prefix(std::min<std::size_t>(4, entry.size()));
      }
      gpus.push_back(entry);
    }
    if (gpus.empty()) return;
    if (const auto all = sum(given, gpus, with_names)) take_gpus(given, all->count, all->type);
  }

  void read_total() {
    const Given* given = find("gpus");
    const Given* per_gpu = find("ntasks_per_gpu");
    if (per_gpu == nullptr) per_gpu = find("ntasks_per_tres");
    long total = 0;
    std::string_view type;
    if (given != nullptr) {
      const auto all = sum(given, parts_of(given->node.text, ','), false);
      if (!all) return;
      total = all->count;
      type = all->type;
    } else if (per_gpu != nullptr && request_.total_tasks > 0) {
      given = per_gpu;  // one task for each
      total = request_.total_tasks;
    } else {
      return;
    }
    if (request_.nodes == 0) assume_one_node(given);
    if (total % request_.nodes != 0)
      import_.error(given,
                    fmt::format("{} GPUs on {} nodes; dstrain starts as many ranks on each node",
                                total, request_.nodes),
                    "use a multiple of the nodes, or --gpus-per-node");
    else
      take_gpus(given, total / request_.nodes, type);
    if (per_gpu != nullptr) request_.tasks = request_.gpus;
  }

  void read_per_task() {
    const Given* given = find("gpus_per_task");
    if (given == nullptr) return;
    const auto each = sum(given, parts_of(given->node.text, ','), false);
    if (!each) return;
    if (request_.tasks == 0)
      import_.error(given, "GPUs of a task, but no number of tasks",
                    "say it: --ntasks-per-node=N, or use --gpus-per-node");
    else
      take_gpus(given, each->count * request_.tasks, each->type);
  }

  Import& import_;
  BatchRequest request_;
  const Given* gpus_from_ = nullptr;
};

/// Chooses between the ranks of the launcher's command and those that the script asks for.
void match_ranks(Import& import, long asked) {
  Import::Ranks& ranks = import.ranks;
  const BatchRequest& job = import.batch;
  const auto differ = [&](long theirs, long ours, const char* what) {
    import.result.notes.push_back(
        fmt::format("the batch script asks for {} {}, the command starts {}: {} are asked for",
                    ours, what, theirs, theirs));
  };
  if (ranks.nodes == 0)
    ranks.nodes = job.nodes;
  else if (job.nodes > 0 && job.nodes != ranks.nodes)
    differ(ranks.nodes, job.nodes, "nodes");
  if (ranks.per_node > 0) {
    const bool matters = job.gpus > 0 || job.tasks > 1;  // one task starts any number
    if (matters && asked > 0 && asked != ranks.per_node)
      differ(ranks.per_node, asked, job.gpus > 0 ? "GPUs of a node" : "tasks of a node");
    return;
  }
  if (job.gpus > 0 && job.tasks > 1 && job.tasks != job.gpus && import.options().ranks == 0) {
    import.error({.file = import.options().sbatch,
                  .message = fmt::format(
                      "{} tasks and {} GPUs on each node; dstrain starts one rank per GPU",
                      job.tasks, job.gpus),
                  .hint = "say how many ranks there were: --ranks N, or the launcher's line by "
                          "--command"});
    return;
  }
  ranks.per_node = asked;
  for (const auto& [table, name] : {std::pair(Table::torchrun_command, "nproc_per_node"),
                                    std::pair(Table::accelerate_command, "num_processes")}) {
    Given* given = import.find(table, name);
    if (given != nullptr && given->node.text.find('$') != std::string::npos)
      import.outcome(given, Fate::no_effect, "no number: as many as the batch script asks for");
  }
}

}  // namespace

void take_sbatch_ranks(Import& import) {
  import.batch = RequestReader(import).read();
  match_ranks(import, import.batch.gpus > 0 ? import.batch.gpus : import.batch.tasks);
}

namespace {

/// CPUs of a node stay the same with one task where there were several, and the other way round.
void cpu_words(Import& import) {
  const BatchRequest& job = import.batch;
  if (job.cpus_per_task == 0 && (job.gpus == 0 || job.tasks <= 1)) return;
  const long cpus = std::max(1L, job.cpus_per_task) * std::max(1L, job.tasks);
  const long tasks = job.gpus > 0 ? 1 : std::max(1L, import.ranks.per_node);
  const long each = (cpus + tasks - 1) / tasks;
  const std::string word = fmt::format("--sbatch=--cpus-per-task={}", each);
  import.result.launch.push_back(word);
  if (Given* given = import.find(Table::sbatch, "cpus_per_task"))
    given->became = fmt::format("{}: {} CPUs of a node", word, each * tasks);
}

/// The time before the limit; the signal is ours.
void signal_words(Import& import) {
  Given* given = import.find(Table::sbatch, "signal");
  if (given == nullptr) return;
  constexpr std::string_view kNames[] = {"HUP",  "INT",  "QUIT", "ABRT", "KILL", "ALRM",
                                         "TERM", "USR1", "USR2", "URG",  "CONT", "STOP",
                                         "TSTP", "TTIN", "TTOU", "XCPU"};
  std::string text = given->node.text;
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  std::string_view rest = text;
  bool of_reservation = false;
  for (int i = 0; i < 2 && !rest.empty() && (rest[0] == 'R' || rest[0] == 'B'); ++i) {
    of_reservation = of_reservation || rest[0] == 'R';
    rest.remove_prefix(1);
  }
  if (rest.starts_with(':')) rest.remove_prefix(1);
  const std::size_t at = std::min(rest.find('@'), rest.size());
  std::string_view name = rest.substr(0, at);
  const std::string_view time = at == rest.size() ? "60" : rest.substr(at + 1);
  if (name.starts_with("SIG")) name.remove_prefix(3);
  const bool known = std::ranges::find(kNames, name) != std::end(kNames) ||
                     count_of(name).value_or(kMax) <= SIGRTMAX;
  const bool seconds = time == "0" || count_of(time).value_or(kMax) <= 65535;
  if (!known || !seconds)
    return import.error(given, fmt::format("{} is not [R][B]:SIGNAL[@SECONDS]", given->value),
                        "correct the value");
  if (time == "120" && !of_reservation)
    return import.outcome(given, Fate::no_effect, "B:USR1@120 already");
  const std::string value = fmt::format("{}B:USR1@{}", of_reservation ? "R" : "", time);
  import.result.launch.push_back("--sbatch=--signal=" + value);
  given->became = "--sbatch=--signal=" + value;
}

/// Whether sbatch takes a time: minutes[:seconds], hours:minutes:seconds, days-hours[:...].
bool is_time(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  if (text == "-1" || text == "INFINITE" || text == "UNLIMITED") return true;
  const auto days = parts_of(text, '-');
  const auto clock = parts_of(days.back(), ':');
  if (days.size() > 2 || clock.size() > 3) return false;
  const auto number = [](std::string_view part) {
    return !part.empty() && part.size() < 10 &&
           std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
  };
  return (days.size() == 1 || number(days[0])) && std::ranges::all_of(clock, number);
}

void time_words(Import& import) {
  Given* given = import.find(Table::sbatch, "time");
  if (given == nullptr) return;
  if (!is_time(given->node.text))
    return import.error(given, fmt::format("{} is no time limit", given->value),
                        "use MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS:MINUTES:SECONDS");
  import.result.launch.push_back("--time=" + given->node.text);
}

/// What has no effect here, but may be a mistake there.
void check_values(Import& import) {
  using Check = bool (*)(std::string_view);
  constexpr std::pair<std::string_view, Check> kChecks[] = {
      {"distribution",
       [](std::string_view text) {
         constexpr std::string_view kWords[] = {"block", "cyclic", "fcyclic",
                                                "*",     "pack",   "nopack"};
         if (text.starts_with("plane=")) return count_of(text.substr(6)).has_value();
         return std::ranges::all_of(parts_of(text, ','), [&](std::string_view part) {
           return std::ranges::all_of(parts_of(part, ':'), [&](std::string_view word) {
             return std::ranges::find(kWords, word) != std::end(kWords);
           });
         });
       }},
      {"gpu_bind",
       [](std::string_view text) {
         if (text.starts_with("verbose,")) text.remove_prefix(8);
         const std::string_view name = text.substr(0, text.find(':'));
         if (name == "closest" || name == "none") return name == text;
         constexpr std::string_view kWords[] = {"map_gpu", "mask_gpu", "per_task", "single"};
         return std::ranges::find(kWords, name) != std::end(kWords) &&
                name.size() + 1 < text.size();
       }},
      {"open_mode",
       [](std::string_view text) { return text.starts_with('a') || text.starts_with('t'); }},
      {"no_kill", [](std::string_view text) {
         return text.empty() || text == "set" || text == "off" || text == "no";
       }}};
  for (const auto& [name, check] : kChecks) {
    const Given* given = import.find(Table::sbatch, name);
    if (given == nullptr) continue;
    std::string text = given->node.text;
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    if (!check(text))
      import.error(given, fmt::format("{} is none of its values here", given->value),
                   "correct the value, or take it out");
  }
}

}  // namespace

void slurm_words(Import& import) {
  std::vector<std::string>& words = import.result.launch;
  Import::Ranks ranks = import.ranks;
  const BatchRequest& job = import.batch;
  words.insert(words.begin(), "--slurm");
  check_values(import);
  time_words(import);
  signal_words(import);
  cpu_words(import);
  if (Given* given = import.find(Table::sbatch, "no_kill")) {
    if (given->node.text.empty() || given->node.text == "set")
      import.outcome(given, Fate::no_effect, "set already");
    else
      pass_to_sbatch(*given, import);
  }
  if (!job.other_gres.empty()) words.push_back("--sbatch=--gres=" + job.other_gres);
  if (ranks.total > 0 && ranks.total % std::max(1L, ranks.nodes) != 0)
    import.error(nullptr, fmt::format("{} ranks on {} nodes", ranks.total, ranks.nodes),
                 "use a multiple of the nodes");
  if (ranks.nodes > 0) words.insert(words.end(), {"--nodes", fmt::format("{}", ranks.nodes)});
  if (ranks.per_node == 0) return;
  const std::string type = job.gpu_type.empty() ? "" : job.gpu_type + ":";
  if (job.gpus > 0)
    words.insert(words.end(), {"--gpus-per-node", fmt::format("{}{}", type, ranks.per_node)});
  else
    words.insert(words.end(), {"--ranks-per-node", fmt::format("{}", ranks.per_node)});
}

void pass_to_sbatch(Given& given, Import& import) {
  std::string name = given.path;
  std::ranges::replace(name, '_', '-');
  const bool bare = given.rule->kind == Kind::flag || given.node.text.empty();
  import.result.launch.push_back(bare ? fmt::format("--sbatch=--{}", name)
                                      : fmt::format("--sbatch=--{}={}", name, given.node.text));
}

}  // namespace dstrain::importing
