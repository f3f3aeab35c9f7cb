#include "launcher/transport/host_problem.h"

#include <string>

#include "test/support/catch.h"

namespace {

using dstrain::launcher::classify_ssh;
using dstrain::launcher::HostProblem;
using Kind = HostProblem::Kind;

struct Case {
  int exit_code;
  const char* standard_error;
  Kind kind;
  const char* named;  ///< what the text must say
};

}  // namespace

// The words are those of OpenSSH 9.2, bash 5.2, dash 0.5 and glibc 2.36.
TEST_CASE("what ssh and the shell say gives the class of a host's problem", "[host_problem]") {
  const auto [code, words, kind, named] = GENERATE(
      Case{255, "ssh: Could not resolve hostname nowhere: Name or service not known\r\n",
           Kind::name, "nowhere"},
      Case{255, "ssh: Could not resolve hostname h: Temporary failure in name resolution\r\n",
           Kind::name, "Temporary"},
      Case{255, "ssh: connect to host h1 port 23: Connection refused\r\n", Kind::refused,
           "port 23"},
      Case{255, "ssh: connect to host h1 port 22: Connection timed out\r\n", Kind::timeout,
           "timed out"},
      Case{255, "ssh: connect to host h1 port 22: No route to host\r\n", Kind::timeout, "No route"},
      Case{255, "Connection timed out during banner exchange\r\n", Kind::timeout, "banner"},
      Case{255, "Timeout, server h1 not responding.\r\n", Kind::timeout, "h1"},
      Case{255,
           "@@@@@@@@@@@@@@@@@@@@@@\r\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     "
           "@\r\n"
           "Someone could be eavesdropping on you right now (man-in-the-middle attack)!\r\n"
           "Offending ED25519 key in /home/u/.ssh/known_hosts:3\r\n"
           "Host key for h1 has changed and you have requested strict checking.\r\n"
           "Host key verification failed.\r\n",
           Kind::host_key, "known_hosts:3"},
      Case{255,
           "No ED25519 host key is known for h1 and you have requested strict checking.\r\n"
           "Host key verification failed.\r\n",
           Kind::host_key, "unknown (No ED25519"},
      Case{255, "Host key verification failed.\r\n", Kind::host_key, "unknown"},
      Case{255, "u@h1: Permission denied (publickey,password).\r\n", Kind::authentication, "u@h1"},
      Case{255,
           "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures\r\n"
           "Disconnected from 10.0.0.1 port 22\r\n",
           Kind::authentication, "Too many"},
      Case{255,
           "kex_exchange_identification: Connection closed by remote host\r\n"
           "Connection closed by 10.0.0.1 port 22\r\n",
           Kind::connection, "kex_exchange"},
      Case{255, "kex_exchange_identification: read: Connection reset by peer\r\n", Kind::connection,
           "reset"},
      Case{255, "Connection to h1 closed by remote host.\r\n", Kind::connection, "closed"},
      Case{255,
           "channel 0: open failed: connect failed: Connection refused\r\nstdio forwarding "
           "failed\r\n"
           "kex_exchange_identification: Connection closed by remote host\r\n",
           Kind::refused, "channel 0"},
      Case{255, "/home/u/.ssh/config: line 3: Bad configuration option: hostt\r\n", Kind::other,
           "line 3"},
      Case{255, "dstrain: cannot start ssh\n", Kind::other, "cannot be started"},
      Case{255, "", Kind::other, "without a word"},
      Case{127, "bash: line 1: /opt/dstrain: No such file or directory\n", Kind::no_binary,
           "/opt/dstrain"},
      Case{127, "sh: 1: exec: /opt/dstrain: not found\n", Kind::no_binary, "not found"},
      Case{126, "bash: line 1: exec: /opt/dstrain: cannot execute: No such file or directory\n",
           Kind::no_binary, "No such"},
      Case{127, "env: '/opt/dstrain': No such file or directory\n", Kind::no_binary, "/opt"},
      Case{127,
           "/opt/dstrain: error while loading shared libraries: libyaml-cpp.so.0.7: cannot open "
           "shared object file: "
           "No such file or directory\n",
           Kind::cannot_run, "the library libyaml-cpp.so.0.7 is not"},
      Case{126, "bash: line 1: /opt/dstrain: cannot execute binary file: Exec format error\n",
           Kind::cannot_run, "Exec format"},
      Case{127, "bash: line 1: /opt/dstrain: cannot execute: required file not found\n",
           Kind::cannot_run, "required file"},
      Case{126, "bash: line 1: /opt/dstrain: Permission denied\n", Kind::cannot_run,
           "Permission denied"},
      Case{1,
           "/opt/dstrain: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found "
           "(required by /opt/dstrain)\n",
           Kind::cannot_run, "GLIBC_2.38"},
      Case{69, "error: no LibTorch: set DSTRAIN_SITE_PACKAGES\n", Kind::cannot_run, "no LibTorch"},
      Case{0, "", Kind::other, "without starting dstrain"});
  CAPTURE(code, words);
  const HostProblem problem = classify_ssh(code, words);
  CHECK(kind_name(problem.kind) == std::string(kind_name(kind)));
  CHECK(problem.text.find(named) != std::string::npos);
  CHECK(problem.text.find_first_of("\r\n") == std::string::npos);
  CHECK_FALSE(problem.hint.empty());
  CAPTURE(problem.text);
}

TEST_CASE("a banner before ssh's own words does not change the class", "[host_problem]") {
  const std::string banner = "****** Authorised use only ******\r\nAll sessions are logged.\r\n";
  const HostProblem problem =
      classify_ssh(255, banner + "u@h1: Permission denied (publickey).\r\n");
  CHECK(problem.kind == Kind::authentication);
  CHECK(problem.text == "it takes none of our keys (u@h1: Permission denied (publickey).)");
}

TEST_CASE("control characters of a host do not reach the terminal", "[host_problem]") {
  const HostProblem problem = classify_ssh(255, "\x1b]0;title\x07 odd \x1b[2Jwords\n");
  for (const char c : problem.text) CHECK(static_cast<unsigned char>(c) >= 0x20);
}
