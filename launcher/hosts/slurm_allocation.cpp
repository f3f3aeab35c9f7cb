#include "launcher/hosts/slurm_allocation.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "engine/base/error.h"
#include "launcher/hosts/host_list.h"
#include "launcher/hosts/host_text.h"

namespace dstrain::launcher {
namespace {

constexpr int kMaxSlurmTasks = 1024;

/// Slurm's variables by name, with their values checked.
class SlurmVariables {
 public:
  explicit SlurmVariables(const Variables& variables) : variables_(variables) {}

  [[nodiscard]] std::optional<std::string> find(const char* name) const {
    const char* value = variables_(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  }

  /// What parsing says about the value, with the variable's name before it.
  template <class Parse>
  [[nodiscard]] auto parse(const char* name, const std::string& value, const Parse& parser) const {
    try {
      return parser(value);
    } catch (const Error& error) {
      throw Error(ErrorKind::usage, fmt::format("{}: {}", name, error.what()), kHint);
    }
  }

  [[nodiscard]] std::optional<int> number(const char* name) const {
    const auto value = find(name);
    if (!value) return std::nullopt;
    const auto number = read_count(*value, 0, kMax);
    if (!number) fail(fmt::format("{}={} is no count", name, in_quotes(*value)));
    return number;
  }

  /// "2(x3),1": one count for each node.
  [[nodiscard]] std::optional<std::vector<int>> counts(const char* name,
                                                       std::size_t num_nodes) const {
    const auto value = find(name);
    if (!value) return std::nullopt;
    auto counts = parse(name, *value, [](const std::string& v) { return expand_counts(v); });
    if (counts.size() != num_nodes) {
      fail(fmt::format("{}={} speaks of {} nodes, SLURM_JOB_NODELIST of {}", name,
                       in_quotes(*value), counts.size(), num_nodes));
    }
    return counts;
  }

  /// "8", "h100:8" or "h100:4,v100:4": how many in all.
  [[nodiscard]] std::optional<int> gpus(const char* name) const {
    const auto value = find(name);
    if (!value) return std::nullopt;
    int sum = 0;
    std::string_view rest = *value;
    while (true) {
      const auto comma = rest.find(',');
      const std::string_view entry = rest.substr(0, comma);
      const auto count = read_count(entry.substr(entry.rfind(':') + 1), 0, kMax);
      if (!count) fail(fmt::format("{}={} is no count of GPUs", name, in_quotes(*value)));
      sum = std::min(sum + *count, kMax);
      if (comma == std::string_view::npos) return sum;
      rest.remove_prefix(comma + 1);
    }
  }

  [[noreturn]] static void fail(const std::string& text, const std::string& hint = kHint) {
    throw Error(ErrorKind::usage, text, hint);
  }

 private:
  static constexpr int kMax = 1 << 24;
  static constexpr const char* kHint =
      "Slurm sets these variables; start from the job's own shell or script, or use --hosts";

  const Variables& variables_;
};

/// GPUs of each node, and the variable that says so.
struct GpuCounts {
  std::vector<int> per_node;
  std::string source;
};

/// Slurm says the number of GPUs of a node in different variables, after the option that asked for
/// them. First come those that speak of every node.
/// 1. SLURM_GPUS_PER_NODE (--gpus-per-node): of every node.
/// 2. SLURM_GPUS_PER_TASK (--gpus-per-task) with SLURM_TASKS_PER_NODE: differs from node to node.
/// 3. SLURM_GPUS (--gpus): the sum over the nodes, whose parts are known for one node, for two with
///    4, and where 4 is an equal share; any other division must be asked for by node.
/// 4. SLURM_GPUS_ON_NODE (set in batch scripts alone, by --gres and --exclusive also): of the first
///    node, and --gres gives every node the same.
std::optional<GpuCounts> count_gpus(const SlurmVariables& slurm, std::size_t num_nodes) {
  if (const auto count = slurm.gpus("SLURM_GPUS_PER_NODE")) {
    return GpuCounts{std::vector<int>(num_nodes, *count), "SLURM_GPUS_PER_NODE"};
  }
  const auto per_task = slurm.gpus("SLURM_GPUS_PER_TASK");
  if (auto tasks = slurm.counts("SLURM_TASKS_PER_NODE", num_nodes); per_task && tasks) {
    for (int& count : *tasks)
      count = std::min(count, kMaxSlurmTasks + 1) * std::min(*per_task, kMaxSlurmTasks + 1);
    return GpuCounts{*tasks, "SLURM_GPUS_PER_TASK"};
  }
  const auto here = slurm.gpus("SLURM_GPUS_ON_NODE");
  if (const auto sum = slurm.gpus("SLURM_GPUS")) {
    const auto nodes = static_cast<int>(num_nodes);
    std::vector<int> counts(num_nodes, here.value_or(0));
    if (nodes == 1) {
      counts[0] = *sum;
    } else if (here && nodes == 2 && *here <= *sum) {
      counts[1] = *sum - *here;
    } else if (!here || *sum % nodes != 0 || *here != *sum / nodes) {
      SlurmVariables::fail(fmt::format("SLURM_GPUS={}: how Slurm has divided them between {} nodes "
                                       "is not said",
                                       *sum, nodes),
                           "ask Slurm with --gpus-per-node=N instead of --gpus");
    }
    return GpuCounts{counts, "SLURM_GPUS"};
  }
  if (here) return GpuCounts{std::vector<int>(num_nodes, *here), "SLURM_GPUS_ON_NODE"};
  return std::nullopt;
}

/// Ranks of each node on the CPU: the tasks that Slurm was asked for. Without such a wish
/// SLURM_TASKS_PER_NODE counts cores, and a node without GPUs takes one rank, as this machine does.
std::vector<int> count_tasks(const SlurmVariables& slurm, std::size_t num_nodes) {
  if (slurm.find("SLURM_NTASKS") || slurm.find("SLURM_NTASKS_PER_NODE")) {
    if (auto tasks = slurm.counts("SLURM_TASKS_PER_NODE", num_nodes)) return *tasks;
  }
  return std::vector<int>(num_nodes, slurm.number("SLURM_NTASKS_PER_NODE").value_or(1));
}

void check_visible(const GpuCounts& gpus, const Variables& variables) {
  const bool any =
      std::any_of(gpus.per_node.begin(), gpus.per_node.end(), [](int count) { return count > 0; });
  const char* visible = variables("CUDA_VISIBLE_DEVICES");
  if (!any || visible == nullptr || *visible != '\0') return;
  throw Error(ErrorKind::usage,
              fmt::format("CUDA_VISIBLE_DEVICES is set but empty: no rank would see the GPUs that "
                          "{} gives the job",
                          gpus.source),
              "if Slurm has emptied it, gres.conf must name character devices, e.g. "
              "File=/dev/nvidia[0-7] (slurm/README.md); otherwise unset it, or take a recipe for "
              "the CPU");
}

}  // namespace

bool in_slurm_allocation(const Variables& variables) {
  // salloc may open its shell in a step of its own (LaunchParameters=use_interactive_step), which
  // has this number.
  constexpr std::string_view kInteractive = "4294967290";
  const char* step = variables("SLURM_STEP_ID");
  return variables("SLURM_JOB_ID") != nullptr && (step == nullptr || step == kInteractive);
}

Allocation allocate_slurm(bool cpu_ranks, const Variables& variables) {
  const SlurmVariables slurm(variables);
  const auto list = slurm.find("SLURM_JOB_NODELIST");
  if (!list) SlurmVariables::fail("SLURM_JOB_ID is set, but SLURM_JOB_NODELIST is not");
  const std::vector<std::string> names =
      slurm.parse("SLURM_JOB_NODELIST", *list,
                  [](const std::string& value) { return expand_node_list(value); });
  Allocation allocation;
  const auto gpus = cpu_ranks ? std::nullopt : count_gpus(slurm, names.size());
  if (gpus) check_visible(*gpus, variables);
  const std::vector<int> tasks = count_tasks(slurm, names.size());
  const auto cores = slurm.counts("SLURM_JOB_CPUS_PER_NODE", names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    Host host{.name = names[i], .address = {}, .reach = Reach::slurm};
    host.gpus = gpus ? gpus->per_node[i] : 0;
    host.slots = host.gpus > 0 ? host.gpus : tasks[i];
    host.cores = cores ? std::max(1, (*cores)[i]) : 1;
    if (host.slots < 1 || host.slots > kMaxSlurmTasks) {
      SlurmVariables::fail(fmt::format("node {} would get {} ranks; a host takes 1 to {}",
                                       host.name, host.slots, kMaxSlurmTasks));
    }
    allocation.hosts.push_back(std::move(host));
  }
  const auto asked = slurm.number("SLURM_NTASKS_PER_NODE");
  if (gpus && asked && *asked > 1 && *asked != allocation.hosts.front().gpus) {
    allocation.remarks.push_back(
        fmt::format("SLURM_NTASKS_PER_NODE={}: there is one rank for each of the {} GPUs of a node "
                    "nevertheless",
                    *asked, allocation.hosts.front().gpus));
  }
  if (!gpus && !cpu_ranks && !slurm.find("SLURM_CPUS_ON_NODE")) {
    allocation.remarks.push_back(
        "Slurm's variables tell of no GPUs: the ranks run on CPU; salloc tells of those that were "
        "asked for with --gpus-per-node, not with --gres");
  }
  return allocation;
}

}  // namespace dstrain::launcher
