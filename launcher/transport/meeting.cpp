#include "launcher/transport/meeting.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/printable.h"
#include "launcher/hosts/host_list.h"

namespace dstrain::launcher {
namespace {

using std::chrono::milliseconds;
namespace name = join_variable;

/// srun and mpirun start all at the same moment.
constexpr milliseconds kPmixPatience{20'000};
/// A node may have to fetch an image first.
constexpr int kPatienceSeconds = 300;
constexpr int kMaxHosts = 65536;
constexpr std::size_t kMinSecretBytes = 16;
constexpr std::size_t kMaxSecretBytes = 4096;
constexpr const char* kMakeSecret =
    "give all processes the same, e.g. of `openssl rand -hex 32`, by a Kubernetes Secret or a file "
    "of mode 600";

/// The variables by which one program says where its processes meet.
struct MeetingVariables {
  const char* program;
  const char* index;
  const char* count;
  const char* address;  ///< of index 0: HOST or HOST:PORT
  const char* port;     ///< nullptr: it has none of its own
};
/// The first row of which index and count are set counts.
constexpr std::array kPrograms = {
    MeetingVariables{name::kIndex, name::kIndex, name::kHosts, name::kController, nullptr},
    MeetingVariables{"Kubernetes", "JOB_COMPLETION_INDEX", name::kHosts, name::kController,
                     nullptr},
    MeetingVariables{"pbsdsh", "PBS_NODENUM", name::kHosts, name::kController, nullptr},
    MeetingVariables{"Kubeflow Trainer", "PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR",
                     "PET_MASTER_PORT"},
    MeetingVariables{"LeaderWorkerSet", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS",
                     nullptr},
};

/// The variables by which a program numbers the processes that it starts, and says how many these
/// are. Seen of srun, OpenMPI and MPICH's hydra; flux run's are those of its source (shell/task.c).
/// torchrun's are left out: they are often leftovers of a shell.
struct TaskVariables {
  const char* task;
  const char* size;
};
constexpr std::array kTasks = {
    TaskVariables{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    TaskVariables{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    TaskVariables{"PMI_RANK", "PMI_SIZE"},
    TaskVariables{"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
};

/// A set variable that is not empty.
std::optional<std::string_view> text_of(const Variables& variables, const char* variable) {
  const char* text = variable != nullptr ? variables(variable) : nullptr;
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

int number_of(const char* variable, std::string_view text, int min, int max) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < min || value > max) {
    throw Error(
        ErrorKind::usage,
        fmt::format("{}='{}' is no whole number from {} to {}", variable, shown(text), min, max),
        "all processes of a start have the same fixed number of hosts, and each an index "
        "below it");
  }
  return value;
}

int number_or(const Variables& variables, const char* variable, int otherwise, int min, int max) {
  const auto text = text_of(variables, variable);
  return text ? number_of(variable, *text, min, max) : otherwise;
}

bool is_ipv6(std::string_view text) {
  in6_addr parsed{};
  return ::inet_pton(AF_INET6, std::string(text).c_str(), &parsed) == 1;
}

/// "host" or "host:port" into the meeting; an IPv6 address with a port stands in brackets.
void read_address(const MeetingVariables& row, std::string_view text, Meeting& meeting) {
  std::string_view host = text, port;
  if (const auto close = text.find(']'); text.starts_with('[') && close != text.npos) {
    host = text.substr(1, close - 1);
    port = text.substr(close + 1);
    if (!is_ipv6(host) || !(port.empty() || port.starts_with(':'))) host = "";
  } else if (!is_ipv6(text)) {
    host = text.substr(0, text.rfind(':'));
    port = text.substr(host.size());
  }
  if (!port.empty() && row.port == nullptr && !host.empty())
    meeting.port = number_of(row.address, port.substr(1), 1, 65535);
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  };
  const bool named = !host.empty() && host.size() <= 255 && std::ranges::all_of(host, good);
  if ((!named && !is_ipv6(host)) || (!port.empty() && row.port != nullptr)) {
    throw Error(
        ErrorKind::usage,
        fmt::format("{}='{}' is neither a host name nor an address", row.address, shown(text)),
        row.port == nullptr
            ? "it says where the process of index 0 listens: HOST, HOST:PORT or [IPV6]:PORT"
            : "it says where the process of index 0 listens: HOST or an address");
  }
  meeting.addresses = {std::string(host)};
}

std::string read_secret_file(const std::string& path) {
  const auto refuse = [](const std::string& text, const char* hint) {
    throw Error(ErrorKind::usage, fmt::format("{}: {}", name::kSecretFile, text), hint);
  };
  std::string text;
  struct stat file {};
  try {
    const UniqueFd fd = open_input_file(path);
    if (::fstat(fd.get(), &file) != 0) file.st_mode = 0777;  // nothing is known of it
    text = read_file(path, kMaxSecretBytes);
  } catch (const Error& error) {
    refuse(error.what(), kMakeSecret);
  }
  if (file.st_uid != ::geteuid() && file.st_uid != 0)
    refuse(shown_path(path) + " belongs to another user", "use a file of your own, of mode 600");
  if ((file.st_mode & 077U) != 0) {
    refuse(fmt::format("others may read {} (mode {:o})", shown_path(path), file.st_mode & 0777U),
           "chmod 600, and draw a new secret");
  }
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}

JobSecret read_secret(const Meeting& meeting, const Variables& variables) {
  const auto given = text_of(variables, name::kSecret);
  const auto file = text_of(variables, name::kSecretFile);
  if (given && file) {
    throw Error(ErrorKind::usage,
                fmt::format("{} and {} are both set", name::kSecret, name::kSecretFile),
                "keep one of them");
  }
  if (!given && !file) {
    throw Error(ErrorKind::usage,
                fmt::format("{} has started {} `dstrain launch`, and none has a secret by which to "
                            "know the others: neither {} nor {} is set",
                            meeting.started_by, meeting.count, name::kSecret, name::kSecretFile),
                kMakeSecret);
  }
  const std::string text = file ? read_secret_file(std::string(*file)) : std::string(*given);
  if (text.size() < kMinSecretBytes) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: {} bytes can be guessed; a secret has at least {}",
                            file ? name::kSecretFile : name::kSecret, text.size(), kMinSecretBytes),
                kMakeSecret);
  }
  return secret_from_text(text);
}

/// The row that applies, or nothing. Error{usage} where DSTRAIN_HOSTS stands alone.
const MeetingVariables* find_row(const Variables& variables) {
  for (const MeetingVariables& row : kPrograms) {
    if (text_of(variables, row.index) && text_of(variables, row.count)) return &row;
  }
  const int hosts = number_or(variables, name::kHosts, 1, 1, kMaxHosts);
  const bool indexed = text_of(variables, name::kIndex).has_value();
  if (hosts == 1 && !indexed) return nullptr;
  throw Error(ErrorKind::usage,
              indexed ? fmt::format("{} is set, and {} is not", name::kIndex, name::kHosts)
                      : fmt::format("{}={}, and no variable says which of them this process is",
                                    name::kHosts, hosts),
              fmt::format("set {}, {} and {} for each process; an indexed Job of Kubernetes and "
                          "pbsdsh give the index by themselves",
                          name::kIndex, name::kHosts, name::kController));
}

PmixAnswer exchange(const std::string& value) {
  std::optional<PmixAnswer> answer = pmix_exchange(value, kPmixPatience);
  if (!answer) {
    throw Error(ErrorKind::hosts, "the PMIx server of this srun or mpirun is not there", kOneEach);
  }
  if (answer->local_size > 1) {
    throw Error(ErrorKind::usage,
                fmt::format("{} `dstrain launch` were started on one node", answer->local_size),
                kOneEach);
  }
  return std::move(*answer);
}

/// With one task on each node, tasks are numbered as the nodes are listed.
std::vector<std::string> nodes_of_step(const Variables& variables, int count) {
  const char* list = variables("SLURM_STEP_NODELIST");
  if (list == nullptr) return {};
  std::vector<std::string> nodes = expand_node_list(list);
  return nodes.size() == static_cast<std::size_t>(count) ? nodes : std::vector<std::string>{};
}

}  // namespace

