"""Names that are no files: a FIFO, socket, device, folder, loop of links or endless name in every place where a file is named ends at once
with exit code 64 or 65, the name and what it is; names of any bytes work."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from support import DSTRAIN, ROOT, expect_success, only_run, run

QUICK = "recipes/quickstart.yaml"
VIT = {"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
       "image_size": 8, "patch_size": 4, "num_channels": 1, "id2label": {str(i): str(i) for i in range(10)}}
WEIGHTS_OF_NOTHING = (2).to_bytes(8, "little") + b"{}"
SHORT = ["--set", "run.epochs=0", "--set", "run.steps=2", "--set", "batch.global=8", "--set", "batch.micro=8", "--set",
         "optimizer.warmup_steps=1", "--set", "run.evaluate=never", "--set", "run.checkpoint.every=1", "--set", "model.layers=1"]
slowest = 0


def refused(*words, says, codes=(64, 65)):
    """The command ends by itself, soon, with one of the codes, and says all of `says`."""
    global slowest
    began = time.monotonic()
    done = subprocess.run([DSTRAIN, *map(str, words)], cwd=ROOT, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
    slowest = max(slowest, time.monotonic() - began)
    text = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode in codes, f"{words}: exit code {done.returncode}\n{text}"
    for part in [says] if isinstance(says, str) else says:
        assert part in text, f"{words}: no '{part}' in\n{text}"
    assert len(text) < 8000, f"{words}: {len(text)} bytes of message"


def sets(**values):
    return [word for key, value in values.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]


def places(folder):
    """(the path to put the thing at, the command that reads it) for every file that a user names."""
    def made(name, *files):
        path = folder / name
        for file, content in files:
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            (path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        path.mkdir(exist_ok=True)
        return path

    config, vit = json.dumps(VIT), dict(model__image_size=0, model__patch_size=0, model__channels=0, model__width=0, model__layers=0,
                                        model__heads=0, model__mlp_width=0, data__augment="[]", run__output=folder / "runs")
    engine = ["engine", QUICK, *sets(run__output=folder / "runs")]
    yield folder / "recipe.yaml", ["recipe", "check", folder / "recipe.yaml"]
    yield folder / "launched.yaml", ["launch", folder / "launched.yaml"]
    yield folder / "hosts", ["launch", QUICK, "--hostfile", folder / "hosts", *sets(run__output=folder / "runs")]
    yield folder / "doctored", ["doctor", "--hostfile", folder / "doctored"]
    yield folder / "ssh", ["launch", QUICK, "--hosts", "h1:1", "--ssh-config", folder / "ssh"]
    weights = made("config")
    yield weights / "config.json", ["plan", QUICK, *sets(model__weights=weights, **vit)]
    weights = made("weights", ("config.json", config))
    yield weights / "model.safetensors", ["engine", QUICK, *sets(model__weights=weights, **vit)]
    weights = made("index", ("config.json", config))
    yield weights / "model.safetensors.index.json", ["engine", QUICK, *sets(model__weights=weights, **vit)]
    adapter = made("adapter")
    yield adapter / "adapter_model.safetensors", [*engine, *sets(lora__rank=4, lora__weights=adapter)]
    adapter = made("adapter_config", ("adapter_model.safetensors", WEIGHTS_OF_NOTHING))
    yield adapter / "adapter_config.json", [*engine, *sets(lora__rank=4, lora__weights=adapter)]
    yield folder / "digits.csv", [*engine, *sets(data__path=folder / "digits.csv")]
    cifar = made("cifar", ("train.bin", b""))
    yield cifar / "train.bin", [*engine, *sets(data__name="cifar100", data__path=cifar, model__image_size=32, model__channels=3)]
    images = made("images", ("a/1.png", b""), ("a/2.png", b""), ("b/1.png", b""), ("b/2.png", b""))
    yield images / "b/2.png", [*engine, *sets(data__name="images", data__path=images, model__image_size=32, model__channels=3)]
    lists = ("meta/classes.txt", "a\n"), ("meta/train.txt", "a/1\n"), ("meta/test.txt", "a/1\n")
    food = made("food", ("images/a/1.jpg", b""), *lists)
    for file in ("images/a/1.jpg", "meta/classes.txt", "meta/train.txt"):
        yield food / file, [*engine, *sets(data__name="food101", data__path=food, model__image_size=32, model__channels=3)]
    text = made("text", ("train.jsonl", '{"q": "1", "a": "2"}\n'), ("tokenizer.json", "{}"))
    prepare = ["data", "prepare", "recipes/bloom/bloom-560m_squad.yaml",
               *sets(data__cache=folder / "cache", data__tokenizer=text, data__name="jsonl", data__prompt='"{q}"', data__response='"{a}"')]
    yield text / "train.jsonl", [*prepare, *sets(data__path=text)]
    yield folder / "direct.jsonl", [*prepare, *sets(data__path=folder / "direct.jsonl")]
    yield folder / "direct.parquet", [*prepare, *sets(data__name="metamathqa", data__path=folder / "direct.parquet")]
    yield text / "tokenizer.json", [*prepare, *sets(data__path=text)]
    yield text / "tokenizer_config.json", [*prepare, *sets(data__path=text)]
    yield folder / "ids.json", ["data", "tokenize", "--tokenizer", folder / "ids.json"]


def put(kind, path):
    """Puts a thing that is no file at the path; returns what a message must say of it."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
        return "a FIFO"
    if kind == "link":
        path.with_name("the-fifo").unlink(missing_ok=True)
        os.mkfifo(path.with_name("the-fifo"))
        path.symlink_to("the-fifo")
        return "a FIFO"
    if kind == "device":
        path.symlink_to("/dev/zero")
        return "a device"
    path.symlink_to(path.name)
    return "lead in a circle"


