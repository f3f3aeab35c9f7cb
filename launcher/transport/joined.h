#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hosts/allocation.h"
#include "launcher/hosts/machine.h"
#include "launcher/transport/dial_listener.h"
#include "launcher/transport/meeting.h"
#include "launcher/transport/transport.h"

namespace dstrain::launcher {

/// A line for the person who waits.
using Say = std::function<void(const std::string& line)>;

/// The other processes of a `dstrain launch` that another program has started once on each node
/// (launcher/transport/meeting.h). They have dialled index 0, which is the controller, and become
/// its agents; after the end of one start of the job they dial again for the next. Who is lost may
/// come back with its index, and is a host of the next start.
class JoinedHosts {
 public:
  /// Index 0: waits until all have dialled, and says now and then who is missing. Error{hosts}
  /// names those that have not within the meeting's patience, with their nodes where these are
  /// known; Error{usage} for two processes of one index.
  JoinedHosts(const Machine& machine, DialListener listener, Meeting meeting, const Say& say);

  /// Hosts in index order with what their processes have seen of them, without lost ones; the first
  /// is this one. Their names differ.
  [[nodiscard]] std::vector<Host> hosts() const;
  /// All that were started, lost ones included.
  [[nodiscard]] int count() const { return meeting_.count; }
  [[nodiscard]] const std::string& started_by() const { return meeting_.started_by; }
  /// Whether what started a lost one starts it again.
  [[nodiscard]] bool returns() const { return meeting_.returns; }
  [[nodiscard]] std::chrono::milliseconds patience() const { return meeting_.patience; }

  /// These hosts are no longer there, unless they dial anew.
  void lose(const std::vector<std::string>& names);
  /// Names of the hosts that were lost and have not come back.
  [[nodiscard]] std::vector<std::string> lost() const;

  void add_polls(std::vector<pollfd>& fds) const { listener_.add_polls(fds); }
  [[nodiscard]] std::optional<Transport::Time> deadline() const { return listener_.deadline(); }
  void advance(Transport::Time now);
  /// Waits for agents that dial; returns after the first, or at `until`.
  void wait(Transport::Time until);
  /// The agent of this host, if it waits.
  [[nodiscard]] std::optional<Channel> take(const std::string& host);

 private:
  struct Member {
    Host host;
    std::optional<DialledAgent> dialled;
    bool lost = false;
  };
  void wait_for_all(const Say& say);
  void add(DialledAgent agent);
  /// "index 2, 3"; empty when all are there.
  [[nodiscard]] std::string missing() const;
  /// `name`, or with the index where another host has that name.
  [[nodiscard]] std::string unique_name(const std::string& name, std::size_t index) const;

  Meeting meeting_;
  DialListener listener_;
  std::vector<Member> members_;  ///< by index; 0 is this process
  std::string twice_;            ///< what was wrong with who came; empty: nothing
};

/// This process's part in such a start.
struct JoinedRole {
  std::shared_ptr<JoinedHosts> controller;  ///< of index 0
  std::optional<int> exit_code;             ///< of any other: it was an agent until the job ended
};
/// Runs an agent on the connection to its controller, to its end; not 0 when the controller was
/// lost.
using RunAgent = std::function<int(UniqueFd socket)>;
/// Finds out whether this process is one of several `dstrain launch`; nothing when it stands alone,
/// as in a batch script or a shell. A process of another index than 0 calls `run_agent` here, once
/// for each start of the job, until the controller is gone. Error{usage} when there are several
/// that cannot find each other, or several on one node; Error{hosts} as JoinedHosts says.
[[nodiscard]] std::optional<JoinedRole> join(const Machine& machine, const Variables& variables,
                                             const RunAgent& run_agent, const Say& say);

/// The joined hosts with their slots: one per GPU, and on the CPU as many as `request` needs.
/// Error{usage} for more ranks than GPUs while no host is lost.
[[nodiscard]] Allocation allocate_joined(const JoinedHosts& joined, const HostRequest& request);

/// Hands over those of `nodes` that wait in `hosts`, or come within a short while.
[[nodiscard]] std::unique_ptr<Transport> make_joined_transport(std::vector<NodeHost> nodes,
                                                               std::shared_ptr<JoinedHosts> hosts);

}  // namespace dstrain::launcher
