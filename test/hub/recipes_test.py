"""Names of the Hub in recipes: seen before they are there, fetched before ranks start, paths of the cache afterwards."""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(ROOT / "test/cli")]
from server import Hub  # noqa: E402
from text_files import write_metamathqa, write_tokenizer  # noqa: E402  (leaves with 77 without tokenizers)

RECIPE = """
model:     { weights: hf://org/tiny }
data:      { name: jsonl, path: "hf://datasets/org/answers", tokenizer: org/tiny, sequence: 64, prompt: "Question: {question} Answer:",
             response: " {answer}", test_share: 0.1, workers: 1 }
batch:     { global: 8, micro: 2 }
precision: { compute: fp32 }
parallel:  { backend: gloo }
optimizer: { name: adamw, lr: 1e-3 }
run:       { epochs: 1 }
"""
CONFIG = dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=32, intermediate_size=64, num_attention_heads=2,
              num_hidden_layers=2, num_key_value_heads=2, vocab_size=512, max_position_embeddings=128, rms_norm_eps=1e-6, rope_theta=10000.0,
              tie_word_embeddings=True, hidden_act="silu", use_sliding_window=False)


def shapes():
    yield "model.embed_tokens.weight", (512, 32)
    yield "model.norm.weight", (32,)
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj"):
            yield f"{prefix}self_attn.{name}.weight", (32, 32)
            yield f"{prefix}self_attn.{name}.bias", (32,)
        yield f"{prefix}self_attn.o_proj.weight", (32, 32)
        for name, shape in (("gate_proj", (64, 32)), ("up_proj", (64, 32)), ("down_proj", (32, 64))):
            yield f"{prefix}mlp.{name}.weight", shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}{name}.weight", (32,)


def safetensors():
    """Small numbers of each tensor, in fp32."""
    import numpy
    draw = numpy.random.default_rng(1)
    head, body = {}, b""
    for name, shape in shapes():
        values = (numpy.ones(shape) if name.endswith("norm.weight") else draw.normal(0, 0.02, shape)).astype("<f4").tobytes()
        head[name] = dict(dtype="F32", shape=shape, data_offsets=[len(body), len(body) + len(values)])
        body += values
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + body


