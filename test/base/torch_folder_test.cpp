#include "engine/base/torch_folder.h"

#include <fstream>
#include <map>

#include "engine/base/module.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using dstrain::locate_torch;
using dstrain::TorchPlaces;
using dstrain::TorchSearch;
using dstrain::TorchVersion;
using dstrain::why_torch_does_not_serve;

const TorchVersion kWanted{"2.11.0", "13.0"};

void put(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

/// A site-packages folder with the files that a search looks at.
fs::path put_torch(const fs::path& site, const std::string& version, const std::string& cuda) {
  put(site / "torch/version.py",
      "from typing import Optional\n__version__ = '" + version +
          "'\ncuda: Optional[str] = " + (cuda.empty() ? "None" : "'" + cuda + "'") + "\n");
  for (const char* name :
       {"torch/lib/libtorch.so", "torch/lib/libtorch_cuda.so", "torch/lib/libgomp.so.1",
        "nvidia/nccl/lib/libnccl.so.2", "nvidia/cudnn/lib/libcudnn.so.9",
        "nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/lib/libcublas.so.13",
        "nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cu13/lib/libnvrtc.so.13"})
    put(site / name, "");
  return site;
}

/// A program that prints `line` whatever it is asked.
void put_python(const fs::path& file, const std::string& line) {
  put(file, "#!/bin/sh\necho '" + line + "'\n");
  fs::permissions(file, fs::perms::owner_all);
}

/// What is set beside PATH, and the search from a program in `prefix`.
TorchSearch search(const fs::path& prefix, std::map<std::string, std::string> variables = {}) {
  return locate_torch({.program = prefix / "bin/dstrain",
                       .variable =
                           [&variables](const char* name) {
                             const auto found = variables.find(name);
                             return found == variables.end() ? nullptr : found->second.c_str();
                           },
                       .wanted = kWanted});
}

}  // namespace

TEST_CASE("a torch that does not serve is refused with what it is", "[torch_folder]") {
  const dstrain::test::TempDir temp;
  CHECK(
      why_torch_does_not_serve(put_torch(temp / "good", "2.11.0+cu130", "13.0"), kWanted).empty());
  CHECK(
      why_torch_does_not_serve(put_torch(temp / "newer", "2.11.0+cu132", "13.2"), kWanted).empty());
  CHECK(why_torch_does_not_serve(temp / "absent", kWanted) == "is no folder that can be read");
  CHECK(why_torch_does_not_serve(temp.path(), kWanted) == "has no torch");
  CHECK(why_torch_does_not_serve(put_torch(temp / "old", "2.10.0", "13.0"), kWanted) ==
        "has torch 2.10.0, and this build needs 2.11.0");
  CHECK(why_torch_does_not_serve(put_torch(temp / "cpu", "2.11.0+cpu", ""), kWanted) ==
        "has torch 2.11.0+cpu for CPUs alone, and this build needs the one for CUDA 13");
  CHECK(why_torch_does_not_serve(put_torch(temp / "cu126", "2.11.0+cu126", "12.6"), kWanted) ==
        "has torch 2.11.0+cu126 for CUDA 12.6, and this build needs the one for CUDA 13");
  fs::remove(put_torch(temp / "half", "2.11.0", "13.0") / "nvidia/nccl/lib/libnccl.so.2");
  CHECK(why_torch_does_not_serve(temp / "half", kWanted) ==
        "has torch 2.11.0 but no nvidia/nccl/lib/libnccl.so.2: install it anew");
  // A build of the launcher alone compares nothing.
  CHECK(why_torch_does_not_serve(temp / "old", {}).empty());
}

