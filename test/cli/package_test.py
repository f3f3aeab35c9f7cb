"""The packages of a build: the wheel installs by pip beside a torch and runs without Python, its metadata, licences and version agree with
the tree; the tarball holds the same files."""
import csv
import os
import pathlib
import re
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile

from support import DSTRAIN, ROOT

build = pathlib.Path(DSTRAIN).parents[1]
SITE = sysconfig.get_path("purelib")
VERSION = re.search(r"^project\(dstrain VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
# What every Linux has.
GLIBC = r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread))\.so\.\d"


def expect_versions():
    """CMake, CHANGELOG and a tag of the sources say the same version."""
    headings = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert not headings or tuple(map(int, headings[0].split("."))) <= tuple(map(int, VERSION.split("."))), (headings[0], VERSION)
    tags = subprocess.run(["git", "-C", ROOT, "tag", "--points-at", "HEAD"], capture_output=True, text=True).stdout.split()
    for tag in tags:
        if re.fullmatch(r"v\d.*", tag):
            assert tag == f"v{VERSION}" and headings[:1] == [VERSION], (tag, VERSION, headings[:1])


def metadata_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = f"dstrain-{VERSION}.dist-info"
        assert {f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD", f"{info}/licenses/NOTICE"} <= set(names), names
        program = archive.getinfo(f"dstrain-{VERSION}.data/scripts/dstrain")
        assert stat.S_ISREG(program.external_attr >> 16) and program.external_attr >> 16 & stat.S_IXUSR, oct(program.external_attr)
        rows = {row[0] for row in csv.reader(archive.read(f"{info}/RECORD").decode().splitlines())}
        assert rows == set(names), rows ^ set(names)
        notice = archive.read(f"{info}/licenses/NOTICE").decode()
        for name in names:  # every library of others has its licence
            if re.search(r"/lib/dstrain/lib(?!dstrain_)[^/]*\.so", name):
                assert pathlib.Path(name).name in notice.split("=" * 100)[0], f"NOTICE lacks {name}"
        for words in ("libyaml-cpp", "nlohmann", "torch-", "Apache-2.0"):
            assert words in notice, words
        return names, archive.read(f"{info}/METADATA").decode()


expect_versions()
with tempfile.TemporaryDirectory(dir=os.environ.get("DSTRAIN_TEST_DISK", "/var/tmp")) as scratch:
    scratch = pathlib.Path(scratch)
    done = subprocess.run([ROOT / "scripts/package", "--build", build, "--output", scratch / "dist"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel], [tarball] = (list((scratch / "dist").glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    assert re.fullmatch(rf"dstrain-{re.escape(VERSION)}-py3-none-manylinux_2_\d\d_\w+\.whl", wheel.name), wheel
    assert wheel.stat().st_size < 70e6, wheel.stat().st_size
    names, metadata = metadata_of(wheel)
    # Images and the environment name this wheel, the packages of scripts/setup, and no root user.
    recipes = {name: (scratch / "dist" / name).read_text() for name in ("Dockerfile", "dstrain.def", "environment.yml")}
    for name, text in recipes.items():
        assert wheel.name in text and not re.search(r"@[A-Z]+@", text), text
        assert name == "environment.yml" or re.search(r"^[^#]*\btorch==[\d.]+ pyarrow==\S+ nvidia-nvjpeg==", text, re.M), text
    assert re.search(r"^USER dstrain$", recipes["Dockerfile"], re.M) and "pip:\n      - ./" in recipes["environment.yml"], recipes
    torch = re.search(r"^__version__ = '([\d.]+)", (pathlib.Path(SITE) / "torch/version.py").read_text(), re.M)[1]
    assert all(re.search(rf'[" ]torch=={re.escape(torch)} ', recipes[name]) for name in ("Dockerfile", "dstrain.def")), recipes
    for line in (f"Version: {VERSION}", f"Requires-Dist: torch=={torch}", "Provides-Extra: parquet", "Provides-Extra: jpeg"):
        assert line in metadata.splitlines(), metadata

    # A virtual environment whose torch is another's, linked in.
    home = scratch / "home"
    venv.create(home, symlinks=True, with_pip=False)
    [packages] = home.glob("lib/python3*/site-packages")
    (packages / "linked.pth").write_text(SITE + "\n")
    pip = [sys.executable, "-m", "pip", "--python", home / "bin/python3", "install", "--no-deps", "--no-index", "--disable-pip-version-check", "-q"]
    done = subprocess.run([*pip, wheel], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    needs = subprocess.run(["readelf", "-d", home / "bin/dstrain"], check=True, capture_output=True, text=True).stdout
    strange = [name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", needs) if not re.fullmatch(GLIBC, name)]
    assert not strange, f"bin/dstrain of the wheel needs {strange} to start"
    # libpmix is opened when it is asked, so that no package names it.
    helper = packages / "dstrain/lib/dstrain/dstrain-pmix"
    assert "libpmix" not in subprocess.run(["readelf", "-d", helper], check=True, capture_output=True, text=True).stdout

    def run(program, *words, **variables):
        environment = {name: value for name, value in os.environ.items() if name not in ("DSTRAIN_SITE_PACKAGES", "VIRTUAL_ENV", "LD_LIBRARY_PATH")}
        done = subprocess.run([program, *words], cwd=scratch, env={**environment, "PATH": "/usr/bin:/bin", **variables}, capture_output=True,
                              text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert run(home / "bin/dstrain", "--version").startswith(f"dstrain {VERSION} ")
    assert "memory" in run(home / "bin/dstrain", "plan", "quickstart", "--ranks", "2")
    text = run(home / "bin/dstrain", "launch", "quickstart", "--ranks", "2", "--set", "run.epochs=1", "--set", f"run.output={scratch}/runs")
    assert "test accuracy" in text, text

    # The module for notebooks starts it and reads its files.
    cells = """
import dstrain
lines = []
run = dstrain.launch("quickstart", set={"run.epochs": 1, "metrics.tensorboard": False}, ranks=2, output="cells", show=lines.append)
assert lines and run.path.parent.name == "cells", (lines, run)
rows = run.metrics("step", "loss")
assert len(rows) > 0 and len(run.metrics()) >= len(rows), rows
assert [found.path for found in dstrain.runs("cells")] == [run.path]
assert "quickstart" in run.report() and "model:" in run.recipe()
assert dstrain.plan("quickstart", ranks=2)["fits"]
try:
    dstrain.launch("quickstart", set={"run.epoch": 1}, show=lines.append)
except dstrain.Failed as failed:
    assert failed.code == 64 and "did you mean 'epochs'" in str(failed), failed
else:
    raise AssertionError("an unknown key was taken")
"""
    run(home / "bin/python3", "-c", cells)

    # pip install --target lays the same files elsewhere.
    done = subprocess.run([*pip, "--target", scratch / "target", wheel], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "quickstart" in run(scratch / "target/bin/dstrain", "recipe", "list")
    run(scratch / "target/bin/dstrain", "plan", "quickstart", DSTRAIN_SITE_PACKAGES=SITE)

    with tarfile.open(tarball) as archive:
        archive.extractall(scratch)
        files = {member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()}
    wanted = {name.removeprefix("dstrain/") for name in names if name.startswith("dstrain/") and not name.endswith(".py")} | {"bin/dstrain", "LICENSE", "NOTICE"}
    assert files == wanted, files ^ wanted
    [tree] = scratch.glob("dstrain-*-linux-*")
    run(tree / "bin/dstrain", "plan", "quickstart", DSTRAIN_SITE_PACKAGES=SITE)
print("package: ok")
