#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "engine/base/error.h"
#include "launcher/hosts/host_list.h"
#include "test/recipe/golden.h"

namespace dstrain::launcher {
namespace {

using Names = std::vector<std::string>;
using Counts = std::vector<int>;

template <class Call>
std::string node_list_message(const Call& call) {
  try {
    static_cast<void>(call());
    return "no error";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
}

// What `scontrol show hostnames` of Slurm 22.05 prints.
TEST_CASE("node lists expand as scontrol does", "[launcher][slurm]") {
  CHECK(expand_node_list("login") == Names{"login"});
  CHECK(expand_node_list("n[1-3,07],login,r[1-2]u[01-04]") ==
        Names{"n1", "n2", "n3", "n07", "login", "r1u01", "r1u02", "r1u03", "r1u04", "r2u01",
              "r2u02", "r2u03", "r2u04"});
  CHECK(expand_node_list("n[099-101]") == Names{"n099", "n100", "n101"});
  CHECK(expand_node_list("n[007,8-10]") == Names{"n007", "n8", "n9", "n10"});
  CHECK(expand_node_list("n[01-3]") == Names{"n01", "n02", "n03"});
  CHECK(expand_node_list("n[9-011]") == Names{"n9", "n10", "n11"});
  CHECK(expand_node_list("n[00-02]") == Names{"n00", "n01", "n02"});
  CHECK(expand_node_list("n[1-2][3-4]") == Names{"n13", "n14", "n23", "n24"});
  CHECK(expand_node_list("[1-3]") == Names{"1", "2", "3"});
  CHECK(expand_node_list("n1-3,a_b.c") == Names{"n1-3", "a_b.c"});
}

// Later versions of Slurm know text after the last bracket.
TEST_CASE("a node's name may go on after the brackets", "[launcher][slurm]") {
  CHECK(expand_node_list("n[1-2]-ib,r[1-2]x[3,5]y") ==
        Names{"n1-ib", "n2-ib", "r1x3y", "r1x5y", "r2x3y", "r2x5y"});
}

TEST_CASE("counts are repeated as (xN) says", "[launcher][slurm]") {
  CHECK(expand_counts("2(x3),1") == Counts{2, 2, 2, 1});
  CHECK(expand_counts("72") == Counts{72});
  CHECK(expand_counts("0,4(x2),0") == Counts{0, 4, 4, 0});
}

TEST_CASE("each wrong node list and count gives its message", "[launcher][slurm][golden]") {
  std::string all;
  for (const char* text : {"",
                           ",",
                           "a,",
                           "a,,b",
                           "n[",
                           "n[1",
                           "n[]",
                           "n[1-]",
                           "n[-1]",
                           "n[3-1]",
                           "n[a-c]",
                           "n[1--3]",
                           "n[ 1-2]",
                           "n[1-2]]",
                           "n[1,1]",
                           "n1,n[0-3]",
                           "n[1[2]]",
                           "-n",
                           "a;b",
                           "$(id)",
                           "a b",
                           "n\n",
                           "n\xFF",
                           "n[1-65537]",
                           "n[1-400]x[1-400]",
                           "n[0-999999999]",
                           "n[0-9999999999]"}) {
    all += fmt::format("node list '{}'\n  {}\n", text,
                       node_list_message([&] { return expand_node_list(text); }));
  }
  all += fmt::format("node list of a long name\n  {}\n",
                     node_list_message([] { return expand_node_list(std::string(300, 'n')); }));
  for (const char* text : {"", ",", "2,", "2(x", "2(3)", "2(x3", "2(x0)", "x3", "2(x3)1", "-1",
                           "2(x65537)", "2(x65536),1", "99999999999", " 2"}) {
    all += fmt::format("counts '{}'\n  {}\n", text,
                       node_list_message([&] { return expand_counts(text); }));
  }
  CHECK(all.find("no error") == std::string::npos);
  test::compare_with_file(all, "test/launcher/golden/node_lists.txt");
}

TEST_CASE("no more names than the limit", "[launcher][slurm]") {
  CHECK(expand_node_list("n[1-65536]").size() == 65536);
  CHECK(expand_node_list("n[1-4]", 4).size() == 4);
  CHECK_THROWS_AS(expand_node_list("n[1-4],m", 4), Error);
  CHECK_THROWS_AS(expand_node_list("n[1-4][0-999999999][0-999999999][0-999999999]"), Error);
  CHECK_THROWS_AS(expand_node_list("n[" + std::string(2 << 20, '1')), Error);
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[1]";
  CHECK_THROWS_AS(expand_node_list(deep), Error);
}

TEST_CASE("names written with commas read back as themselves", "[launcher][slurm][property]") {
  const Names names = expand_node_list("n[1-3,07],login,r[1-2]u[01-04],x[098-102]-ib");
  CHECK(expand_node_list(fmt::format("{}", fmt::join(names, ","))) == names);
}

}  // namespace
}  // namespace dstrain::launcher