TEST_CASE("LibTorch is taken from the first place that serves", "[torch_folder]") {
  const dstrain::test::TempDir temp;
  const fs::path good = put_torch(temp / "good", "2.11.0", "13.0");
  const fs::path old = put_torch(temp / "old", "2.10.0", "13.0");
  const std::string in_environment = "lib/python3.12/site-packages";
  put_torch(temp / ("venv/" + in_environment), "2.11.0", "13.0");
  put_torch(temp / ("conda/" + in_environment), "2.10.0", "13.0");
  const std::map<std::string, std::string> both = {{"VIRTUAL_ENV", (temp / "venv").string()},
                                                   {"CONDA_PREFIX", (temp / "conda").string()}};

  SECTION("DSTRAIN_SITE_PACKAGES ends the search, also where it does not serve") {
    auto named = both;
    named["DSTRAIN_SITE_PACKAGES"] = old;
    const TorchSearch found = search(temp / "tree", named);
    CHECK(found.site.empty());
    REQUIRE(found.refused.size() == 1);
    CHECK_THAT(found.refused[0], Contains("DSTRAIN_SITE_PACKAGES: ") && Contains("2.10.0"));
    named["DSTRAIN_SITE_PACKAGES"] = good;
    CHECK(search(temp / "tree", named).site == good);
    named["DSTRAIN_SITE_PACKAGES"] = "";
    CHECK(search(temp / "tree", named).place == "VIRTUAL_ENV");
  }
  SECTION("the folder that the tree remembers") {
    put(temp / "tree/lib/dstrain/site-packages", good.string() + "\n");
    CHECK(search(temp / "tree", both).site == good);
    put(temp / "tree/lib/dstrain/site-packages", (temp / "gone").string() + "\n");
    const TorchSearch next = search(temp / "tree", both);
    CHECK(next.place == "VIRTUAL_ENV");
    REQUIRE(next.refused.size() == 1);
    CHECK_THAT(next.refused[0], Contains("gone is no folder"));
  }
  SECTION("the folder that the user remembers") {
    put(temp / "home/.config/dstrain/site-packages", good.string() + "\n");
    auto with_home = both;
    with_home["HOME"] = (temp / "home").string();
    CHECK(search(temp / "tree", with_home).site == good);
    with_home["XDG_CONFIG_HOME"] = (temp / "other").string();
    CHECK(search(temp / "tree", with_home).place == "VIRTUAL_ENV");
  }
  SECTION("a wheel takes the torch beside it, whatever is active") {
    const fs::path site = put_torch(temp / "own/lib/python3.9/site-packages", "2.11.0", "13.0");
    fs::create_directories(site / "dstrain/lib/dstrain");
    CHECK(search(temp / "own", both).site == site);
  }
  SECTION("the python3 beside the program is asked") {
    put_python(temp / "own/bin/python3", (good / "torch/__init__.py").string());
    CHECK(search(temp / "own", both).site == good);
    put_python(temp / "own/bin/python3", "");
    const TorchSearch next = search(temp / "own", both);
    CHECK(next.place == "VIRTUAL_ENV");
    REQUIRE(next.refused.size() == 1);
    CHECK_THAT(next.refused[0], Contains("own/bin/python3: finds no torch"));
  }
  SECTION("one that is refused is named before the one that serves") {
    const TorchSearch found = search(temp / "tree", {{"VIRTUAL_ENV", (temp / "conda").string()},
                                                     {"CONDA_PREFIX", (temp / "venv").string()}});
    CHECK(found.place == "CONDA_PREFIX");
    REQUIRE(found.refused.size() == 1);
    CHECK_THAT(found.refused[0], Contains("VIRTUAL_ENV: ") && Contains("2.10.0"));
  }
}

TEST_CASE("where nothing serves, the sentence names each place and the cure", "[torch_folder]") {
  const TorchSearch none{
      .site = {}, .place = {}, .refused = {"A: has no torch", "B: finds no torch"}};
  CHECK(dstrain::no_torch_text(none, kWanted) ==
        "no LibTorch 2.11.0 for CUDA 13 was found: A: has no torch; B: finds no torch");
  CHECK_THAT(dstrain::no_torch_advice(kWanted), Contains("pip install torch==2.11.0"));
}

TEST_CASE("the tree of a program is above bin/, or where pip puts it", "[torch_folder]") {
  const dstrain::test::TempDir temp;
  const fs::path program = temp / "bin/dstrain";
  CHECK(dstrain::tree_of(program) == temp.path());
  auto time = fs::file_time_type::clock::now();
  for (const char* name : {"dstrain", "lib/python3.9/dist-packages/dstrain",
                           "lib/python3.11/site-packages/dstrain", "."}) {
    fs::create_directories(temp / name / "lib/dstrain");
    fs::last_write_time(temp / name / "lib/dstrain", time += std::chrono::seconds(1));
    CHECK(fs::equivalent(dstrain::tree_of(program), temp / name));
  }
}
