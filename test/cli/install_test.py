"""An installed tree can be moved: it finds its engine and recipes beside itself and LibTorch in the named site-packages."""
import os
import pathlib
import subprocess
import sysconfig
import tempfile

from support import DSTRAIN

build = pathlib.Path(DSTRAIN).parents[1]
with tempfile.TemporaryDirectory() as scratch:
    first = pathlib.Path(scratch) / "first"
    moved = pathlib.Path(scratch) / "moved"
    subprocess.run(["cmake", "--install", build, "--prefix", first], check=True, capture_output=True)
    first.rename(moved)
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
