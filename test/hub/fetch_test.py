"""`dstrain fetch` against a Hub of this machine: which files, where they lie, what is asked and who is told the token."""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from server import TOKEN, Hub  # noqa: E402

DSTRAIN = os.environ["DSTRAIN"]
WEIGHTS = os.urandom(3 << 20)
FILES = {"config.json": '{"model_type": "x"}', "tokenizer.json": "{}", "README.md": "# hello", "modeling_x.py": "boom()",
         "model.safetensors": WEIGHTS, "pytorch_model.bin": b"pickle", "sub dir/é.json": "[]"}


def fetch(*words, hub=None, home=None, code=0, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_", "DSTRAIN_OFFLINE"))}
    environment |= (hub.environment(home) if hub else {}) | {name: str(value) for name, value in variables.items()}
    done = subprocess.run([DSTRAIN, "fetch", *map(str, words)], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert TOKEN not in done.stdout + done.stderr, "the token is in the output"
    return done


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    hub = Hub(folder)
    hub.add("org/model", FILES)
    hub.add("org/data", {"train.parquet": b"PAR1", "README.md": "x", "x.py": "boom()", "a/test.jsonl": "{}\n"}, kind="datasets")
    commit = hub.commit("models", "org/model")

    # A dry run asks and fetches nothing.
    told = fetch("org/model", "--dry-run", hub=hub, home=folder / "none").stdout
    assert "3.00 MiB" in told and "model.safetensors" in told and "modeling_x.py" not in told and "free" in told, told
    assert not (folder / "none").exists() and len(hub.log) == 2, hub.log

    # The folder has what a model needs, as relative links into blobs that are named by their digests.
    hub.log.clear()
    path = pathlib.Path(fetch("hf://org/model", hub=hub, home=folder / "home").stdout.strip())
    repository = folder / "home/hub/models--org--model"
    assert path == repository / "snapshots" / commit, path
    assert sorted(p.name for p in path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"], list(path.iterdir())
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        content = FILES[name] if isinstance(FILES[name], bytes) else FILES[name].encode()
        assert (path / name).read_bytes() == content and os.readlink(path / name).startswith("../../blobs/"), name
    assert (repository / "refs/main").read_text() == commit
    assert not list((folder / "home/hub/.locks").rglob("*.dstrain*")), "a lock was left"
    assert all(not p.name.startswith(".") for p in (repository / "blobs").iterdir()), "a part was left"
    assert all(one["token"] is None for one in hub.log), hub.log
    assert len(hub.requests("cdn")) == 1, hub.log

    # A second time nothing is fetched; offline nobody is asked.
    hub.log.clear()
    assert fetch("hf://org/model@main", hub=hub, home=folder / "home").stdout.strip() == str(path)
    assert [one["path"].split("/")[4] for one in hub.log] == ["revision", "tree"] or len(hub.log) == 2, hub.log
    hub.log.clear()
    assert fetch("org/model", "--offline", hub=hub, home=folder / "home").stdout.strip() == str(path)
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "DSTRAIN_OFFLINE"):
        done = fetch("org/data", hub=hub, home=folder / "home", code=69, **{variable: 1})
        assert "offline" in done.stderr, done.stderr
    assert not hub.log, hub.log

    # One file, a tag, a data set; names with blanks and letters of other alphabets.
    one = fetch(f"hf://org/model@{commit}/sub dir/é.json", hub=hub, home=folder / "home").stdout.strip()
    assert one == str(path / "sub dir/é.json") and pathlib.Path(one).read_text() == "[]" and os.readlink(one).startswith("../../../blobs/")
    fetch("hf://org/model@v1", hub=hub, home=folder / "home")
    assert (repository / "refs/v1").read_text() == commit
    data = pathlib.Path(fetch("hf://datasets/org/data", hub=hub, home=folder / "home").stdout.strip())
    assert sorted(p.relative_to(data).as_posix() for p in data.rglob("*") if p.is_file()) == ["a/test.jsonl", "train.parquet"]
    assert "datasets--org--data" in str(data)

    # Into a folder of the user: files, not links, and none that is there is overwritten.
    to = folder / "mine"
    assert fetch("org/model", "--to", to, hub=hub, home=folder / "fresh").stdout.strip() == str(to)
    assert not (to / "model.safetensors").is_symlink() and (to / "model.safetensors").read_bytes() == WEIGHTS
    assert not (folder / "fresh/hub").exists()
    fetch("org/model", "--to", to, hub=hub, home=folder / "fresh")
    (to / "config.json").write_text('{"model_type": "y"}')
    assert "is another file" in fetch("org/model", "--to", to, hub=hub, home=folder / "fresh", code=64).stderr
    assert (to / "config.json").read_text() == '{"model_type": "y"}'

    assert "one name" in fetch("org/model", "hf://datasets/org/data", "--to", folder / "both", hub=hub, home=folder / "fresh", code=64).stderr

    # A licence: the token goes to the hub, and not to the host that it redirects to.
    hub.faults["gated"] = True
    done = fetch("org/model", hub=hub, home=folder / "gated", code=64)
    assert "accept the licence" in done.stderr and f"{hub.endpoint}/org/model" in done.stderr and "HF_TOKEN" in done.stderr, done.stderr
    hub.log.clear()
    fetch("org/model", hub=hub, home=folder / "gated", HF_TOKEN=TOKEN)
    assert all(one["token"] == f"Bearer {TOKEN}" for one in hub.requests("hub")) and hub.requests("cdn"), hub.log
    assert all(one["token"] is None for one in hub.requests("cdn")), "the token went to another host"
    for file in (folder / "gated").rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes(), f"the token is in {file}"
    (folder / "login").mkdir()
    (folder / "login/token").write_text(TOKEN + "\n")
    fetch("org/model", hub=hub, home=folder / "login")
    done = fetch("org/model", hub=hub, home=folder / "gated", HF_TOKEN="two\nlines", code=64)
    assert "HF_TOKEN holds what is no token" in done.stderr and "lines" not in done.stderr.replace("lines of", ""), done.stderr
    hub.faults.clear()

    # What is not there, or no name.
    assert "404" in fetch("hf://org/model@nosuch", hub=hub, home=folder / "home", code=64).stderr
    assert "it has README.md, config.json" in (told := fetch("hf://org/model/none.bin", hub=hub, home=folder / "home", code=65).stderr) or \
        "it has config.json" in told, told
    fetch("org/nothing", hub=hub, home=folder / "home", code=64)
    for wrong in ("hf://../model", "hf://org/model/../../x", "hf://org", "https://huggingface.co/org/model", "no-such-thing"):
        assert "no name of the Hub" in fetch(wrong, hub=hub, home=folder / "home", code=64).stderr
    assert "HF_ENDPOINT" in fetch("org/model", home=folder, HF_ENDPOINT="ftp://x", code=64).stderr

    # Nobody listens: what the cache has will do.
    dead = dict(HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=folder / "home")
    done = fetch("org/model", **dead)
    assert done.stdout.strip() == str(path) and "as the cache has it" in done.stderr, done.stderr

    # No room.
    hub.faults["tree"] = [dict(type="file", path="model.safetensors", size=1 << 44, oid="a" * 40, lfs=dict(oid="b" * 64, size=1 << 44))]
    done = fetch("org/model", hub=hub, home=folder / "full", code=74)
    assert "16384.00 GiB" in done.stderr or "16.00 TiB" in done.stderr, done.stderr

print("fetch: ok")
