#include "launcher/hosts/host_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <vector>

#include "engine/base/error.h"
#include "test/recipe/golden.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

constexpr const char* kThisHost = "me.cluster.example";

std::vector<Host> read(std::string_view text) { return parse_hostfile(text, "hosts", kThisHost); }

/// One host as a line, so that a test shows what it compares.
std::string line_of(const Host& host) {
  std::string line = fmt::format("{} {}", host.name, host.slots);
  if (!host.user.empty()) line += " user " + host.user;
  if (host.port != 0) line += fmt::format(" port {}", host.port);
  for (const int device : host.devices) line += fmt::format(" gpu {}", device);
  return line + (host.reach == Reach::local ? " here" : "");
}

std::vector<std::string> lines_of(const std::vector<Host>& hosts) {
  std::vector<std::string> lines;
  for (const Host& host : hosts) lines.push_back(line_of(host));
  return lines;
}

template <class Call>
std::string host_list_message(const Call& call) {
  try {
    static_cast<void>(call());
    return "no error\n";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    std::string text = fmt::format("{}\n", error.what());
    if (!error.hint().empty()) text += fmt::format("  hint: {}\n", error.hint());
    return text;
  }
}

using Lines = std::vector<std::string>;

TEST_CASE("a hostfile gives its hosts in file order", "[launcher][hosts]") {
  const auto hosts = read(
      "# two racks\n"
      "\n"
      "h1 slots=8\n"
      "\tme@h2.site   slots=4   # fewer\n"
      "10.0.0.3 port=2222 slots=1#tight\n"
      "[fd00::1] gpus=2,0 slots=2\n"
      "h-5_x slots=1024");
  CHECK(lines_of(hosts) == Lines{"h1 8", "h2.site 4 user me", "10.0.0.3 1 port 2222",
                                 "fd00::1 2 gpu 2 gpu 0", "h-5_x 1024"});
  CHECK(hosts[3].gpus == 2);
  CHECK(hosts[0].reach == Reach::ssh);
  CHECK(hosts[0].address.empty());
}

TEST_CASE("a list of names counts each line as a slot, as PBS and LSF write it",
          "[launcher][hosts]") {
  CHECK(lines_of(read("h2\nh2\n# a comment with slots=8\nh1\n\nH2\nme\nlocalhost\n")) ==
        Lines{"h2 3", "h1 1", "me 2 here"});
  CHECK(lines_of(read("u@h1\nu@h1\n")) == Lines{"h1 2 user u"});
  CHECK(host_list_message([] {
          return read("h1\nu@h1\n");
        }).starts_with("hosts:2:1: 'h1' stands above with another user\n"));
  CHECK(host_list_message([] { return read("h1\nh1 8\n"); }).starts_with("hosts:2:4: '8': after"));
  // One line with slots= makes it a list of hosts, each of which stands once.
  CHECK(
      host_list_message([] { return read("h1 slots=8\nh2\n"); }).starts_with("hosts:2:1: h2: say"));
  CHECK(host_list_message([] {
          return read("h1 slots=1\nh1 slots=1\n");
        }).starts_with("hosts:2:1: 'h1' stands on line 1 already"));
  std::string full;
  for (int i = 0; i < 1024; ++i) full += "h\n";
  CHECK(lines_of(read(full)) == Lines{"h 1024"});
  CHECK(host_list_message([&] {
          return read(full + "h\n");
        }).starts_with("hosts:1025:1: 'h' stands more than 1024 times; a host takes 1 to 1024"));
}

TEST_CASE("this machine is known by its names, and needs no ssh", "[launcher][hosts]") {
  for (const char* name : {"localhost", "LocalHost", "127.0.0.1", "127.1.2.3", "[::1]", "me", "ME",
                           "me.cluster.example", "[::ffff:127.0.0.1]"}) {
    CAPTURE(name);
    CHECK(read(fmt::format("{} slots=2", name)).front().reach == Reach::local);
  }
  for (const char* name : {"me2", "me.other.example", "you@localhost", "example", "128.0.0.1"}) {
    CAPTURE(name);
    CHECK(read(fmt::format("{} slots=2", name)).front().reach == Reach::ssh);
  }
  CHECK(read("localhost slots=2 port=2222").front().reach == Reach::ssh);
}

TEST_CASE("each wrong hostfile gives exactly the messages written beside it",
          "[launcher][hosts][golden]") {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator("test/launcher/golden/hostfiles")) {
    if (entry.path().extension() == ".hosts") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= 14);
  for (fs::path file : files) {
    const std::string text = test::read_text(file);
    const std::string found = host_list_message(
        [&] { return parse_hostfile(text, file.filename().string(), kThisHost); });
    CHECK(found != "no error\n");
    test::compare_with_file(found, file.replace_extension(".txt"));
  }
}