std::optional<Meeting> meeting_in_environment(const Variables& variables) {
  const MeetingVariables* row = find_row(variables);
  if (row == nullptr) return std::nullopt;
  Meeting meeting{.started_by = row->program};
  meeting.count = number_of(row->count, *text_of(variables, row->count), 1, kMaxHosts);
  meeting.index = number_of(row->index, *text_of(variables, row->index), 0, meeting.count - 1);
  if (meeting.count == 1) return std::nullopt;
  const auto address = text_of(variables, row->address);
  if (!address) {
    throw Error(ErrorKind::usage,
                fmt::format("{}={}, and {} is not set", row->count, meeting.count, row->address),
                "it says where the process of index 0 listens: HOST or HOST:PORT");
  }
  meeting.port = number_or(variables, row->port, kJoinPort, 1, 65535);
  read_address(*row, *address, meeting);
  meeting.secret = read_secret(meeting, variables);
  const int patience = number_or(variables, name::kPatience, kPatienceSeconds, 1, 86'400);
  meeting.patience = std::chrono::seconds(patience);
  meeting.returns = true;
  return meeting;
}

std::pair<Meeting, PmixHelper> meet_by_pmix(const std::optional<DialTarget>& own,
                                            const Variables& variables) {
  PmixAnswer answer = exchange(own ? to_line(*own) : "");
  DialTarget target = own ? *own : dial_target_from(answer.value);
  Meeting meeting{.started_by = "this srun or mpirun",
                  .index = answer.rank,
                  .count = answer.size,
                  .addresses = std::move(target.addresses),
                  .port = target.port,
                  .secret = target.secret,
                  .patience = kPmixPatience,
                  .returns = false,
                  .nodes = nodes_of_step(variables, answer.size)};
  return {std::move(meeting), std::move(answer.helper)};
}

StartedTasks started_tasks(const Variables& variables) {
  StartedTasks started;
  for (const auto& [task, size] : kTasks) {
    const auto text = text_of(variables, size);
    if (!text || !text_of(variables, task)) continue;
    int value = 0;
    std::from_chars(text->data(), text->data() + text->size(), value);
    if (value > started.count) started = {.count = value, .variable = size};
  }
  return started;
}

}  // namespace dstrain::launcher
