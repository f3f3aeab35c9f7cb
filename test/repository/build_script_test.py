"""scripts/build configures once for a LibTorch, says how long a build from nothing takes, and hands its targets to ninja. scripts/setup lists what it installs."""
import os
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMAKE = '#!/bin/sh\nmkdir -p "build/$2" && touch "build/$2/build.ninja"\necho "DSTRAIN_SITE_PACKAGES:PATH=$DSTRAIN_SITE_PACKAGES" >"build/$2/CMakeCache.txt"\necho "-- kernels for GPUs of compute capability 9.0"\n'

with tempfile.TemporaryDirectory() as folder:
    tree = pathlib.Path(folder)
    for name in ("scripts", "bin", "cache"):
        (tree / name).mkdir()
    shutil.copy(ROOT / "scripts/build", tree / "scripts")
    (tree / "cache/env").write_text("export DSTRAIN_SITE_PACKAGES=/one\n")
    for name, text in {"cmake": CMAKE, "ninja": '#!/bin/sh\necho "ninja $*"\n', "nproc": "#!/bin/sh\necho 4\n"}.items():
        (tree / "bin" / name).write_text(text)
        (tree / "bin" / name).chmod(0o755)

    def build(*words, **variables):
        done = subprocess.run([tree / "scripts/build", *words], capture_output=True, text=True,
                              env={"PATH": f"{tree}/bin:{os.environ['PATH']}", "DSTRAIN_CACHE": f"{tree}/cache", **variables})
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    kernels, minutes, ninja = build("release", "dstrain")
    assert kernels == "build: kernels for GPUs of compute capability 9.0", kernels
    assert minutes.startswith("build: from nothing about ") and " minutes on 4 threads" in minutes, minutes
    assert ninja == "ninja -C build/release dstrain", ninja
    assert build("release", "dstrain", "test_base") == ["ninja -C build/release dstrain test_base"]
    assert build("release", DSTRAIN_GPUS="8.0")[0] == kernels
    assert build("dev") == [kernels, "ninja -C build/dev"]
    (tree / "cache/env").write_text("export DSTRAIN_SITE_PACKAGES=/other\n")
    assert build("release") == [kernels, "ninja -C build/release"] and build("release") == ["ninja -C build/release"]
    (tree / "scripts/sysroot").write_text('#!/bin/sh\necho "/$*"\n')  # LibTorch of the other machine, not that of this one
    (tree / "scripts/sysroot").chmod(0o755)
    assert build("aarch64-engine", "dstrain")[-1] == "ninja -C build/aarch64-engine dstrain"
    assert "=/--machine aarch64 --torch\n" in (tree / "build/aarch64-engine/CMakeCache.txt").read_text()


def setup(*words):
    return subprocess.run([ROOT / "scripts/setup", *words], capture_output=True, text=True, env={"PATH": os.environ["PATH"], "HOME": "/nowhere"})

# Nothing but packages: pip and apt read them.
wheels = setup("--list", "pip").stdout.splitlines()
assert {wheel.split("==")[0] for wheel in wheels} >= {"torch", "pyarrow", "nvidia-nvjpeg"} and all(wheel.count("==") == 1 for wheel in wheels), wheels
page = (ROOT / "recipes/guides/install.md").read_text()
assert "pip download -d wheels -r <(scripts/setup --list pip)" in page and f"torch {wheels[0].split('==')[1]} for CUDA" in page, wheels
packages = setup("--list", "apt").stdout.split()
assert {"g++", "cmake", "libgloo-dev"} <= set(packages) and not any(word.endswith(":") for word in packages), packages
assert setup("--torch", "2.15.0", "--list", "pip").stdout.splitlines()[0] == "torch==2.15.0"
for words in ("--test",), ("--torch",), ("--torch", "newest"):
    assert (wrong := setup(*words)).returncode == 64 and "none of --tests, --torch VERSION" in wrong.stderr, wrong
print("scripts/build and scripts/setup: ok")
