"""The cache is the Hub's own: huggingface_hub and transformers read what `dstrain fetch` wrote, and the other way round."""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from server import Hub  # noqa: E402

try:
    import huggingface_hub  # noqa: F401
    import torch
    import transformers
except ImportError:
    print("huggingface_hub and transformers are not here (scripts/setup --tests)")
    sys.exit(77)

DSTRAIN = os.environ["DSTRAIN"]


def clean(hub, home, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    return kept | hub.environment(home, **more)


def fetch(hub, home, *words, **more):
    done = subprocess.run([DSTRAIN, "fetch", *words], env=clean(hub, home, **more), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout.strip()


def python(hub, home, text, **more):
    """The last line that the program prints, run as a process of its own: the libraries read the environment when they are imported."""
    done = subprocess.run([sys.executable, "-c", text], env=clean(hub, home, HF_HUB_DISABLE_XET="1", **more), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout.strip().splitlines()[-1]


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    config = transformers.BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2)
    torch.manual_seed(1)
    transformers.BloomForCausalLM(config).save_pretrained(folder / "model")
    hub = Hub(folder)
    hub.add_folder("org/model", folder / "model")

    # Theirs reads ours.
    ours = folder / "ours"
    path = fetch(hub, ours, "org/model")
    said = python(hub, ours, """
import huggingface_hub as h
info = h.scan_cache_dir()
assert not info.warnings, info.warnings
repo, = info.repos
revision, = repo.revisions
print(repo.repo_id, revision.commit_hash, sorted(revision.refs), sorted(file.file_name for file in revision.files),
      h.try_to_load_from_cache('org/model', 'config.json'), h.snapshot_download('org/model', local_files_only=True))""")
    commit = hub.commit("models", "org/model")
    assert said == f"org/model {commit} ['main'] ['config.json', 'generation_config.json', 'model.safetensors'] {path}/config.json {path}", said
    total = python(hub, ours, """
import transformers
print(float(sum(p.detach().double().abs().sum() for p in transformers.AutoModelForCausalLM.from_pretrained('org/model').parameters())))""", HF_HUB_OFFLINE="1")
    here = float(sum(p.detach().double().abs().sum() for p in transformers.AutoModelForCausalLM.from_pretrained(folder / "model").parameters()))
    assert float(total) == here, (total, here)
    hf = pathlib.Path(sys.executable).parent / "hf"
    if hf.exists():
        done = subprocess.run([hf, "cache", "verify", "org/model"], env=clean(hub, ours), capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, (done.stdout, done.stderr)
        blob = pathlib.Path(path, "model.safetensors").resolve()
        content = blob.read_bytes()
        blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert subprocess.run([hf, "cache", "verify", "org/model"], env=clean(hub, ours), capture_output=True, timeout=240).returncode != 0
        blob.write_bytes(content)
    # Their download on top of ours fetches no content again.
    hub.log.clear()
    assert python(hub, ours, "import huggingface_hub as h; print(h.snapshot_download('org/model', allow_patterns=['*.json', '*.safetensors']))") == path
    assert not hub.requests("cdn"), hub.requests("cdn")

    # Ours reads theirs.
    theirs = folder / "theirs"
    path = python(hub, theirs, "import huggingface_hub as h; print(h.snapshot_download('org/model'))")
    hub.log.clear()
    assert fetch(hub, theirs, "org/model", "--offline") == path and not hub.log
    assert fetch(hub, theirs, "org/model") == path and not hub.requests("cdn"), hub.log
    assert python(hub, theirs, "import huggingface_hub as h; print(h.scan_cache_dir().warnings)") == "[]"

    # Other places of the environment.
    moved = folder / "moved"
    assert fetch(hub, folder / "none", "org/model", HF_HUB_CACHE=str(moved)).startswith(f"{moved}/models--org--model/snapshots/")
    environment = clean(hub, folder / "none") | {"XDG_CACHE_HOME": str(folder / "xdg")}
    del environment["HF_HOME"]
    done = subprocess.run([DSTRAIN, "fetch", "org/model"], env=environment, capture_output=True, text=True, timeout=240)
    assert done.stdout.startswith(f"{folder}/xdg/huggingface/hub/models--org--model/"), done
print("cache: ok")
