"""recipe new with names of the Hub: it fetches what it looks at and no weights, what it writes trains as it stands, and a Hub that gives
nothing is said."""
import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(ROOT / "test/cli")]
from server import Hub, run  # noqa: E402
from text_files import write_tokenizer  # noqa: E402  (leaves with 77 without tokenizers)

try:
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    hub, home, fresh = Hub(folder), folder / "home", folder / "fresh"
    home.mkdir()
    fresh.mkdir()
    sums = [dict(question=f"What is {a} plus {b}?", answer=f"{a} + {b} = {a + b}") for a in range(20) for b in range(4)]
    write_tokenizer(folder / "tiny", [f"{one['question']} {one['answer']}" for one in sums], qwen=True)
    torch.manual_seed(1)
    transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=128, tie_word_embeddings=True)).save_pretrained(folder / "tiny")
    hub.add_folder("org/tiny", folder / "tiny")
    hub.add("org/bare", {name: (folder / "tiny" / name).read_bytes() for name in ("config.json", "model.safetensors")})
    hub.add("org/answers", {"all.jsonl": "".join(json.dumps(one) + "\n" for one in sums)}, kind="datasets")

    run(hub, home, "recipe", "new", "org/tiny", "org/answers", "--yes", "-o", "made.yaml", "--machine", "h200")
    text = (folder / "made.yaml").read_text()
    assert 'weights: "hf://org/tiny"' in text and 'path: "hf://datasets/org/answers/all.jsonl"' in text and "80 records for training" in text, text
    assert not hub.requests("cdn"), hub.log  # no weights
    # On a machine that has none of it.
    words = ("launch", "made.yaml", "--ranks", 1, "--set", "parallel.backend=gloo", "--set", "precision.compute=fp32", "--set", "run.epochs=1")
    told = run(hub, fresh, *words, "--set", f"run.output={folder}/runs")
    assert "test loss" in told.stdout + told.stderr, told
    # What is in the cache is enough.
    hub.log.clear()
    run(hub, home, "recipe", "new", "hf://org/tiny", "hf://datasets/org/answers", "--yes", "-o", "again.yaml", "--machine", "h200", DSTRAIN_OFFLINE="1")
    assert not hub.log and (folder / "again.yaml").read_text().splitlines()[1:] == text.splitlines()[1:]

    # A published size does without its files; another model does not.
    lines = folder / "answers.jsonl"
    lines.write_text("".join(json.dumps(one) + "\n" for one in sums))
    told = run(hub, fresh, "recipe", "new", "qwen2.5-0.5b", lines, "--yes", "-o", "size.yaml", "--machine", "h200").stderr
    assert "note: no config.json of hf://Qwen/Qwen2.5-0.5B" in told, told
    assert "# a guess: no tokenizer is here" in (folder / "size.yaml").read_text()
    run(hub, fresh, "recipe", "check", "size.yaml")
    for model, data, code, said in (("org/none", lines, 64, "org/none"), ("org/tiny", "org/none", 64, "datasets/org/none"),
                                    ("org/bare", lines, 65, "org/bare")):
        told = run(hub, fresh, "recipe", "new", model, data, "--yes", "-o", "never.yaml", code=code).stderr
        assert said in told and not (folder / "never.yaml").exists(), told
    told = run(hub, folder / "empty", "recipe", "new", "org/tiny", lines, "--yes", "-o", "never.yaml", code=69, DSTRAIN_OFFLINE="1").stderr
    assert "org/tiny" in told, told
    print("recipe_new: ok")
