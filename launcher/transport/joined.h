#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/pmix_exchange.h"
#include "launcher/hosts/allocation.h"
#include "launcher/hosts/machine.h"
#include "launcher/transport/dial_listener.h"
#include "launcher/transport/transport.h"

namespace dstrain::launcher {

/// The other processes of a `dstrain launch` that srun --mpi=pmix or mpirun has started once on
/// each node. They have dialled task 0, which is the controller, and become its agents; after the
/// end of one start of the job they dial again for the next.
class JoinedHosts {
 public:
  /// Task 0: gives its address by PMIx and waits until all have dialled. Error{hosts} names the
  /// tasks that have not within `limit`, and their nodes where `variables` tell them.
  JoinedHosts(const Machine& machine, const Variables& variables, std::chrono::milliseconds limit);

  /// All nodes in task order with what their processes have seen of them; the first is this one.
  [[nodiscard]] const std::vector<Host>& hosts() const { return hosts_; }

  void add_polls(std::vector<pollfd>& fds) const { listener_.add_polls(fds); }
  [[nodiscard]] std::optional<Transport::Time> deadline() const { return listener_.deadline(); }
  void advance(Transport::Time now);
  /// The agent of this host, if it waits.
  [[nodiscard]] std::optional<Channel> take(const std::string& host);

 private:
  void wait_for_all(Transport::Time deadline);
  [[nodiscard]] std::string missing(const Variables& variables) const;

  DialListener listener_;
  std::vector<Host> hosts_;
  std::vector<std::optional<DialledAgent>> dialled_;  ///< parallel to hosts_
};

/// This process's part in such a start.
struct JoinedRole {
  std::shared_ptr<JoinedHosts> controller;  ///< of task 0
  std::optional<int> exit_code;  ///< of any other task: it was an agent until the job ended
};
/// Runs an agent on the connection to its controller, to its end.
using RunAgent = std::function<void(UniqueFd socket)>;
/// Finds out whether this process is one of several `dstrain launch`; nothing when it stands alone,
/// as in a batch script or a shell. A task other than 0 calls `run_agent` here, once for each start
/// of the job, until the controller is gone. Error{usage} when there are several tasks that cannot
/// find each other (no PMIx), or several on one node; Error{hosts} as the exchange says.
[[nodiscard]] std::optional<JoinedRole> join(const Machine& machine, const Variables& variables,
                                             const RunAgent& run_agent);

/// The joined hosts with their slots: one per GPU, and on the CPU as many as `request` needs.
/// Error{usage} for more ranks than GPUs.
[[nodiscard]] Allocation allocate_joined(const JoinedHosts& joined, const HostRequest& request);

/// Hands over those of `nodes` that wait in `hosts`, or come within a short while.
[[nodiscard]] std::unique_ptr<Transport> make_joined_transport(std::vector<NodeHost> nodes,
                                                               std::shared_ptr<JoinedHosts> hosts);

}  // namespace dstrain::launcher
