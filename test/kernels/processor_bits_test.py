"""The optimizer's loops and the resize of images give the same bits on x86-64 and on aarch64, which qemu plays; what has no vector unit of
x86 compiles for aarch64."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CUDA = sys.argv[1]
CROSS = "aarch64-linux-gnu-g++"
if not shutil.which(CROSS) or not shutil.which("qemu-aarch64"):
    print(f"skipped: {CROSS} or qemu-aarch64 is not installed; scripts/setup --tests installs them")
    raise SystemExit(77)
SOURCES = {"test/kernels/processor_bits.cpp": [], "engine/data/images/resize_loops.cpp": ["-O3"], "engine/kernels/optimizer/optimizer_scalar.cpp": None}
# What CMake gives the optimizer's loops.
loops = re.search(r"^set\(loops (.*)\)$", (ROOT / "engine/kernels/CMakeLists.txt").read_text(), re.M)[1].split()


def output_of(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, (command, done.stderr[-3000:])
    return done.stdout


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    lines = {}
    for compiler, start in {"g++": [], CROSS: ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]}.items():
        objects = []
        for source, options in SOURCES.items():
            objects.append(scratch / f"{compiler}-{pathlib.Path(source).stem}.o")
            output_of(compiler, "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}", f"-isystem{CUDA}",
                      *(loops if options is None else options), "-c", source, "-o", objects[-1])
        output_of(compiler, *objects, "-o", scratch / compiler)
        lines[compiler] = output_of(*start, scratch / compiler).splitlines()
assert len(lines["g++"]) == 19 and len(set(lines["g++"])) == 19, lines["g++"]
assert lines["g++"] == lines[CROSS], "\n".join(f"{a} | {b}" for a, b in zip(lines["g++"], lines[CROSS]) if a != b)
print("bits of x86-64 and aarch64: equal")
