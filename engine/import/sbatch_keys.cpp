#include "engine/import/key_rule.h"

namespace dstrain::importing {
namespace {

using enum Fate;
using enum Kind;

/// The option goes to sbatch as it is.
constexpr KeyRule passed(std::string_view name, Kind kind = text, std::string_view reason = "") {
  return {name, kind, translated, "--sbatch", reason, "", refused, pass_to_sbatch};
}
constexpr KeyRule without_effect(std::string_view name, Kind kind, std::string_view reason) {
  return {name, kind, no_effect, "", reason};
}
constexpr KeyRule unwanted(std::string_view name, Kind kind, std::string_view reason) {
  return {name, kind, refused, "", reason};
}

constexpr std::string_view kTasks = "one task per node starts the ranks";
constexpr std::string_view kGpus = "one rank per GPU; all that ask for GPUs must agree";
constexpr std::string_view kFolder = "in the folder that --slurm names";
constexpr std::string_view kAnswer = "dstrain launch --slurm prints what it did";
constexpr std::string_view kPlaces = "say --ntasks-per-node";
constexpr std::string_view kContainer = "the program must be seen in it; start it by hand";

/// #SBATCH lines, all options of sbatch 22.05 to 26.05; short options have the names of the long
/// ones. A flag takes no value.
constexpr KeyRule kSbatchOptions[] = {
    {"nodes", text, same, "--nodes", "one number"},
    {"ntasks", text, translated, "--ranks-per-node", kTasks},
    {"ntasks_per_node", text, translated, "--ranks-per-node",
     "where no GPUs are asked for; --tasks-per-node is the same"},
    {"tasks_per_node", text, translated, "--ranks-per-node", "as ntasks_per_node"},
    {"ntasks_per_gpu", text, no_effect, "", "one rank per GPU", "1"},
    {"ntasks_per_tres", text, no_effect, "", "one rank per GPU", "1"},
    unwanted("ntasks_per_core", text, kPlaces),
    unwanted("ntasks_per_socket", text, kPlaces),
    {"gpus_per_node", text, same, "--gpus-per-node", kGpus},
    {"gres", text, translated, "--gpus-per-node", "gpu[:TYPE][:N]; others: --sbatch=--gres"},
    {"gpus", text, translated, "--gpus-per-node", "divided by nodes"},
    {"gpus_per_task", text, translated, "--gpus-per-node", "times the tasks of a node"},
    unwanted("gpus_per_socket", text, "say --gpus-per-node"),
    unwanted("tres_per_task", text, "say --gpus-per-task and --cpus-per-task"),
    {"cpus_per_task", text, translated, "--sbatch=--cpus-per-task", "as many CPUs on each node"},
    {"time", text, same, "--time"},
    {"partition", text, same, "--partition", "", "", refused, copy_option},
    {"account", text, same, "--account", "", "", refused, copy_option},
    {"qos", text, same, "--qos", "", "", refused, copy_option},
    {"signal", text, translated, "--sbatch=--signal", "the time; USR1 to the script saves"},
    without_effect("job_name", text, "the recipe's name"),
    without_effect("output", text, kFolder),
    without_effect("error", text, kFolder),
    without_effect("open_mode", text, "appends already"),
    without_effect("input", text, "nothing is read"),
    without_effect("chdir", text, "where dstrain launch is called"),
    without_effect("distribution", text, kTasks),
    without_effect("gpu_bind", text, "ranks are bound to their GPU"),
    without_effect("requeue", flag, "requeued already"),
    {"no_kill", text, translated, "--sbatch=--no-kill", "set already; off and no are passed on"},
    without_effect("ignore_pbs", flag, "such lines are refused"),
    without_effect("parsable", flag, kAnswer),
    without_effect("quiet", flag, kAnswer),
    without_effect("verbose", flag, kAnswer),
    without_effect("wait", flag, "dstrain launch --slurm returns at once"),
    unwanted("array", text, "slurm/array.sbatch"),
    unwanted("nodefile", text, "say --nodelist and --nodes"),
    unwanted("export_file", text, "dstrain launch --env-file"),
    unwanted("test_only", flag, "nothing would be submitted"),
    unwanted("external", flag, "nothing would be started"),
    unwanted("wrap", text, "a script has no other script"),
    unwanted("help", flag, "of sbatch's command line"),
    unwanted("usage", flag, "of sbatch's command line"),
    unwanted("version", flag, "of sbatch's command line"),
    unwanted("autocomplete", text, "of sbatch's command line"),
    unwanted("uid", text, "submit as that user"),
    unwanted("gid", text, "submit as that group"),
    unwanted("container", text, kContainer),
    unwanted("container_id", text, kContainer),
    unwanted("runtime", text, kContainer),
    unwanted("tres_bind", text, "ranks are bound to their GPU"),
    passed("nodelist", text, "needs --nodes"),
    passed("export", text, "secrets by name only"),
    passed("acctg_freq"),
    passed("batch"),
    passed("bb"),
    passed("bbf"),
    passed("begin"),
    passed("cluster"),
    passed("cluster_constraint"),
    passed("clusters"),
    passed("comment"),
    passed("consolidate_segments", flag),
    passed("constraint"),
    passed("context"),
    passed("contiguous", flag),
    passed("core_spec"),
    passed("cores_per_socket"),
    passed("cpu_freq"),
    passed("cpus_per_gpu"),
    passed("deadline"),
    passed("delay_boot"),
    passed("dependency"),
    passed("exclude"),
    passed("exclusive"),
    passed("extra"),
    passed("extra_node_info"),
    passed("get_user_env"),
    passed("gpu_freq"),
    passed("gres_flags"),
    passed("hint"),
    passed("hold", flag),
    passed("kill_on_invalid_dep"),
    passed("licenses"),
    passed("mail_type"),
    passed("mail_user"),
    passed("mcs_label"),
    passed("mem"),
    passed("mem_bind"),
    passed("mem_per_cpu"),
    passed("mem_per_gpu"),
    passed("mem_update"),
    passed("mincpus"),
    passed("network"),
    passed("nice"),
    passed("no_requeue", flag),
    passed("oom_kill_step"),
    passed("overcommit", flag),
    passed("oversubscribe", flag),
    passed("power"),
    passed("prefer"),
    passed("priority"),
    passed("profile"),
    passed("propagate"),
    passed("reboot", flag),
    passed("reservation"),
    passed("resources"),
    passed("resv_ports"),
    passed("segment"),
    passed("sockets_per_node"),
    passed("spread_job", flag),
    passed("spread_segments", flag),
    passed("stepmgr", flag),
    passed("switches"),
    passed("thread_spec"),
    passed("threads_per_core"),
    passed("time_min"),
    passed("tmp"),
    passed("use_min_nodes", flag),
    passed("wait_all_nodes"),
    passed("wckey"),
};

}  // namespace

std::span<const KeyRule> sbatch_rules() { return kSbatchOptions; }

}  // namespace dstrain::importing
