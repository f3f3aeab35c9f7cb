#include "launcher/transport/host_problem.h"

#include <fmt/format.h>

#include <array>
#include <initializer_list>
#include <vector>

namespace dstrain::launcher {
namespace {

using Kind = HostProblem::Kind;

constexpr std::size_t kMaxOutputBytes = 300;

/// Lines without carriage returns, control characters and what is empty: a host's words are
/// untrusted text.
std::vector<std::string> clean_lines(std::string_view text) {
  std::vector<std::string> lines;
  std::string line;
  const auto finish = [&] {
    while (!line.empty() && line.back() == ' ') line.pop_back();
    if (!line.empty()) lines.push_back(line.substr(0, kMaxOutputBytes));
    line.clear();
  };
  for (const char c : text) {
    if (c == '\n') {
      finish();
    } else if (c != '\r') {
      const auto code = static_cast<unsigned char>(c);
      line += code < 0x20 || code == 0x7f ? ' ' : c;
    }
  }
  finish();
  return lines;
}

/// What ssh itself says, mostly with exit code 255; the first rule with a phrase in a line holds.
struct Rule {
  Kind kind;
  std::initializer_list<std::string_view> phrases;
  const char* text;  ///< before ssh's own words in brackets
  const char* hint;
};

const std::array kRules = {
    Rule{Kind::other,
         {"dstrain: cannot start "},
         "ssh cannot be started on this machine",
         "install openssh-client here"},
    Rule{Kind::other,
         {"Bad configuration option", "Bad owner or permissions on", "Can't open user config file",
          "bad configuration options", "extra arguments at end of line"},
         "ssh refuses its configuration on this machine",
         "correct the ssh configuration file that it names"},
    Rule{Kind::name,
         {"Could not resolve hostname", "Name or service not known",
          "hostname contains invalid characters"},
         "the name does not resolve",
         "check the spelling; the name must be in DNS, /etc/hosts or the ssh configuration"},
    Rule{Kind::host_key,
         {"REMOTE HOST IDENTIFICATION HAS CHANGED", "Host key for "},
         "its host key is not the one we know",
         "if the host was set up anew: ssh-keygen -R HOST, then log in once by hand; if not, "
         "somebody may "
         "be in between"},
    Rule{Kind::host_key,
         {"host key is known for", "Host key verification failed"},
         "its host key is unknown",
         "log in once by hand and compare the fingerprint, or have the key in known_hosts"},
    Rule{Kind::authentication,
         {"Permission denied (", "Too many authentication failures",
          "No more authentication methods", "Permission denied, please try again"},
         "it takes none of our keys",
         "`ssh HOST true` must work without a question: ssh-add, ssh-copy-id or IdentityFile"},
    Rule{
        Kind::refused,
        {"Connection refused"},
        "nobody listens on its ssh port",
        "start sshd there, or give its port as port=N in the hostfile or in the ssh configuration"},
    Rule{Kind::timeout,
         {"timed out", "No route to host", "Network is unreachable", "Host is down",
          "not responding", "Timeout, server"},
         "no answer",
         "is the host up, and does a firewall let ssh through?"},
    Rule{Kind::connection,
         {"kex_exchange_identification", "ssh_exchange_identification", "Connection closed by",
          "Connection reset by", "closed by remote host", "Broken pipe",
          "Software caused connection abort"},
         "the connection was dropped",
         "look at sshd's log there: MaxStartups, a firewall, or a full process table"},
};

struct Match {
  const Rule* rule = nullptr;
  std::string line;
};

Match match(const std::vector<std::string>& lines) {
  for (const Rule& rule : kRules) {
    for (const std::string& line : lines) {
      for (const std::string_view phrase : rule.phrases) {
        if (line.find(phrase) != std::string::npos) return {&rule, line};
      }
    }
  }
  return {};
}

const std::string* find_line(const std::vector<std::string>& lines, std::string_view phrase) {
  for (const std::string& line : lines) {
    if (line.find(phrase) != std::string::npos) return &line;
  }
  return nullptr;
}

/// "Offending ED25519 key in /home/u/.ssh/known_hosts:3" tells more than the words that announce
/// it.
std::string best_words(const Match& match, const std::vector<std::string>& lines) {
  if (match.rule->kind == Kind::host_key) {
    if (const std::string* line = find_line(lines, "Offending ")) return *line;
    if (const std::string* line = find_line(lines, "host key is known for")) return *line;
  }
  std::string words = match.line;
  if (words.starts_with("ssh: ")) words.erase(0, 5);
  return words;
}

/// The agent's program could not be started by the shell there; nothing when it is no such case.
HostProblem classify_program(int exit_code, const std::vector<std::string>& lines) {
  const std::string last = lines.empty() ? std::string() : lines.back();
  constexpr std::string_view kLibrary = "error while loading shared libraries: ";
  if (const std::string* line = find_line(lines, kLibrary)) {
    std::string rest = line->substr(line->find(kLibrary) + kLibrary.size());
    const std::string library = rest.substr(0, rest.find(':'));
    return {
        Kind::cannot_run, fmt::format("dstrain is there, the library {} is not", library),
        "install that library there, or let --ship copy an installed tree, which brings its own"};
  }
  if (const std::string* line = find_line(lines, "' not found (required by")) {
    return {Kind::cannot_run,
            fmt::format("its system libraries are too old for this build ({})", *line),
            "build dstrain on the oldest system of the cluster"};
  }
  for (const char* phrase : {"Exec format error", "cannot execute binary file",
                             "required file not found", "bad interpreter"}) {
    if (const std::string* line = find_line(lines, phrase)) {
      return {Kind::cannot_run, fmt::format("dstrain is there and cannot run ({})", *line),
              "it is built for another processor or system: build it there"};
    }
  }
  if (exit_code == 126) {
    const bool missing = last.find("No such file") != std::string::npos;
    if (!missing) {
      return {Kind::cannot_run, fmt::format("dstrain is there and cannot run ({})", last),
              "chmod +x it, or move it off a file system that is mounted noexec"};
    }
  }
  return {Kind::no_binary,
          last.empty() ? "dstrain is not there" : fmt::format("dstrain is not there ({})", last),
          "install it at the same path, use a shared folder, or let --ship copy it"};
}

}  // namespace

const char* kind_name(Kind kind) {
  switch (kind) {
    using enum HostProblem::Kind;
    case name:
      return "name";
    case refused:
      return "refused";
    case timeout:
      return "timeout";
    case host_key:
      return "host key";
    case authentication:
      return "authentication";
    case connection:
      return "connection";
    case no_binary:
      return "no binary";
    case cannot_run:
      return "cannot run";
    case version:
      return "version";
    case directory:
      return "directory";
    case other:
      return "other";
  }
  return "other";
}

HostProblem classify_ssh(int exit_code, std::string_view standard_error) {
  const std::vector<std::string> lines = clean_lines(standard_error);
  if (exit_code == 126 || exit_code == 127) return classify_program(exit_code, lines);
  if (exit_code == 255) {
    const Match found = match(lines);
    if (found.rule != nullptr) {
      return {found.rule->kind, fmt::format("{} ({})", found.rule->text, best_words(found, lines)),
              found.rule->hint};
    }
    return {Kind::other,
            lines.empty() ? "ssh failed without a word, or dstrain there was killed by a signal"
                          : fmt::format("ssh failed: {}", lines.back()),
            "try it by hand: ssh HOST true"};
  }
  if (exit_code == 0) {
    return {Kind::other, "the login ended without starting dstrain",
            "is there a forced command or another program as login shell?"};
  }
  if (find_line(lines, "error while loading shared libraries") != nullptr ||
      find_line(lines, "' not found (required by") != nullptr)
    return classify_program(exit_code, lines);
  return {Kind::cannot_run,
          fmt::format("dstrain there ended with code {} before its first word{}", exit_code,
                      lines.empty() ? std::string() : fmt::format(": {}", lines.back())),
          "start it there by hand: dstrain --version"};
}

}  // namespace dstrain::launcher
