#include "launcher/transport/ship.h"

#include <cstdlib>
#include <fstream>

#include "engine/base/error.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace {

namespace fs = std::filesystem;
using dstrain::launcher::ship_tree;
using dstrain::launcher::ShipTree;
using Names = std::vector<std::string>;

void put(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

/// What the machine's shell prints, without the newline.
std::string run(const std::string& command) {
  const dstrain::test::TempDir temp;
  const fs::path script = temp / "script";
  put(script, command);
  REQUIRE(std::system(("sh " + script.string() + " > " + (temp / "out").string()).c_str()) == 0);
  std::string line;
  std::ifstream file(temp / "out");
  std::getline(file, line);
  return line;
}

std::string hash(const ShipTree& tree) { return run(dstrain::launcher::ship_hash_command(tree)); }

}  // namespace

TEST_CASE("a tree is shipped by name: the program and what lies in lib/dstrain", "[ship]") {
  const dstrain::test::TempDir temp;
  for (const char* name :
       {"bin/dstrain", "bin/other", "lib/dstrain/dstrain-pmix", "lib/dstrain/libdstrain_engine.so",
        "lib/libother.so", "lib/python3/big"})
    put(temp / name, name);
  const ShipTree tree = ship_tree(temp / "bin/dstrain");
  CHECK(fs::equivalent(tree.root, temp.path()));
  CHECK(tree.entry == "bin/dstrain");
  CHECK(tree.names ==
        Names{"bin/dstrain", "lib/dstrain/dstrain-pmix", "lib/dstrain/libdstrain_engine.so"});
}

TEST_CASE("the tree of a wheel is shipped as pip laid it down", "[ship]") {
  const dstrain::test::TempDir temp;
  const std::string packages = "lib/python3.11/site-packages/";
  for (const std::string& name :
       {std::string("bin/dstrain"), packages + "dstrain/lib/dstrain/libdstrain_engine.so",
        packages + "dstrain/share/dstrain/recipes/r.yaml", packages + "torch/lib/libtorch.so"})
    put(temp / name, name);
  const ShipTree tree = ship_tree(temp / "bin/dstrain");
  CHECK(tree.entry == "bin/dstrain");
  CHECK(tree.names == Names{"bin/dstrain", packages + "dstrain/lib/dstrain/libdstrain_engine.so"});
}

TEST_CASE("a program alone is a tree of one file, none is an error", "[ship]") {
  const dstrain::test::TempDir temp;
  put(temp / "some folder/it's", "program");
  const ShipTree tree = ship_tree(temp / "some folder/it's");
  CHECK(tree.names == Names{"it's"});
  CHECK(hash(tree).size() == 64);
  CHECK_THROWS_AS(ship_tree(temp / "nothing"), dstrain::Error);
}

TEST_CASE("the hash is that of every name and content, wherever the tree lies", "[ship]") {
  const dstrain::test::TempDir a;
  const dstrain::test::TempDir b;
  for (const auto* temp : {&a, &b}) {
    put(*temp / "dstrain", "program");
    put(*temp / "libdstrain_engine.so", "engine");
  }
  const std::string same = hash(ship_tree(a / "dstrain"));
  CHECK(hash(ship_tree(b / "dstrain")) == same);
  put(b / "libdstrain_engine.so", "other");
  CHECK(hash(ship_tree(b / "dstrain")) != same);
  fs::rename(a / "libdstrain_engine.so", a / "libdstrain_other.so");
  CHECK(hash(ship_tree(a / "dstrain")) != same);
}