TEST_CASE("each wrong --hosts, --include and --exclude gives its message",
          "[launcher][hosts][golden]") {
  std::string all;
  for (const char* text : {",",
                           "a:8,",
                           "a:8,,b:8",
                           "a",
                           "a:",
                           "a:0",
                           "a:8junk",
                           "a:8:9",
                           "fd00::1:8",
                           "[fd00::1]",
                           "[fd00::1]8",
                           "a:8,A:4,b:1,u@b:2",
                           "me:2,localhost:2",
                           "a:8;touch x",
                           "a:8 b:8",
                           "-oProxyCommand=x:8",
                           "a:8,$(id):2,b;c:3",
                           "a:8\nb:8",
                           "a=8",
                           "a slots=8",
                           "\xFF:1"}) {
    all += fmt::format("--hosts '{}'\n{}\n", text,
                       host_list_message([&] { return parse_hosts(text, kThisHost); }));
  }
  const auto hosts = read("a slots=4\nb slots=4 gpus=1,3,5,7\n[fd00::1] slots=1\n");
  for (const char* text : {"c", "a@", "@", "a:4", "b:0,1", "a:0,0", "a:", "a@a:0", "a:x", "fd00::1",
                           "[fd00::1]:1", "a,b", "-x", "a;b"}) {
    all += fmt::format("--include '{}'\n{}\n", text,
                       host_list_message([&] { return filter_hosts(hosts, text, ""); }));
  }
  for (const char* text : {"a@b@[fd00::1]", "a:0,1,2,3@b@[fd00::1]:0", "z"}) {
    all += fmt::format("--exclude '{}'\n{}\n", text,
                       host_list_message([&] { return filter_hosts(hosts, "", text); }));
  }
  CHECK(all.find("no error") == std::string::npos);
  test::compare_with_file(all, "test/launcher/golden/host_options.txt");
}

TEST_CASE("option --hosts is the short form", "[launcher][hosts]") {
  CHECK(lines_of(parse_hosts("a:8, me@b.c:4,[fd00::1]:2,10.0.0.1:1,localhost:3", kThisHost)) ==
        Lines{"a 8", "b.c 4 user me", "fd00::1 2", "10.0.0.1 1", "localhost 3 here"});
}

TEST_CASE("the example hostfiles are what their comments say", "[launcher][hosts]") {
  const auto example = [](const char* name) {
    const fs::path path = fs::path("hostfiles") / name;
    return lines_of(parse_hostfile(test::read_text(path), name, kThisHost));
  };
  CHECK(example("two-nodes") == Lines{"node1 8", "node2 8"});
  CHECK(example("four-nodes-mixed") == Lines{"node1 8", "node2 4 user trainer",
                                             "node3.cluster.example 2 gpu 1 gpu 3",
                                             "10.0.0.14 2 port 2222"});
  CHECK(example("two-nodes-ipv6") == Lines{"fd00:10::1 4", "fd00:10::2 4"});
  for (const auto& entry : fs::directory_iterator("hostfiles")) {
    if (entry.path().extension() == ".md") continue;
    CAPTURE(entry.path().string());
    CHECK_NOTHROW(example(entry.path().filename().c_str()));
  }
}

TEST_CASE("include keeps hosts and GPUs, exclude takes them away", "[launcher][hosts]") {
  const auto hosts = read("a slots=2\nme@b slots=4\nc slots=1 gpus=5,6,7\n[fd00::1] slots=1\n");
  const auto filtered = [&](const char* include, const char* exclude) {
    return lines_of(filter_hosts(hosts, include, exclude));
  };
  CHECK(filtered("", "") == lines_of(hosts));
  CHECK(filtered("b@a", "") == Lines{"a 2", "b 4 user me"});
  CHECK(filtered("B:2,0@C:7", "") == Lines{"b 2 user me gpu 2 gpu 0", "c 1 gpu 7"});
  CHECK(filtered("", "a@[fd00:0::1]") == Lines{"b 4 user me", "c 1 gpu 5 gpu 6 gpu 7"});
  CHECK(filtered("a@b:1,2,3", "a@b:2") == Lines{"b 2 user me gpu 1 gpu 3"});
  CHECK(filtered("a@c", "c:5,6,7") == Lines{"a 2"});
  CHECK(filter_hosts(hosts, "b:0,2", "").front().gpus == 2);
  const auto here = read("me slots=4\nb slots=2\n");
  CHECK(lines_of(filter_hosts(here, "localhost:1,3@b", "")) ==
        Lines{"me 2 gpu 1 gpu 3 here", "b 2"});
  CHECK(lines_of(filter_hosts(here, "", "127.0.0.1")) == Lines{"b 2"});
}

TEST_CASE("a text of any size costs little time", "[launcher][hosts]") {
  const std::clock_t began = std::clock();  // CPU time: the machine may be busy
  CHECK_THROWS_AS(read(std::string(10 << 20, 'a')), Error);
  CHECK_THROWS_AS(read(std::string(1 << 20, 'a')), Error);
  CHECK_THROWS_AS(read(std::string(1 << 20, '\n')), Error);
  CHECK_THROWS_AS(read("h slots=1 " + std::string((1 << 20) - 10, ' ') + "x"), Error);
  CHECK_THROWS_AS(parse_hosts(std::string(10 << 20, ','), kThisHost), Error);
  CHECK_THROWS_AS(parse_hosts(std::string(1 << 20, ','), kThisHost), Error);
  std::string words = "h slots=1 gpus=0";
  for (int i = 0; i < 100'000; ++i) words += ",0";
  CHECK_THROWS_AS(read(words), Error);
  std::string max;
  for (int i = 0; max.size() < (1 << 20) - 20; ++i) max += fmt::format("n{} slots=1\n", i);
  CHECK(read(max).size() > 60'000);
  CHECK(std::clock() - began < 5 * CLOCKS_PER_SEC);
}

TEST_CASE("a hostfile of 10,000 lines is read in a tenth of a second", "[launcher][hosts]") {
  std::string listed;
  std::string names;
  for (int i = 0; i < 10'000; ++i) {
    listed += fmt::format("gpu-node-{:05}.cluster.example slots=8  # rack {}\n", i, i / 32);
    names += fmt::format("gpu-node-{:05}.cluster.example\n", i / 8);
  }
  const std::clock_t began = std::clock();
  CHECK(read(listed).size() == 10'000);
  CHECK(read(names).size() == 1'250);
  CHECK(std::clock() - began < CLOCKS_PER_SEC / 5);  // both
}

}  // namespace
}  // namespace dstrain::launcher