def run(hub, home, *words, code=0, **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run([os.environ["DSTRAIN"], *map(str, words)], env=kept | hub.environment(home, **variables), cwd=home.parent,
                          capture_output=True, text=True, timeout=280)
    assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def ranks_of_host(hub, home, recipe, runs):
    """Two ranks as torchrun or mpirun starts them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [subprocess.Popen([os.environ["DSTRAIN"], "engine", recipe, "--set", f"run.output={runs}"], stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=home.parent,
                              env=kept | hub.environment(home, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
                                                         MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))) for rank in range(2)]
    for rank, text in [(rank, rank.communicate(timeout=200)[0]) for rank in ranks]:
        assert rank.returncode == 0, text


def value(done, section, key):
    shown = json.loads(done.stdout)
    return shown["recipe"][section][key], shown["origins"][f"{section}.{key}"]


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    hub = Hub(folder)
    lines = [dict(question=f"What is {a} plus {b}?", answer=f"{a} + {b} = {a + b}") for a in range(20) for b in range(4)]
    write_tokenizer(folder / "tokenizer", [f"{one['question']} {one['answer']}" for one in lines], qwen=True)
    model = {path.name: path.read_bytes() for path in (folder / "tokenizer").iterdir()}
    hub.add("org/tiny", model | {"config.json": json.dumps(CONFIG), "model.safetensors": safetensors(), "modeling_x.py": "boom()"})
    hub.add("org/answers", {"train.jsonl": "".join(json.dumps(one) + "\n" for one in lines), "README.md": "x"}, kind="datasets")
    recipe, home = folder / "recipe.yaml", folder / "home"
    recipe.write_text(RECIPE.replace("weights:", "name: qwen2.5-0.5b, weights:"))

    # Nothing is asked by commands that only look; they say what is to come.
    assert value(run(hub, home, "recipe", "show", recipe, "--json"), "model", "weights")[0] == "hf://org/tiny"
    told = run(hub, home, "recipe", "check", recipe, code=None).stderr
    assert "model.weights: hf://org/tiny is to be fetched" in told and "data.path: hf://datasets/org/answers" in told, told
    recipe.write_text(RECIPE)
    done = run(hub, home, "recipe", "check", recipe, code=64)
    assert "the Hub's cache does not have it: `dstrain fetch hf://org/tiny`" in done.stderr, done.stderr
    assert not hub.log, hub.log

    # Fetched: paths of the cache, with the commit, and where they come from.
    commit = hub.commit("models", "org/tiny")
    run(hub, home, "fetch", recipe)
    shown = run(hub, home, "recipe", "show", recipe, "--json")
    assert value(shown, "model", "weights") == (str(home / "hub/models--org--tiny/snapshots" / commit), f"hf://org/tiny@{commit}"), shown.stdout
    assert value(shown, "data", "tokenizer")[0] == value(shown, "model", "weights")[0]
    assert value(shown, "data", "path")[1].startswith("hf://datasets/org/answers@")
    assert sorted(p.name for p in pathlib.Path(value(shown, "model", "weights")[0]).iterdir()) == \
        ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]

    # A path that is there goes before a name of the Hub.
    (folder / "org/tiny").mkdir(parents=True)
    shown = run(hub, home, "recipe", "show", recipe, "--json", "--set", "data.tokenizer=org/tiny")
    assert value(shown, "data", "tokenizer")[0] == "org/tiny", shown.stdout
    (folder / "org/tiny").rmdir()

    # Names that are none, or of another kind, are mistakes at their place.
    for key, wrong, what in (("model.weights", "hf://datasets/org/answers", "is a data set"), ("data.path", "hf://org/tiny", "is a model"),
                             ("model.weights", "hf://org/../x", "no name of the Hub")):
        done = run(hub, home, "recipe", "check", recipe, "--set", f"{key}={wrong}", code=64)
        assert f"{key}: " in done.stderr and what in done.stderr, done.stderr

    if "launch" in run(hub, home, "--help", code=None).stdout:
        # From nothing: launch fetches and trains; the run's recipe has the commit; ranks ask nobody.
        fresh = folder / "fresh"
        hub.log.clear()
        done = run(hub, fresh, "launch", recipe, "--ranks", 2, "--set", f"run.output={folder}/runs")
        assert len(hub.requests("cdn")) == 1, hub.log
        resolved = next((folder / "runs").glob("*/recipe.yaml")).read_text()
        assert f"snapshots/{commit}" in resolved and f"hf://org/tiny@{commit}" in resolved, resolved
        hub.log.clear()
        run(hub, fresh, "launch", recipe, "--ranks", 2, "--set", f"run.output={folder}/again", HF_HUB_OFFLINE="1")
        assert not hub.log, hub.log
        # Ranks of another launcher, and of hosts that do not share the cache, bring what theirs lacks: once a host, at the run's commit.
        for one, what in enumerate((recipe, next((folder / "runs").glob("*/recipe.yaml")))):
            if one == 0:  # a plan before brings config.json, which is not all
                run(hub, folder / f"host{one}", "plan", recipe, "--set", "data.path=nowhere")
            else:
                fresh.rename(folder / "gone")
            hub.log.clear()
            ranks_of_host(hub, folder / f"host{one}", what, folder / f"host{one}-runs")
            assert len(hub.requests("cdn")) == 1, hub.log
            snapshots = list((folder / f"host{one}/hub/models--org--tiny/snapshots").iterdir())
            assert [path.name for path in snapshots] == [commit], (snapshots, commit)
            hub.log.clear()
            ranks_of_host(hub, folder / f"host{one}", what, folder / f"host{one}-runs")
            assert not hub.log, hub.log
        # A plan needs config.json alone.
        run(hub, folder / "planned", "plan", recipe, "--set", "data.path=nowhere")
        assert not hub.requests("cdn") and any(one["path"].endswith("config.json") for one in hub.log), hub.log
    # Images whose address is known come before ranks start; a proxy stands for their server.
    food, data = ROOT / "recipes/vit/vit-base_food101_zero2.yaml", folder / "none"
    words = ["launch", food, "--ranks", 1, "--set", "parallel.backend=gloo", "--set", f"run.output={folder}/food"]
    for command in (words, ["fetch", food]) if "launch" in run(hub, home, "--help", code=None).stdout else (["fetch", food],):
        hub.log.clear()
        done = run(hub, home, *command, code=69, DSTRAIN_DATA=str(data), http_proxy=hub.cdn_url, no_proxy="127.0.0.1")
        assert "food-101.tar.gz answers 404" in done.stderr and [one["path"] for one in hub.log] == \
            ["http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz"], (done.stderr, hub.log)
    hub.log.clear()
    done = run(hub, home, *words, code=65, DSTRAIN_DATA=str(data), DSTRAIN_OFFLINE="1")
    assert "food-101" in done.stderr and "dstrain fetch food101" in done.stderr and not hub.log, done.stderr

    # Folders of the tree's recipes that are not there: the Hub takes their place, whole or for the tokenizer alone. Who only looks asks nobody.
    write_metamathqa(folder / "MetaMathQA-395K.json", 64)
    hub.add("Qwen/Qwen2.5-3B", model | {"config.json": json.dumps(CONFIG), "model.safetensors": safetensors()})
    hub.add("meta-math/MetaMathQA", {"MetaMathQA-395K.json": (folder / "MetaMathQA-395K.json").read_bytes()}, kind="datasets")
    tree, known = ROOT / "recipes/qwen/qwen2.5-3b_metamathqa.yaml", folder / "known"
    commit = hub.commit("models", "Qwen/Qwen2.5-3B")
    sizes = ["--set", "data.sequence=128", "--set", "precision.compute=fp32"]
    hub.log.clear()
    assert value(run(hub, known, "recipe", "show", tree, "--json"), "model", "weights")[0] == "models/Qwen2.5-3B"
    run(hub, known, "recipe", "check", tree)
    told = run(hub, known, "recipe", "check", tree, "--files", code=None).stderr
    assert "`dstrain fetch RECIPE` brings hf://Qwen/Qwen2.5-3B" in told and "brings hf://datasets/meta-math/MetaMathQA" in told, told
    if "launch" in run(hub, home, "--help", code=None).stdout:
        run(hub, known, "plan", tree)
        words = ["launch", tree, "--ranks", 1, *sizes, "--set", "parallel.backend=gloo", "--set", "batch.global=8", "--set", "batch.micro=4",
                 "--set", "run.epochs=1", "--set", f"run.output={folder}/known-runs"]
        offline = run(hub, known, *words, code=65, DSTRAIN_OFFLINE="1").stderr
        assert "model.weights" in offline and "no rank was started" in offline and not hub.log, (offline, hub.log)
        told = run(hub, known, *words).stderr
        assert "model.weights: models/Qwen2.5-3B is not there, hf://Qwen/Qwen2.5-3B takes its place" in told, told
        assert len([one for one in hub.log if one["path"].endswith(f"/tree/{commit}?recursive=true")]) == 1, hub.log
        resolved = next((folder / "known-runs").glob("*/recipe.yaml")).read_text()
        for name, sha in (("hf://Qwen/Qwen2.5-3B", commit), ("hf://datasets/meta-math/MetaMathQA", hub.commit("datasets", "meta-math/MetaMathQA"))):
            assert f"{name}@{sha}" in resolved, resolved
    run(hub, folder / "bare", "fetch", tree, "--set", "model.weights=")
    assert not list((folder / "bare").rglob("*.safetensors")) and list((folder / "bare").rglob("tokenizer.json"))
    # A folder of the user goes before the Hub; other places and other data are never replaced.
    hub.log.clear()
    (folder / "models/Qwen2.5-3B").mkdir(parents=True)
    assert value(run(hub, known, "recipe", "show", tree, "--json", "--set", "model.name=qwen2.5-3b"), "model", "weights")[0] == "models/Qwen2.5-3B"
    (folder / "models/Qwen2.5-3B").rmdir()
    for setting, key in (("model.weights=elsewhere/Qwen2.5-3B", "weights"), ("model.weights=models/Qwen2.5-4B", "weights")):
        assert value(run(hub, known, "recipe", "show", tree, "--json", "--set", setting), "model", key)[0] == setting.split("=")[1]
    assert "models/bloom-560m" in run(hub, known, "fetch", "--list").stdout and not hub.log, hub.log
print("recipes: ok")
