#include "launcher/job/exported_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/job_environment.h"
#include "engine/base/redact.h"
#include "launcher/transport/meeting.h"

namespace dstrain::launcher {
namespace {

bool is_name(std::string_view name) {
  return !name.empty() && (name[0] < '0' || name[0] > '9') &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_';
         });
}

/// What the launcher sets for each rank.
bool is_of_ranks(std::string_view name) {
  namespace env = job_environment;
  constexpr std::array<std::string_view, 12> kNames = {
      env::kRank,          env::kLocalRank,  env::kWorldSize, env::kLocalWorldSize,
      env::kMasterAddress, env::kMasterPort, env::kMasterFd,  env::kRunDirectory,
      env::kRankRecord,    env::kReportFd,   env::kJobSecret, env::kAttempt};
  return std::ranges::find(kNames, name) != kNames.end();
}

bool goes_along(std::string_view name) {
  if (is_of_ranks(name)) return false;
  // What is true of one host or one process only.
  for (const std::string_view own :
       {join_variable::kIndex, join_variable::kHosts, join_variable::kController,
        join_variable::kSecret, join_variable::kSecretFile, "CUDA_VISIBLE_DEVICES"}) {
    if (name == own) return false;
  }
  constexpr std::array<std::string_view, 10> kPrefixes = {
      "DSTRAIN_", "NCCL_", "GLOO_", "OMP_", "GOMP_", "UCX_", "FI_", "HF_", "WANDB_", "CUDA_"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [name](std::string_view prefix) { return name.starts_with(prefix); }) ||
         is_secret_name(name);
}

}  // namespace

std::vector<std::string> exported_environment(const std::vector<std::string>& own,
                                              const std::vector<std::string>& wanted) {
  std::vector<std::string> result;
  const auto set = [&result](const std::string& entry) {
    const std::string name = entry.substr(0, entry.find('=') + 1);
    std::erase_if(result, [&name](const std::string& other) { return other.starts_with(name); });
    result.push_back(entry);
  };
  for (const std::string& entry : own) {
    const auto equals = entry.find('=');
    if (equals != std::string::npos && goes_along(std::string_view(entry).substr(0, equals)))
      set(entry);
  }
  for (const std::string& entry : wanted) {
    const std::string name = entry.substr(0, entry.find('='));
    if (!is_name(name)) {
      throw Error(ErrorKind::usage, fmt::format("--env {}: not the name of a variable", name),
                  "use --env NAME or --env NAME=VALUE");
    }
    if (is_of_ranks(name)) {
      throw Error(ErrorKind::usage, fmt::format("--env {}: dstrain sets it for each rank", name),
                  "leave it out, also of --env-file");
    }
    if (name.size() < entry.size()) {
      set(entry);
      continue;
    }
    const auto found = std::find_if(own.begin(), own.end(), [&name](const std::string& other) {
      return other.starts_with(name + '=');
    });
    if (found == own.end()) {
      throw Error(ErrorKind::usage, fmt::format("--env {}: is not set here", name),
                  "set it, or use --env NAME=VALUE");
    }
    set(*found);
  }
  return result;
}

}  // namespace dstrain::launcher
