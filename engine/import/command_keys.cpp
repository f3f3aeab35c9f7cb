#include "engine/import/key_rule.h"

namespace dstrain::importing {
namespace {

using enum Fate;
using enum Kind;

constexpr std::string_view kRendezvous = "ranks find each other by dstrain's own means";
constexpr std::string_view kScripts = "dstrain runs recipes, not scripts";
constexpr std::string_view kSsh = "ssh as --ssh-config and your own configuration say";
constexpr std::string_view kCores = "ranks are bound to the cores of their GPU";

/// Options of `deepspeed`.
constexpr KeyRule kDeepspeedCommand[] = {
    {"hostfile", text, same, "--hostfile", "the same grammar"},
    {"include", text, same, "--include", "the same grammar"},
    {"exclude", text, same, "--exclude", "the same grammar"},
    {"num_nodes", whole, translated, "--ranks", "the first hosts of the hostfile, all their slots"},
    {"num_gpus", whole, translated, "--hosts, --ranks", "of each host, whatever slots it has"},
    {"num_accelerators", whole, translated, "--hosts, --ranks", "as num_gpus"},
    {"launcher", text, translated, "--slurm", "slurm: --slurm; else ssh",
     "pdsh|openmpi|mpich|impi|mvapich|slurm", refused},
    {"launcher_args", text, no_effect, "", "--sbatch passes options to sbatch"},
    {"master_addr", text, no_effect, "", kRendezvous},
    {"master_port", whole, no_effect, "", kRendezvous},
    {"node_rank", whole, no_effect, "", kRendezvous},
    {"no_ssh", flag, no_effect, "", "one dstrain launch per node: srun --mpi=pmix, mpirun"},
    {"no_ssh_check", flag, no_effect, "", kSsh},
    {"ssh_port", whole, no_effect, "", "port=N in the hostfile"},
    {"force_multi", flag, no_effect, "", kRendezvous},
    {"save_pid", flag, no_effect, "", "no process is left behind"},
    {"log_level", text, no_effect},
    {"quiet", flag, no_effect},
    {"enable_each_rank_log", text, no_effect, "", "ranks/ in the folder of the run"},
    {"bind_cores_to_rank", flag, no_effect, "", kCores},
    {"bind_core_list", text, no_effect, "", kCores},
    {"no_local_rank", flag, no_effect, "", "set by the launcher"},
    {"elastic_training", flag, translated, "--max-restarts", "3"},
    {"min_elastic_nodes", whole, translated, "--min-ranks", "times the ranks of a node"},
    {"max_elastic_nodes", whole, no_effect, "", "hosts beyond --ranks are spares"},
    {"autotuning", text, refused, "", "dstrain plan --auto, dstrain bench run"},
    {"module", flag, refused, "", kScripts},
    {"no_python", flag, refused, "", kScripts},
    {"venv_script", text, refused, "", kScripts},
};

/// Options of `torchrun`; a dash in a name is written as "_".
constexpr KeyRule kTorchrun[] = {
    {"nnodes", text, translated, "--ranks", "MIN:MAX: MAX, and --min-ranks; absent: 1"},
    {"nproc_per_node", text, translated, "--ranks", "auto, gpu: one per GPU; absent: 1"},
    {"max_restarts", whole, same, "--max-restarts", "", "", refused, copy_option},
    {"standalone", flag, no_effect, "", kRendezvous},
    {"rdzv_backend", text, no_effect, "", kRendezvous},
    {"rdzv_endpoint", text, no_effect, "", kRendezvous},
    {"rdzv_id", text, no_effect, "", kRendezvous},
    {"rdzv_conf", text, no_effect, "", kRendezvous},
    {"master_addr", text, no_effect, "", kRendezvous},
    {"master_port", text, no_effect, "", kRendezvous},
    {"node_rank", text, no_effect, "", kRendezvous},
    {"local_addr", text, no_effect, "", kRendezvous},
    {"monitor_interval", number, no_effect, "", "pipes and exits are watched, not polled"},
    {"start_method", text, no_effect},
    {"role", text, no_effect},
    {"log_dir", text, no_effect, "", "ranks/ in the folder of the run"},
    {"redirects", text, no_effect, "", "ranks/ in the folder of the run"},
    {"tee", text, no_effect, "", "--tee RANKS"},
    {"local_ranks_filter", text, no_effect, "", "--tee RANKS"},
    {"duplicate_stdout_filters", text, no_effect, "", "equal lines are shown once"},
    {"duplicate_stderr_filters", text, no_effect, "", "equal lines are shown once"},
    {"logs_specs", text, no_effect},
    {"event_log_handler", text, no_effect, "", "events.jsonl of the run"},
    {"numa_binding", text, no_effect, "", kCores},
    {"signals_to_handle", text, no_effect, "", "SIGTERM and SIGUSR1 save and stop"},
    {"virtual_local_rank", flag, no_effect, "", "set by the launcher"},
    {"use_env", flag, no_effect, "", "set by the launcher"},
    {"module", flag, refused, "", kScripts},
    {"no_python", flag, no_effect, "", kScripts},
    {"run_path", flag, refused, "", kScripts},
};

}  // namespace

std::span<const KeyRule> deepspeed_command_rules() { return kDeepspeedCommand; }
std::span<const KeyRule> torchrun_command_rules() { return kTorchrun; }

}  // namespace dstrain::importing