def test_fifos_everywhere(folder):
    for path, command in places(folder):
        saved = path.read_bytes() if path.is_file() else None
        refused(*command, says=[path.name, put("fifo", path)])
        path.unlink()
        if saved is not None:
            path.write_bytes(saved)


def test_other_things(folder):
    wanted = ("recipe.yaml", "hosts", "config.json", "model.safetensors", "train.jsonl", "2.png")
    for path, command in places(folder):
        if path.name in wanted:
            for kind in ("link", "device", "circle"):
                refused(*command, says=[path.name, put(kind, path)])
            path.unlink()


def test_options(folder):
    fifo, circle, listening = folder / "fifo", folder / "circle", folder / "socket"
    os.mkfifo(fifo)
    circle.symlink_to("circle")
    socket.socket(socket.AF_UNIX).bind(str(listening))
    sound = folder / "tokenizer"
    commands = ([["recipe", "check"], "a directory"], [["launch", QUICK, "--hostfile"], "a directory"],
                [["launch", QUICK, *sets(run__output=folder / "runs"), "--resume"], ""],
                [["engine", QUICK, *sets(run__output=folder / "runs"), "--resume"], ""],
                [["checkpoint", "verify"], ""], [["checkpoint", "list"], ""],
                [["data", "tokenize", "--tokenizer", sound, "--input"], "a directory"])
    for command, folder_says in commands:
        refused(*command, fifo, says="fifo")
        refused(*command, listening, says="socket")
        refused(*command, circle, says="lead in a circle")
        refused(*command, "n" * 5000, says="longer than the system takes")
        if folder_says:
            refused(*command, folder, says=folder_says)
    refused("checkpoint", "export", circle, folder / "out", says="lead in a circle")
    refused("checkpoint", "export", fifo, folder / "out", says="fifo")
    refused("engine", QUICK, *sets(data__path="n" * 5000), says="longer than the system takes")
    pipe = f"exec {DSTRAIN} recipe check <(cat {QUICK})"
    done = subprocess.run(["bash", "-c", pipe], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 64 and "a FIFO" in done.stderr and "write it to a file" in done.stderr, done


def test_a_hostfile_that_is_a_fifo_does_not_hold_signals_back(folder):
    """It ends by itself; were it to wait, a signal could not end it."""
    os.mkfifo(folder / "hosts")
    with subprocess.Popen([DSTRAIN, "launch", QUICK, "--hostfile", folder / "hosts"], cwd=ROOT, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.wait(20) == 64
        finally:
            process.send_signal(signal.SIGKILL)


def test_links_of_a_cache(folder):
    """The cache of Hugging Face: names are links to files named by their content."""
    (folder / "blobs").mkdir()
    (folder / "snapshots").mkdir()
    (folder / "blobs/1").write_text(json.dumps(VIT))
    (folder / "snapshots/config.json").symlink_to("../blobs/1")
    for name, target in (("recipe.yaml", ROOT / QUICK), ("hosts", folder / "blobs/2")):
        (folder / name).symlink_to(target)
    (folder / "blobs/2").write_text("localhost slots=1\n")
    sizes = {f"model__{key}": 0 for key in ("image_size", "patch_size", "channels", "width", "layers", "heads", "mlp_width")}
    text = expect_success(run("plan", folder / "recipe.yaml", *sets(model__weights=folder / "snapshots", data__augment="[]", **sizes)))
    assert "is not there" not in text, text
    expect_success(run("launch", folder / "recipe.yaml", "--hostfile", folder / "hosts", "--dry-run"))


def test_names_of_any_bytes(folder):
    """A run whose recipe, output and working folder have names that are not UTF-8 trains, resumes and is exported."""
    odd = folder / os.fsdecode(b"a\xff\xc3b")
    odd.mkdir()
    recipe = odd / os.fsdecode(b"r\xfe.yaml")
    shutil.copy(ROOT / QUICK, recipe)

    def call(*words):
        done = subprocess.run([DSTRAIN, *words], cwd=odd, capture_output=True, timeout=120, stdin=subprocess.DEVNULL,
                              env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    call("launch", recipe, "--ranks", "1", *SHORT, "--set", "run.output=out")
    run_folder = only_run(odd / "out")
    for name in ("environment.json", "plan.json"):
        if (run_folder / name).exists():
            json.loads((run_folder / name).read_text())
    for line in (run_folder / "events.jsonl").read_text().splitlines():
        json.loads(line)
    call("checkpoint", "verify", run_folder)
    json.loads(call("checkpoint", "list", run_folder, "--json"))
    call("launch", recipe, "--ranks", "1", *SHORT, "--set", "run.output=out", "--set", "run.steps=3", "--resume", run_folder)
    call("engine", recipe, *SHORT, "--set", "run.output=out", "--set", "run.steps=4", "--resume", run_folder)
    call("checkpoint", "export", run_folder, odd / "export")
    json.loads((odd / "export/config.json").read_text())
    hosts = odd / os.fsdecode(b"h\xff")
    hosts.write_text("localhost slots=1\n")
    call("launch", recipe, "--hostfile", hosts, "--dry-run")
    # A value of a recipe must be text, as the resolved recipe is.
    refused("recipe", "check", QUICK, "--set", os.fsdecode(b"data.path=\xff"), says="data.path")


for test in (test_fifos_everywhere, test_other_things, test_options, test_a_hostfile_that_is_a_fifo_does_not_hold_signals_back,
             test_links_of_a_cache, test_names_of_any_bytes):
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        test(pathlib.Path(name))
        print(f"{test.__name__}: {time.monotonic() - began:.1f} s")
print(f"input files: ok, slowest refusal {slowest:.1f} s")
