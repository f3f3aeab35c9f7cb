"""A tree can be installed, moved, started through a link and from a folder with blanks: it finds its engine and recipes beside itself,
and LibTorch in the named site-packages, of the active environment or of the python3 in PATH; a torch that does not serve is refused."""
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

from support import DSTRAIN

# Every Debian and Ubuntu has the first; the torch wheel has the others.
SYSTEM = r"ld-linux-x86-64|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|z|lzma|bz2)"
WHEEL = r"lib(torch|torch_cpu|torch_cuda|c10|c10_cuda|gomp|cudart|cublas|cublasLt|cudnn|nccl|nvrtc|nvjpeg|arrow|parquet)"
build = pathlib.Path(DSTRAIN).parents[1]
SITE = sysconfig.get_path("purelib")


def needed(*files):
    dynamic = subprocess.run(["readelf", "-d", *files], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    tree = scratch / "a folder" / "it's"
    subprocess.run(["cmake", "--install", build, "--prefix", scratch / "first"], check=True, capture_output=True)
    tree.parent.mkdir()
    (scratch / "first").rename(tree)
    assert not (tree / "lib/dstrain/site-packages").exists(), "the folder of the build is none of the tree"
    libraries = [file for file in (tree / "lib/dstrain").iterdir() if ".so" in file.name]
    bundled = {file.name for file in libraries}
    strange = [name for name in needed(tree / "bin/dstrain", *libraries) - bundled if not re.fullmatch(rf"({SYSTEM}|{WHEEL})\.so[.\d]*", name)]
    assert len(bundled) > 3 and not strange, f"the tree lacks {strange}; cmd/CMakeLists.txt names what it takes along"
    link = scratch / "dstrain"
    link.symlink_to(tree / "bin/dstrain")

    def run(*words, program=link, **variables):
        """Without any variable that names torch, and no python3 but the system's in PATH."""
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("DSTRAIN_SITE_PACKAGES", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH")}
        return subprocess.run([program, *words], cwd=scratch, env={**environment, "PATH": "/usr/bin:/bin", **variables},
                              capture_output=True, text=True, timeout=200)

    # No LibTorch is needed for what does not compute.
    done = run("--version")
    assert done.returncode == 0 and re.search(r"^LibTorch \d\S* for CUDA 13", done.stdout, re.M), done
    done = run("recipe", "show", "recipes/vit/vit-base_random_ddp.yaml")
    assert done.returncode == 0 and str(tree / "share/dstrain/recipes/vit") in done.stdout, done.stdout + done.stderr

    def expect_refusal(*texts, **variables):
        done = run("plan", "quickstart", **variables)
        assert done.returncode == 69 and len(done.stderr.splitlines()) == 2, (done.returncode, done.stderr)
        for text in (*texts, "pip install torch=="):
            assert text in done.stderr, done.stderr

    expect_refusal(f"DSTRAIN_SITE_PACKAGES: {scratch} has no torch", DSTRAIN_SITE_PACKAGES=str(scratch), VIRTUAL_ENV=sys.prefix)
    for name, version, cuda, reason in (("older", "2.10.0+cu130", "'13.0'", "has torch 2.10.0+cu130, and this build needs 2."),
                                        ("cpu", None, "None", "+cpu for CPUs alone, and this build needs the one for CUDA 13"),
                                        ("half", None, "'13.0'", "but no torch/lib/libtorch.so: install it anew")):
        package = scratch / name / "lib/python3.13/site-packages/torch"
        package.mkdir(parents=True)
        version = version or re.search(r"^LibTorch (\S+)", run("--version").stdout, re.M)[1] + "+cpu"
        (package / "version.py").write_text(f"__version__ = '{version}'\ncuda: Optional[str] = {cuda}\n")
        expect_refusal("VIRTUAL_ENV: ", reason, VIRTUAL_ENV=str(scratch / name))
    done = run("doctor", VIRTUAL_ENV=str(scratch / "cpu"))
    assert done.returncode == 69 and "for CPUs alone" in done.stdout and "pip install torch==" in done.stdout, done.stdout

    # The ranks that `launch` starts find it, too; a library path that leads elsewhere does not matter.
    done = run("launch", "quickstart", "--ranks", "2", "--set", "run.epochs=1", "--set", f"run.output={scratch}/runs",
               VIRTUAL_ENV=sys.prefix, LD_LIBRARY_PATH=str(scratch / "half"))
    assert done.returncode == 0 and "test accuracy" in done.stdout, done.stdout + done.stderr
    for how in ({"DSTRAIN_SITE_PACKAGES": SITE}, {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin"}, {"CONDA_PREFIX": sys.prefix}):
        done = run("checkpoint", "list", scratch / "runs", **how)
        assert done.returncode != 69, (how, done.stderr)
    # An engine of another build is refused, by the command and by doctor.
    engine = tree / "lib/dstrain/libdstrain_engine.so"
    engine.rename(scratch / "engine")
    build_text = run("--version").stdout.strip().split("\n")
    build_text[2] = "LibTorch 2.99.0 for CUDA 13.0"
    source = 'const char* dstrain_engine_build(void) { return "%s"; } int dstrain_engine_main() { return 0; }' % "\\n".join(build_text)
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", engine], input=source, text=True, check=True)
    done = run("plan", "quickstart", DSTRAIN_SITE_PACKAGES=SITE)
    words = f"{engine}: it is of another build: LibTorch 2.99.0 for CUDA 13.0; this program is LibTorch 2."
    assert done.returncode == 69 and words in done.stderr and "belong together" in done.stderr, done
    done = run("doctor", DSTRAIN_SITE_PACKAGES=SITE)
    assert done.returncode == 69 and "the engine cannot be loaded: it is of another build" in done.stdout, done
    (scratch / "engine").rename(engine)
    moved = tree.rename(scratch / "moved")
    done = run("plan", "quickstart", "--ranks", "2", program=moved / "bin/dstrain", DSTRAIN_SITE_PACKAGES=SITE)
    assert done.returncode == 0 and "memory" in done.stdout, done.stdout + done.stderr
print("install: ok")
