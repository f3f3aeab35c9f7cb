"""An installed tree can be moved: it finds its engine and recipes beside itself and LibTorch in the named site-packages."""
import os
import pathlib
import re
import subprocess
import sysconfig
import tempfile

from support import DSTRAIN

# Every Debian and Ubuntu has the first, but libcrypto, which install.md names; the torch wheel has the others.
SYSTEM = r"ld-linux-x86-64|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|z|lzma|bz2|crypto)"
WHEEL = r"lib(torch|torch_cpu|torch_cuda|c10|c10_cuda|gomp|cudart|cublas|cublasLt|cudnn|nccl|nvrtc|nvjpeg|arrow|parquet)"
build = pathlib.Path(DSTRAIN).parents[1]
with tempfile.TemporaryDirectory() as scratch:
    first = pathlib.Path(scratch) / "first"
    moved = pathlib.Path(scratch) / "moved"
    subprocess.run(["cmake", "--install", build, "--prefix", first], check=True, capture_output=True)
    first.rename(moved)
    binaries = [moved / "libexec/dstrain", *(moved / "lib").iterdir()]
    dynamic = subprocess.run(["readelf", "-d", *binaries], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)) - {binary.name for binary in binaries}
    strange = [name for name in needed if not re.fullmatch(rf"({SYSTEM}|{WHEEL})\.so[.\d]*", name)]
    assert needed and not strange, f"the tree lacks {strange}; cmd/CMakeLists.txt names what it takes along"
    environment = os.environ | {"DSTRAIN_SITE_PACKAGES": sysconfig.get_path("purelib")}
    result = subprocess.run([moved / "bin/dstrain", "launch", "quickstart", "--ranks", "2",
                             "--set", "run.epochs=1", "--set", f"run.output={scratch}/runs"],
                            cwd=scratch, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and "test accuracy" in result.stdout, result.stdout + result.stderr
    result = subprocess.run([moved / "bin/dstrain", "recipe", "show", "recipes/vit/vit-base_random_ddp.yaml"], cwd=scratch, env=environment, capture_output=True, text=True)
    assert result.returncode == 0 and str(moved / "share/dstrain/recipes/vit") in result.stdout, result.stdout + result.stderr
    environment["DSTRAIN_SITE_PACKAGES"] = scratch
    result = subprocess.run([moved / "bin/dstrain", "--version"], env=environment, capture_output=True, text=True)
    assert result.returncode == 69 and "DSTRAIN_SITE_PACKAGES" in result.stderr, result.stderr
print("install: ok")
