"""`dstrain setup` takes a LibTorch that is there, or has pip fetch one, and the tree remembers it; what is missing is named. pip is a script
here, which links the torch of this machine."""
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

from support import DSTRAIN

SITE = pathlib.Path(sysconfig.get_path("purelib"))
PIP = f"""#!/bin/sh
echo "$@" >>"$HOME/words"
[ "$3" != --version ] || exit $(cat "$HOME/pip-fails" 2>/dev/null || echo 0)
for word in "$@"; do
  [ "$last" != --target ] || target=$word
  last=$word
done
[ -n "$target" ] || exit 1  # asked where torch is
[ ! -e "$HOME/full" ] || {{ echo "OSError: [Errno 122] Disk quota exceeded" >&2; exit 1; }}
ln -s {SITE}/torch {SITE}/nvidia "$target"
"""

# Preloaded: a disk whose quota leaves 2 GB.
QUOTA = """
#include <errno.h>
int fallocate64(int fd, int mode, long long begin, long long bytes) {
  errno = EDQUOT;
  return begin + bytes > 2000000000 ? -1 : 0;
}
int fallocate(int fd, int mode, long long begin, long long bytes) { return fallocate64(fd, mode, begin, bytes); }
"""

with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    tree, home, programs = (scratch / name for name in ("tree", "home", "programs"))
    subprocess.run(["cmake", "--install", pathlib.Path(DSTRAIN).parents[1], "--prefix", tree], check=True, capture_output=True)
    home.mkdir()
    programs.mkdir()
    (programs / "python3").write_text(PIP)
    (programs / "python3").chmod(0o755)

    def run(*words, code=0, **variables):
        done = subprocess.run([tree / "bin/dstrain", *map(str, words)], cwd=scratch, capture_output=True, text=True, timeout=200,
                              env={"HOME": str(home), "PATH": f"{programs}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "", **variables})
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    assert "dstrain setup" in run("plan", "quickstart", code=69)
    (home / "words").unlink()
    # A folder that is there, as site-packages or as an environment.
    for folder in (SITE, sys.prefix):
        assert f"{SITE}, remembered in {tree}/lib/dstrain/site-packages" in run("setup", "--torch-dir", folder)
        assert (tree / "lib/dstrain/site-packages").read_text() == f"{SITE}\n"
    run("plan", "quickstart")
    assert not (home / "words").exists(), "nothing asks Python"
    # One whose torch does not serve is left as it is.
    other = scratch / "other/torch"
    other.mkdir(parents=True)
    (other / "version.py").write_text("__version__ = '2.10.0'\n")
    text = run("setup", "--torch-dir", scratch / "other", code=64)
    assert "has torch 2.10.0, and this build needs" in text and list((scratch / "other").iterdir()) == [other], text
    # A quota that it does not fit in is named before pip starts, and pip's own words where it could not be seen.
    (tree / "lib/dstrain/site-packages").unlink()
    quota = scratch / "quota.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", quota], input=QUOTA, text=True, check=True)
    text = run("setup", "--torch-dir", scratch / "small", code=74, LD_PRELOAD=str(quota))
    assert re.search(r"a quota leaves [\d.]+ G\w* in \S+/small, LibTorch needs ", text) and "another disk" in text, text
    assert not (home / "words").exists() and not list((scratch / "small").iterdir()), "pip had no reason to start"
    (home / "full").touch()
    text = run("setup", "--torch-dir", scratch / "a new/folder", code=69)
    assert "Disk quota exceeded" in text and "quota" in text.splitlines()[-1], text
    (home / "full").unlink()
    run("setup", "--torch-dir", scratch / "a new/folder", "--parquet")
    assert re.search(r"--only-binary :all: --target \S+/a new/folder torch==[\d.]+ pyarrow==[\d.]+$", (home / "words").read_text(), re.M), (home / "words").read_text()
    assert sorted(path.name for path in (scratch / "a new/folder").iterdir()) == ["nvidia", "torch"]
    run("plan", "quickstart")
    # One that is found is enough; else the default folder takes it, after one that was killed, too.
    assert f"{scratch}/a new/folder (by " in run("setup") and not (home / ".cache/dstrain/torch").exists()
    (tree / "lib/dstrain/site-packages").unlink()
    broken = home / ".cache/dstrain/torch/torch"
    broken.mkdir(parents=True)
    text = run("setup", code=64)
    assert "--torch-dir names another folder" in text and broken.exists(), text
    (broken.parent / ".dstrain-unfinished").write_text("")
    assert "was left half finished and is made again" in run("setup")
    assert (broken / "version.py").exists() and sorted(path.name for path in broken.parent.iterdir()) == ["nvidia", "torch"]
    # Without pip, and where nothing can be written.
    (home / "pip-fails").write_text("1")
    assert "neither `python3 -m pip` nor `uv` works here" in run("setup", "--torch-dir", scratch / "none", code=69)
    if os.geteuid() != 0:
        (tree / "lib/dstrain/site-packages").unlink()
        (tree / "lib/dstrain").chmod(0o555)
        assert f"remembered in {home}/.config/dstrain/site-packages" in run("setup", "--torch-dir", SITE)
        run("plan", "quickstart")
        (tree / "lib/dstrain").chmod(0o755)
print("setup: ok")
