#include "cmd/submit_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cmd/engine_library.h"
#include "cmd/hub_names.h"
#include "cmd/needed_files.h"
#include "cmd/number_option.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/output.h"
#include "engine/base/printable.h"
#include "engine/recipe/load.h"
#include "launcher/job/recipe_files.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGroup = "SLURM";
constexpr const char* kKubernetes = "Kubernetes";
/// Options of the first group that a JobSet has, too.
constexpr std::array kOfBoth = {"--emit", "--nodes", "--ranks-per-node", "--gpus-per-node"};

/// Options of the launch that a batch script or a manifest does not repeat: it brings a recipe of
/// its own, others choose the hosts, and each start of the job resumes by itself.
constexpr std::array kNotRepeated = {"recipe",     "words",        "--set",  "--hosts",
                                     "--hostfile", "--ssh-config", "--ship", "--resume",
                                     "--run-name", "--dry-run"};

/// The other options that were given, as words.
std::vector<std::string> launch_arguments(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (option->get_group() == kGroup || option->get_group() == kKubernetes ||
        std::ranges::find(kNotRepeated, name) != kNotRepeated.end()) {
      continue;
    }
    for (const std::string& value : option->results()) {
      words.push_back(name);
      if (option->get_expected_max() > 0) words.push_back(value);  // else a flag
    }
  }
  return words;
}

/// "8" and "a100:8".
void take_gpus(launcher::SubmitOptions& options, const std::string& text) {
  constexpr int kMaxGpus = 1024;
  const std::size_t colon = text.find(':');
  const std::string number = colon == std::string::npos ? text : text.substr(colon + 1);
  const bool digits = !number.empty() && number.size() < 5 &&
                      number.find_first_not_of("0123456789") == std::string::npos;
  const int count = digits ? std::stoi(number) : 0;
  if (count < 1 || count > kMaxGpus || colon == 0)
    throw Error(
        ErrorKind::usage,
        fmt::format("--gpus-per-node '{}': use N or TYPE:N, N from 1 to {}", shown(text), kMaxGpus),
        "correct the value");
  options.gpus_per_node = count;
  options.gpu_type = colon == std::string::npos ? "" : text.substr(0, colon);
}

/// Lines of bash of a file.
std::string read_setup(const std::string& path) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 20;
  try {
    return read_file(path, kMaxBytes);
  } catch (const Error& error) {
    throw Error(ErrorKind::usage, error.what(), error.hint());
  }
}

void check_ranks(const launcher::SubmitOptions& options) {
  if (options.gpus_per_node > 0 && options.ranks_per_node > 0 &&
      options.gpus_per_node != options.ranks_per_node) {
    throw Error(ErrorKind::usage,
                fmt::format("--ranks-per-node {} and --gpus-per-node {}: every GPU has one rank",
                            options.ranks_per_node, options.gpus_per_node),
                "leave out --ranks-per-node");
  }
}

void check(const JobOptions& job, const launcher::SubmitOptions& options) {
  const auto refuse = [](bool given, const std::string& option, const std::string& hint) {
    if (given) throw Error(ErrorKind::usage, option + " has no meaning with --slurm", hint);
  };
  const launcher::LaunchOptions& launch = job.launch;
  refuse(!launch.request.hosts.empty() || !launch.request.hostfile.empty(), "--hosts or --hostfile",
         "Slurm chooses the nodes; --sbatch --nodelist=n1,n2 names them");
  refuse(!launch.run_name.empty(), "--run-name", "the run directory is called slurm-<job>");
  check_ranks(options);
}

void check_for_jobset(const JobOptions& job, const SubmitRequest& request) {
  const auto refuse = [](bool given, const std::string& option, const std::string& hint) {
    if (given) throw Error(ErrorKind::usage, option + " has no meaning with --emit jobset", hint);
  };
  const launcher::LaunchOptions& launch = job.launch;
  refuse(request.slurm, "--slurm", "it submits to Slurm; leave it out");
  for (const CLI::Option* option : request.app->get_options()) {
    const std::string name = option->get_name();
    refuse(option->get_group() == kGroup && option->count() > 0 &&
               std::ranges::find(kOfBoth, name) == kOfBoth.end(),
           name, "it is an option of Slurm; edit the manifest that is printed");
  }
  refuse(!launch.request.hosts.empty() || !launch.request.hostfile.empty(), "--hosts or --hostfile",
         "Kubernetes chooses the nodes; a nodeSelector in the manifest narrows its choice");
  refuse(!request.options.gpu_type.empty(), "a type in --gpus-per-node",
         "say N alone; a nodeSelector in the manifest names the type");
  check_ranks(request.options);
  const bool given = !request.jobset.image.empty() && !request.jobset.claim.empty();
  if (given) return;
  throw Error(
      ErrorKind::usage,
      fmt::format("--emit jobset needs {}", request.jobset.image.empty() ? "--image" : "--claim"),
      "--image is a container image with dstrain on its PATH, --claim a "
      "PersistentVolumeClaim that all pods can write");
}

