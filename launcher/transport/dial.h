#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/handshake.h"
#include "launcher/base/fd.h"

namespace dstrain::launcher {

/// Address at which a controller waits for agents that another program started, and the secret that
/// they must prove.
struct DialTarget {
  std::vector<std::string> addresses;  ///< numeric; any one that answers with the secret
  int port = 0;
  JobSecret secret{};
};
/// One line without its newline. It holds the secret: for pipes, never for argv or files.
[[nodiscard]] std::string to_line(const DialTarget& target);
/// Error{hosts} for what to_line() does not write; does not repeat it.
[[nodiscard]] DialTarget dial_target_from(std::string_view line);

/// What an agent says of itself once it has proved the secret.
struct Introduction {
  std::string name;  ///< node name of Slurm, or the task number of a joined one
  std::string host;  ///< its kernel's name for itself
  int cores = 1;
  int gpus = 0;
};
[[nodiscard]] std::string to_line(const Introduction& introduction);
[[nodiscard]] Introduction introduction_from(std::string_view line);

/// Purpose of the handshake between an agent that dials and its controller.
inline constexpr std::string_view kDialPurpose = "agent";
/// The controller's line that accepts the agent; the protocol follows at once.
inline constexpr std::string_view kDialWelcome = "welcome\n";

struct DialOptions {
  int lifeline = -1;                        ///< a descriptor whose end of file ends the attempt
  std::chrono::milliseconds limit{30'000};  ///< for finding a listener that knows the secret
  bool again = false;  ///< it was reached before: a closed port means that it has ended
  bool alone = false;  ///< nobody else should listen there: another secret is a mistake
};
/// Connects to the target, proves the secret, introduces itself and waits, as long as it takes, to
/// be welcomed. A connection that is closed before is tried again within the limit. Empty when the
/// controller ends instead of welcoming: its port is closed. Error{hosts} when no listener with the
/// secret is found within the limit, or the lifeline is cut; Error{again} when it was reached
/// before and no longer answers; Error{usage} when one without the secret is found where it should
/// be `alone`.
[[nodiscard]] UniqueFd dial(const DialTarget& target, const Introduction& introduction,
                            const DialOptions& options);

/// `dstrain agent --dial`: reads the target line from `bootstrap` (srun's broadcast standard input,
/// which is the lifeline too) and dials as this Slurm node. Asks the address that srun itself was
/// called from first.
[[nodiscard]] UniqueFd dial_as_slurm_node(int bootstrap);

}  // namespace dstrain::launcher
