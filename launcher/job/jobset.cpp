#include "launcher/job/jobset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "launcher/transport/meeting.h"

namespace dstrain::launcher {
namespace {

constexpr std::size_t kMaxName = 40;
constexpr std::size_t kMaxWord = 255;
/// What a ConfigMap holds.
constexpr std::size_t kMaxRecipe = 1'000'000;
/// How often Kubernetes starts a job again that says 75, or whose ranks died.
constexpr int kMaxRestarts = 10;
/// For a step and a save after SIGTERM, as in slurm/train.sbatch.
constexpr int kGraceSeconds = 120;

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A double-quoted scalar: what JSON calls a string is one in YAML.
std::string quoted(const std::string& text) {
  if (first_invalid_utf8(text) != std::string::npos) {
    throw Error(ErrorKind::usage, fmt::format("'{}' is not UTF-8; a manifest is", shown(text)),
                "rename it");
  }
  return nlohmann::json(text).dump();
}

std::string checked(const char* option, const std::string& text, std::string_view others,
                    const char* hint) {
  const auto good = [&](char c) {
    return is_lower(c) || is_digit(c) || (c >= 'A' && c <= 'Z') ||
           others.find(c) != std::string_view::npos;
  };
  if (text.empty() || text.size() > kMaxWord || !std::ranges::all_of(text, good))
    throw Error(ErrorKind::usage, fmt::format("{} '{}' is no such name", option, shown(text)),
                hint);
  return text;
}

/// "  recipe.yaml: |2" and the text, indented.
std::string as_block(const std::string& key, const std::string& text) {
  const auto is_line = [](std::string_view line) { return first_unprintable(line).empty(); };
  std::istringstream lines(text);
  std::string block = fmt::format("  {}: |2\n", key);
  for (std::string line; std::getline(lines, line);) {
    if (!is_line(line)) return fmt::format("  {}: {}\n", key, quoted(text));
    block += line.empty() ? "\n" : "    " + line + "\n";
  }
  return block;
}

std::string config_map(const JobsetOptions& options) {
  if (options.recipe.size() > kMaxRecipe) {
    throw Error(
        ErrorKind::usage,
        fmt::format("the recipe has {} bytes; a ConfigMap holds 1 MiB", options.recipe.size()),
        "put lists of files into a file on the claim");
  }
  return fmt::format("apiVersion: v1\nkind: ConfigMap\nmetadata: {{ name: {}-recipe }}\ndata:\n",
                     options.name) +
         as_block("recipe.yaml", options.recipe);
}

/// A word as Kubernetes hands it on: $(NAME) stands for a variable there, $$ for one dollar.
std::string unexpanded(std::string word) {
  for (std::size_t at = word.find('$'); at != std::string::npos; at = word.find('$', at + 2))
    word.insert(at, "$");
  return word;
}

std::string command(const JobsetOptions& options) {
  std::vector<std::string> words = {"dstrain",     "launch",     "/etc/dstrain/recipe.yaml",
                                    "--run-name",  options.name, "--resume",
                                    options.resume};
  words.insert(words.end(), options.launch.begin(), options.launch.end());
  std::string text = "              command:\n";
  for (const std::string& word : words)
    text += fmt::format("              - {}\n", quoted(unexpanded(word)));
  return text;
}

std::string resources(const JobsetOptions& options) {
  std::string limits;
  if (options.gpus_per_node > 0)
    limits += fmt::format("                  nvidia.com/gpu: {}\n", options.gpus_per_node);
  if (!options.rdma_resource.empty())
    limits += fmt::format("                  {}: 1\n", options.rdma_resource);
  if (limits.empty()) return {};
  std::string text = "              resources:\n                limits:\n" + limits;
  // Locked memory is what RDMA registers.
  if (!options.rdma_resource.empty())
    text += "              securityContext: { capabilities: { add: [IPC_LOCK] } }\n";
  return text;
}

std::string container(const JobsetOptions& options) {
  return fmt::format(
             "            - name: dstrain\n"
             "              image: {}\n"
             "              workingDir: {}\n",
             quoted(options.image), kJobsetMount) +
         command(options) +
         fmt::format(
             "              env:  # Kubernetes adds JOB_COMPLETION_INDEX\n"
             "              - {{ name: {}, value: \"{}\" }}\n"
             "              - {{ name: {}, value: {}-train-0-0.{} }}\n"
             "              - name: {}\n"
             "                valueFrom: {{ secretKeyRef: {{ name: {}-join, key: secret }} }}\n",
             join_variable::kHosts, options.nodes, join_variable::kController, options.name,
             options.name, join_variable::kSecret, options.name) +
         resources(options) +
         fmt::format(
             "              volumeMounts:\n"
             "              - {{ name: recipe, mountPath: /etc/dstrain }}\n"
             "              - {{ name: shm, mountPath: /dev/shm }}\n"
             "              - {{ name: workspace, mountPath: {} }}\n",
             kJobsetMount);
}

std::string job_set(const JobsetOptions& options) {
  return fmt::format(
             "apiVersion: jobset.x-k8s.io/v1alpha2\n"
             "kind: JobSet\n"
             "metadata: {{ name: \"{0}\" }}\n"
             "spec:\n"
             "  # JobSet makes the headless service of this name, in which pods find index 0.\n"
             "  network: {{ enableDNSHostnames: true, publishNotReadyAddresses: true, subdomain: "
             "\"{0}\" }}\n"
             "  failurePolicy:\n"
             "    maxRestarts: {1}  # from the newest checkpoint; other failures than the rule's "
             "count\n"
             "    rules:\n"
             "    - {{ name: a_person_must_look, action: FailJobSet, onJobFailureReasons: "
             "[PodFailurePolicy] }}\n"
             "  replicatedJobs:\n"
             "  - name: train\n"
             "    replicas: 1\n"
             "    template:\n"
             "      spec:\n"
             "        completionMode: Indexed\n"
             "        completions: {2}\n"
             "        parallelism: {2}\n"
             "        backoffLimit: 0\n"
             "        podFailurePolicy:\n"
             "          rules:\n"
             "          # A pod that is moved comes back with its index, and is a host of the next "
             "start.\n"
             "          - action: Ignore\n"
             "            onPodConditions: [{{ type: DisruptionTarget, status: \"True\" }}]\n"
             "          # Wrong recipe or data, a host that cannot take part, a full disk, no "
             "progress.\n"
             "          - action: FailJob\n"
             "            onExitCodes: {{ containerName: dstrain, operator: In, values: [64, 65, "
             "69, 70, 74, 93] }}\n"
             "        template:\n"
             "          spec:\n"
             "            restartPolicy: Never\n"
             "            terminationGracePeriodSeconds: {3}  # for a step and a save\n"
             "            containers:\n",
             options.name, kMaxRestarts, options.nodes, kGraceSeconds) +
         container(options) +
         fmt::format(
             "            volumes:\n"
             "            - {{ name: recipe, configMap: {{ name: {}-recipe }} }}\n"
             "            - {{ name: shm, emptyDir: {{ medium: Memory }} }}\n"
             "            - {{ name: workspace, persistentVolumeClaim: {{ claimName: \"{}\" }} "
             "}}\n",
             options.name, options.claim);
}

}  // namespace

std::string jobset_name(const std::string& text) {
  std::string name;
  for (char c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool good = is_lower(c) || is_digit(c);
    // It begins with a letter, as a label of DNS does.
    if (good && (!name.empty() || is_lower(c))) name += c;
    if (!good && !name.empty() && name.back() != '-') name += '-';
  }
  name.resize(std::min(name.size(), kMaxName));
  while (name.ends_with('-')) name.pop_back();
  if (name.empty()) {
    throw Error(ErrorKind::usage,
                fmt::format("'{}' has no letter for the name of a JobSet", shown(text)),
                "give a --run-name");
  }
  return name;
}

std::string jobset_manifest(const JobsetOptions& options) {
  JobsetOptions job = options;
  job.image = checked("--image", options.image, "._-/:@",
                      "name a container image with dstrain on its PATH: example.org/dstrain:1.0");
  job.claim = checked("--claim", options.claim, ".-",
                      "name a PersistentVolumeClaim that all pods can write (ReadWriteMany)");
  if (!options.rdma_resource.empty()) {
    job.rdma_resource = checked("--rdma-resource", options.rdma_resource, "._-/",
                                "name an extended resource of the nodes: rdma/ib");
  }
  return fmt::format(
             "# Written by `dstrain launch --emit jobset` for kubectl apply -f FILE; needs JobSet "
             "(jobset.sigs.k8s.io) in the cluster.\n"
             "# Never run on a Kubernetes cluster by us: recipes/guides/kubernetes.md says what "
             "was "
             "tried.\n"
             "# Once before, the secret by which the pods know each other:\n"
             "#   kubectl create secret generic {}-join --from-literal=secret=$(openssl rand -hex "
             "32)\n",
             job.name) +
         config_map(job) + "---\n" + job_set(job);
}

}  // namespace dstrain::launcher
