#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dstrain {

/// The group of a collective as PyTorch's traces name it.
struct ProfiledGroup {
  std::string name;  ///< "shard-gather-0"
  int rank = 0;      ///< in the group
  int size = 1;
  int first = 0;   ///< global rank of the first
  int stride = 1;  ///< between the ranks of the group
  /// From the global ranks of the group, in order; stride 0 where they are not evenly spaced.
  [[nodiscard]] static ProfiledGroup of(const std::string& name, const std::vector<int>& ranks,
                                        int rank);
};

/// While a profiler runs, the kernels that are launched in the scope belong to this collective: the
/// trace says operation, elements, type and group, as for c10d's own
/// (torch/csrc/distributed/c10d/ParamCommsUtils.hpp). Else it costs one branch.
class ProfiledCollective {
 public:
  /// `operation` as in Communicator; `sequence`: of the group's calls.
  ProfiledCollective(const ProfiledGroup& group, const char* operation, const at::Tensor& input,
                     const at::Tensor& output, std::int64_t sequence);

 private:
  std::optional<c10::DebugInfoGuard> info_;
  std::optional<at::RecordFunction> scope_;  ///< ends first
};

}  // namespace dstrain
