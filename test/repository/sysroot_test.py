"""scripts/sysroot: what is linked there asks for glibc 2.28 and the libstdc++ of gcc 8 at most, runs here, and what dstrain asks of the C
library exists there, so that packages (preset `package`) can be built."""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1]).parents[1]
TRIPLET = "x86_64-linux-gnu"
# One name of each newer part: a wait by the steady clock, random_device, from_chars, file system, shared counts, threads, dlopen, pow.
SOURCE = """
#include <dlfcn.h>
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <sstream>
#include <thread>
extern "C" int part(double x) {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  const auto begin = std::chrono::steady_clock::now();
  changed.wait_until(lock, begin + std::chrono::milliseconds(30), [] { return false; });
  const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::stringstream text;
  text << std::pow(x, 0.5) << std::filesystem::exists("/") << std::make_shared<int>(3).use_count();
  double read = 0;
  const std::string digits = "2.5";
  std::from_chars(digits.data(), digits.data() + 3, read);
  std::jthread([&] { read += std::random_device()() >= 0 ? 0.5 : 9; }).join();
  std::fprintf(stderr, "stderr\\n");
  bool caught = false;
  try {
    std::filesystem::rename("/nowhere", "/");
  } catch (const std::filesystem::filesystem_error&) {
    caught = true;
  }
  return caught && text.str() == "211" && read == 3 && waited > 0.029 && waited < 5 && dlopen(nullptr, RTLD_NOW) != nullptr ? 0 : 1;
}
"""


def output_of(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def newest(file, family):
    return max((tuple(map(int, version.split("."))) for version in re.findall(rf"\({family}_([\d.]+)\)", output_of("objdump", "-T", file))), default=(0,))


root = pathlib.Path(output_of(ROOT / "scripts/sysroot").strip())
lib = root / "usr/lib" / TRIPLET
with tempfile.TemporaryDirectory() as folder:
    scratch = pathlib.Path(folder)
    (scratch / "part.cpp").write_text(SOURCE)
    (scratch / "main.cpp").write_text('extern "C" int part(double);\nint main() { return part(4); }\n')
    (scratch / "yaml.cpp").write_text('#include <yaml-cpp/yaml.h>\nextern "C" int yaml() { return YAML::Load("{a: 3}")["a"].as<int>(); }\n')
    compiler = ["g++", "-std=c++20", "-O1", "-fPIC", f"--sysroot={root}", f"-B{lib}", f"-L{lib}", "-Wl,--exclude-libs,libstdc++.a:libdstrain_shim.a",
                "-Wl,--allow-shlib-undefined"]
    output_of(*compiler, "-shared", scratch / "part.cpp", scratch / "yaml.cpp", lib / "libyaml-cpp.a", "-o", scratch / "libpart.so")
    output_of(*compiler, scratch / "main.cpp", scratch / "libpart.so", f"-Wl,-rpath,{scratch}", "-o", scratch / "shared")
    output_of(*compiler, "-static-libstdc++", "-static-libgcc", scratch / "main.cpp", scratch / "part.cpp", "-o", scratch / "static")
    for name in ("libpart.so", "shared", "static"):
        assert newest(scratch / name, "GLIBC") <= (2, 28), output_of("objdump", "-T", scratch / name)
        assert newest(scratch / name, "GLIBCXX") <= (3, 4, 25) and newest(scratch / name, "CXXABI") <= (1, 3, 11), name
    assert newest(scratch / "libpart.so", "GLIBCXX") > (3, 4, 20), "the shared library brought a libstdc++ of its own"
    for name in ("shared", "static"):
        output_of(scratch / name)
        # What starts a program runs its constructors, which newer systems do by themselves.
        assert "__libc_csu_init" in output_of("nm", scratch / name), f"{name} was not linked with the start files of glibc 2.28"

# What this build asks of the C library by name: a version of its own has each name that is newer, and packages would lack it.
there = set()
for file in [*lib.glob("lib*.so.?"), lib / "libdstrain_shim.a", lib / "libc_nonshared.a"]:
    if "stdc++" not in file.name and "gcc" not in file.name:
        there |= set(re.findall(r"^\S*\s+[TtDBVWui]\s+([^\s@]+)", output_of("nm", *(["-D"] if ".so" in file.name else []), file), re.M))
assert "pthread_create" in there and "getrandom" in there and "pidfd_open" not in there and len(there) > 2000, len(there)
for file in [BUILD / "bin/dstrain", *(BUILD / "lib/dstrain").glob("libdstrain_*.so")]:
    asked = set(re.findall(r"\*UND\*.*\(GLIBC_[\d.]+\)\s+(\S+)", output_of("objdump", "-T", file)))
    assert len(asked) > 10 and not asked - there, f"{file.name} calls what glibc 2.28 lacks: {sorted(asked - there)}"
print("sysroot: ok")
