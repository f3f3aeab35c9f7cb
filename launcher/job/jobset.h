#pragma once

#include <string>
#include <vector>

namespace dstrain::launcher {

/// A job for Kubernetes: a JobSet (jobset.x-k8s.io/v1alpha2) with one pod a node, whose processes
/// meet as launcher/transport/meeting.h says.
struct JobsetOptions {
  std::string name;    ///< of the JobSet and its run; jobset_name() makes one
  std::string recipe;  ///< resolved text
  std::string image;   ///< holds dstrain on its PATH
  std::string claim;   ///< PersistentVolumeClaim that all pods write; their working directory
  std::string rdma_resource = {};  ///< extended resource, one for each pod: rdma/ib; empty: none
  int nodes = 1;
  int gpus_per_node = 0;                 ///< 0: ranks on the CPU
  std::string resume = "auto";           ///< as SubmitOptions::resume, as the pods see it
  std::vector<std::string> launch = {};  ///< further arguments of `dstrain launch`
};

/// Where pods see the claim: their working directory.
inline constexpr const char* kJobsetMount = "/workspace";

/// A name that Kubernetes takes, of what people called the job: lower-case letters, digits and
/// '-', at most 40, so that names of pods keep within 63. Error{usage} where nothing is left.
[[nodiscard]] std::string jobset_name(const std::string& text);

/// The manifest, for `kubectl apply -f -`: a ConfigMap with the recipe and the JobSet. It names a
/// Secret NAME-join, which people make, and holds none. Exit codes that another start does not cure
/// end the JobSet; others start it again. Error{usage} for text that it cannot hold.
[[nodiscard]] std::string jobset_manifest(const JobsetOptions& options);

}  // namespace dstrain::launcher