/// The run directory must lie on the claim, which all pods see.
void check_output(const fs::path& output) {
  const fs::path inside = output.lexically_normal().lexically_relative(launcher::kJobsetMount);
  const bool below = !output.is_absolute() || (!inside.empty() && *inside.begin() != "..");
  const bool leaves = !output.is_absolute() && *output.lexically_normal().begin() == "..";
  if (below && !leaves) return;
  throw Error(ErrorKind::usage,
              fmt::format("run.output: {} is no folder below {}, where the pods see the claim",
                          shown(output.string()), launcher::kJobsetMount),
              "--set run.output=runs");
}

/// Ranks of the job as far as the options say; 0: what Slurm gives by --sbatch decides.
int known_world_size(const JobOptions& job, const launcher::SubmitOptions& options) {
  if (job.launch.request.ranks > 0) return job.launch.request.ranks;
  return options.nodes * std::max(options.gpus_per_node, options.ranks_per_node);
}

/// What the ranks would refuse of the model is refused now and not in the queue. False: it was, and
/// stderr says why. `ranks` 0: not known.
bool ranks_will_take_model(const JobOptions& job, int ranks, bool gpus) {
  if (job.search || job.fit) return true;  // they find settings that fit
  try {
    return recipe_fits(job.recipe, job.overrides, ranks, gpus);
  } catch (const Error& error) {  // no LibTorch on this machine
    print_error("note: nobody has looked whether the ranks can train the model: {}\n",
                error.what());
    return true;
  }
}

}  // namespace

void add_submit_options(CLI::App& app, SubmitRequest& request) {
  launcher::SubmitOptions& options = request.options;
  request.app = &app;
  CLI::Option* slurm =
      app.add_flag("--slurm", request.slurm,
                   "Put the job into Slurm's queue, with a copy of recipe and program, and return; "
                   "see slurm/README.md.");
  slurm->group(kGroup);
  app.add_option(
         "--emit", request.emit,
         "Submit nothing and print, complete with the recipe, the batch script (sbatch) or a "
         "manifest for Kubernetes\n(jobset; see recipes/guides/kubernetes.md).")
      ->check(CLI::IsMember({"sbatch", "jobset"}))
      ->group(kGroup);
  const auto add = [&app](const char* name, auto& value, const char* text) {
    return app.add_option(name, value, text)->group(kGroup);
  };
  add("--nodes", options.nodes, "Nodes of the job. Default: 1.")->check(number_in(1, 65536));
  add("--ranks-per-node", options.ranks_per_node,
      "Ranks on each node, on the CPU. Default: 1, or one per GPU.")
      ->check(number_in(1, 1024));
  app.add_option_function<std::string>(
         "--gpus-per-node", [&options](const std::string& text) { take_gpus(options, text); },
         "GPUs of each node, each with one rank: N, or TYPE:N with Slurm's name of a type. "
         "Default: none are asked for.")
      ->group(kGroup);
  add("--time", options.time,
      "Time limit as sbatch takes it; two minutes before it the job saves and goes back into the "
      "queue. Default: the partition's.");
  add("--partition", options.partition, "Partition. Default: the cluster's.");
  add("--account", options.account, "Account to charge. Default: the user's.");
  add("--qos", options.qos, "Quality of service. Default: the account's.");
  add("--sbatch", options.sbatch, "Further option of sbatch: --sbatch=--exclusive. Repeatable.")
      ->allow_extra_args(false);
  add("--setup", request.setup,
      "File of bash lines that the batch script runs before the launch: module load, an "
      "environment, "
      "exports. Copied now.");
  const auto add_kubernetes = [&app](const char* name, std::string& value, const char* text) {
    app.add_option(name, value, text)->group(kKubernetes);
  };
  add_kubernetes("--image", request.jobset.image,
                 "Container image that holds dstrain on its PATH, for --emit jobset.");
  add_kubernetes("--claim", request.jobset.claim,
                 "PersistentVolumeClaim that all pods can write (ReadWriteMany): their working "
                 "directory, /workspace.");
  add_kubernetes(
      "--rdma-resource", request.jobset.rdma_resource,
      "Extended resource of the nodes' RDMA devices, one for each pod: rdma/ib. Default: "
      "none.");
}

void complete_submit_options(JobOptions& job, SubmitRequest& request) {
  const bool jobset = request.emit == "jobset";
  if (request.emit == "sbatch") request.slurm = job.launch.dry_run = true;
  for (const CLI::Option* option : request.app->get_options()) {
    if (option->count() == 0) continue;
    const std::string& group = option->get_group();
    const char* needed = group == kGroup && !request.slurm && !jobset ? "--slurm"
                         : group == kKubernetes && !jobset            ? "--emit jobset"
                                                                      : nullptr;
    if (needed == nullptr) continue;
    throw Error(ErrorKind::usage, fmt::format("{} requires {}", option->get_name(), needed),
                fmt::format("add {}, or leave it out", needed));
  }
}

int submit_job(const JobOptions& job, const SubmitRequest& request) {
  launcher::SubmitOptions options = request.options;
  check(job, options);
  // Here, as nodes may have no way to the Hub.
  bring_named(job.recipe, job.overrides, job.launch.dry_run ? Bring::nothing : Bring::all);
  const LoadedRecipe loaded = load_recipe(job.recipe, job.overrides);
  for (const Diagnostic& warning : loaded.warnings) {
    print_error("{}\n", format(warning));
  }
  look_for_files(loaded, {.ranks_here = false});  // nodes may have files of their own
  const int world_size = known_world_size(job, options);
  if (!ranks_will_take_model(job, world_size, options.gpus_per_node > 0))
    return exit_code(ErrorKind::usage);
  options.recipe_name = loaded.name;
  options.recipe_variables = loaded.variables;
  // With the number of ranks known, a recipe that does not fit is refused now and not in the queue.
  options.recipe = world_size > 0 ? launcher::recipe_files(loaded, world_size).front().content
                                  : resolved_yaml(loaded);
  options.output = loaded.recipe.run.output;
  options.program = fs::read_symlink("/proc/self/exe");
  options.working_directory = fs::current_path();
  options.launch = launch_arguments(*request.app);
  if (job.launch.resume.mode == launcher::Resume::Mode::path)
    options.resume = launcher::resume_source(job.launch.resume.path).string();
  if (!request.setup.empty()) options.setup = read_setup(request.setup);
  if (job.launch.dry_run) {
    launcher::refuse_secrets(options);
    print_text(launcher::printed_script(options));
    return 0;
  }
  const launcher::Submission submission = launcher::submit(options);
  print_text(
      "job {} is in the queue\n  its files: {}\n  its output: {}\n  its run, once started: {}\n"
      "  squeue -j {} shows it, scancel {} ends it\n",
      submission.job, submission.folder.string(),
      (submission.folder / fmt::format("slurm-{}.out", submission.job)).string(),
      submission.run.string(), submission.job, submission.job);
  return 0;
}

int emit_jobset(const JobOptions& job, const SubmitRequest& request) {
  check_for_jobset(job, request);
  bring_named(job.recipe, job.overrides, Bring::nothing);
  const LoadedRecipe loaded = load_recipe(job.recipe, job.overrides);
  for (const Diagnostic& warning : loaded.warnings) {
    print_error("{}\n", format(warning));
  }
  check_output(loaded.recipe.run.output);
  const launcher::SubmitOptions& options = request.options;
  const int world_size = known_world_size(job, options);
  if (!ranks_will_take_model(job, world_size, options.gpus_per_node > 0))
    return exit_code(ErrorKind::usage);
  launcher::JobsetOptions jobset = request.jobset;
  jobset.name =
      launcher::jobset_name(job.launch.run_name.empty() ? loaded.name : job.launch.run_name);
  if (!job.launch.run_name.empty() && jobset.name != job.launch.run_name) {
    throw Error(ErrorKind::usage,
                fmt::format("--run-name '{}': a JobSet has the name of its run, of lower-case "
                            "letters, digits and '-', at most 40",
                            shown(job.launch.run_name)),
                fmt::format("use {}", jobset.name));
  }
  jobset.recipe = world_size > 0 ? launcher::recipe_files(loaded, world_size).front().content
                                 : resolved_yaml(loaded);
  jobset.nodes = options.nodes;
  jobset.gpus_per_node = options.gpus_per_node;
  jobset.launch = launch_arguments(*request.app);
  if (job.launch.resume.mode == launcher::Resume::Mode::path)
    jobset.resume = job.launch.resume.path;
  if (job.launch.request.ranks == 0 && options.ranks_per_node > 0) {
    jobset.launch.emplace_back("--ranks");
    jobset.launch.push_back(std::to_string(world_size));
  }
  const std::string manifest = launcher::jobset_manifest(jobset);
  launcher::refuse_secrets_of(
      {.text = manifest,
       .what = "the manifest",
       .words = jobset.launch,
       .recipe_variables = loaded.variables},
      "put it into a Kubernetes Secret and name it under env of the container");
  print_text(manifest);
  return 0;
}

}  // namespace dstrain
