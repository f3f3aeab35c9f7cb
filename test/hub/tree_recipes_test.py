"""Every recipe that comes with dstrain and names a model or data set of the Hub launches from nothing: an empty cache, an empty folder, a Hub with
tiny stand-ins in the layouts of the true ones. Recipes are found by their values, so a new one is tested, too. A second launch, for one recipe
of each data set and kind of model, asks for none. Recipes of image archives alone are recipes_test.py's: their sums are those of the true archives."""
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(ROOT / "test/cli")]
from server import Hub  # noqa: E402
from text_files import write_metamathqa, write_tokenizer  # noqa: E402  (leaves with 77 without tokenizers)

try:
    import pyarrow
    import pyarrow.parquet
    import timm
    import torch
    import transformers
    from transformers.utils.logging import disable_progress_bar
    from PIL import Image
    from safetensors.torch import save_file
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

disable_progress_bar()
DSTRAIN = os.environ["DSTRAIN"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" \
           "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
# The keys of a recipe that may name the Hub, with the folder that the tree's recipes expect there.
PLACES = {("model", "weights"): "models", ("data", "path"): "data", ("data", "tokenizer"): "models", ("lora", "weights"): "models"}


def run(hub, home, *words, code=0, **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "DSTRAIN"))}
    own = hub.environment(home / "hf", DSTRAIN_CACHE=str(home / "cache"), OMP_NUM_THREADS="1", **variables)
    done = subprocess.run([DSTRAIN, *map(str, words)], env=kept | own, cwd=home, capture_output=True, text=True, timeout=280)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done


def model_of(name):
    """A model of the family that `name` says, of a few thousand weights; at an unknown name the test fails until it has one."""
    torch.manual_seed(1)
    common = dict(vocab_size=512, hidden_size=32, tie_word_embeddings=True)
    layers = dict(intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048)
    if name.startswith("bloom"):
        return transformers.BloomForCausalLM(transformers.BloomConfig(**common, n_layer=2, n_head=4))
    if name.startswith("Qwen2.5"):
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**common, **layers, use_sliding_window=False))
    if name.startswith("Qwen3"):
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**common, **layers, head_dim=8, use_sliding_window=False))
    if name.startswith("Llama-3"):
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**common, **layers, bos_token_id=0, eos_token_id=0))
    if name.startswith("SmolLM2"):
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**common, **layers, bos_token_id=0, eos_token_id=0))
    if name.startswith("pythia"):
        return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                                                                          vocab_size=common["vocab_size"]))
    if name == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=common["vocab_size"], bos_token_id=0, eos_token_id=0))
    if name.startswith("Mistral"):
        return transformers.MistralForCausalLM(transformers.MistralConfig(**common | dict(tie_word_embeddings=False), **layers, sliding_window=None))
    if name.startswith("Phi-"):
        return transformers.Phi3ForCausalLM(transformers.Phi3Config(**common, **layers, bos_token_id=0, eos_token_id=0, pad_token_id=0,
                                                                    partial_rotary_factor=0.5, sliding_window=1024))
    if name.startswith("OLMo-2"):
        return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**common, **layers, bos_token_id=0, eos_token_id=0, pad_token_id=0))
    if name.startswith("gemma-2"):
        return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**common, **layers, head_dim=16, query_pre_attn_scalar=16))
    if name.startswith("gemma-3"):
        return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**common, **layers, head_dim=16, query_pre_attn_scalar=16))
    if name.startswith("vit-"):
        return transformers.ViTForImageClassification(transformers.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                                                             intermediate_size=64, image_size=32, patch_size=16, num_labels=7))
    small = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=16)
    if name.startswith("deit-"):
        return transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(**small, intermediate_size=64, num_labels=7))
    if name.startswith("dinov2-"):
        return transformers.Dinov2Model(transformers.Dinov2Config(**small | dict(patch_size=8), mlp_ratio=2))
    if name.startswith(("clip-", "siglip-")):
        config, model = (transformers.CLIPConfig, transformers.CLIPModel) if name[0] == "c" else (transformers.SiglipConfig, transformers.SiglipModel)
        text = dict(vocab_size=20, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, bos_token_id=1, eos_token_id=2)
        return model(config(vision_config=dict(**small, intermediate_size=64), text_config=text))
    raise AssertionError(f"the Hub of this test has no stand-in of {name}: add one")


def write_model(folder, name):
    if name.startswith("mobilenetv2"):
        folder.mkdir()
        torch.manual_seed(1)
        save_file({key: value.contiguous() for key, value in timm.create_model("mobilenetv2_100", num_classes=7).state_dict().items()},
                  folder / "model.safetensors")
        about = dict(input_size=[3, 32, 32], interpolation="bicubic", crop_pct=0.875, mean=[0.48, 0.46, 0.41], std=[0.23, 0.22, 0.24], num_classes=7)
        (folder / "config.json").write_text(json.dumps(dict(architecture="mobilenetv2_100", num_classes=7, pretrained_cfg=about)))
    else:
        if not name.startswith(("vit-", "deit-", "dinov2-", "clip-", "siglip-")):
            bloom = name.startswith("bloom")
            write_tokenizer(folder, [f"What is {a} plus {a % 7}? The answer is: {a + a % 7}" for a in range(60)], qwen=not bloom)
            about = json.loads((folder / "tokenizer_config.json").read_text())
            (folder / "tokenizer_config.json").write_text(json.dumps(about if bloom else about | dict(chat_template=TEMPLATE)))
        model_of(name).save_pretrained(folder)
    # What dstrain has no use for lies there, too.
    (folder / "README.md").write_text("a stand-in")
    (folder / "pytorch_model.bin").write_bytes(b"never fetched")


def write_data(folder, name):
    folder.mkdir()
    if name == "squad":
        for split, count in (("train", 64), ("validation", 8)):
            (folder / "plain_text").mkdir(exist_ok=True)
            answers = pyarrow.array([dict(text=[f"{i}"], answer_start=[10]) for i in range(count)],
                                    pyarrow.struct([("text", pyarrow.list_(pyarrow.string())), ("answer_start", pyarrow.list_(pyarrow.int32()))]))
            table = dict(id=[f"{i:024x}" for i in range(count)], title=["A"] * count, context=[f"There are {i} of them." for i in range(count)],
                         question=[f"How many, not {i + 1}?" for i in range(count)], answers=answers)
            pyarrow.parquet.write_table(pyarrow.table(table), folder / f"plain_text/{split}-00000-of-00001.parquet")
    elif name == "MetaMathQA":
        write_metamathqa(folder / "MetaMathQA-395K.json", 400)
    else:
        raise AssertionError(f"the Hub of this test has no stand-in of {name}: add one")


def write_own(folder, name, pairs=False):
    """Data that no Hub has: the user's, and what archives become."""
    folder.mkdir(parents=True)
    if pairs:
        lines = [dict(prompt=f"What is {a} plus {a}?", chosen=str(2 * a), rejected=str(2 * a + 1)) for a in range(400)]
        (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif name in ("jsonl", "chat"):
        lines = [dict(question=f"What is {a} plus {a}?", answer=str(2 * a), messages=[dict(role="user", content=f"What is {a} plus {a}?"),
                      dict(role="assistant", content=str(2 * a))]) for a in range(400)]
        keys = ("messages",) if name == "chat" else ("question", "answer")
        (folder / "train.jsonl").write_text("".join(json.dumps({key: one[key] for key in keys}) + "\n" for one in lines))
    elif name == "cifar100":
        for split, count in (("train", 4), ("test", 4)):
            (folder / f"{split}.bin").write_bytes(b"".join(bytes([0, i]) + bytes([i]) * 3072 for i in range(count)))
    elif name == "food101":
        picture = io.BytesIO()
        Image.new("RGB", (40, 40), (90, 20, 20)).save(picture, "jpeg")
        (folder / "meta").mkdir()
        (folder / "meta/classes.txt").write_text("cake\nsoup\n")
        for split, numbers in (("train", range(2)), ("test", range(2, 4))):
            (folder / f"meta/{split}.txt").write_text("".join(f"{one}/{i}\n" for one in ("cake", "soup") for i in numbers))
        for one in ("cake", "soup"):
            (folder / "images" / one).mkdir(parents=True)
            for i in range(4):
                (folder / "images" / one / f"{i}.jpg").write_bytes(picture.getvalue())
    else:
        raise AssertionError(f"this test has no data for {name}: add some")


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    hub, look = Hub(folder), folder / "look"
    look.mkdir()

    # What the program takes from the Hub in the place of a folder, as it says itself.
    known = {}
    for line in run(hub, look, "fetch", "--list").stdout.splitlines():
        if line.startswith(("models/", "data/")):
            place, name = line.split()
            known[place] = name.removeprefix("hf://")
    assert known, "fetch --list names no folders"
    for place, name in known.items():
        kind, short = place.split("/")
        made = folder / place.replace("/", "-")
        (write_model if kind == "models" else write_data)(made, short)
        hub.add_folder(name.removeprefix("datasets/"), made, "models" if kind == "models" else "datasets")

    # The recipes that name any of it, by name or by such a folder.
    recipes = {}
    for line in run(hub, look, "recipe", "list").stdout.splitlines():
        name = line.split()[0]
        recipe = json.loads(run(hub, look, "recipe", "show", name, "--json").stdout)["recipe"]
        values = [recipe[section][key] for section, key in PLACES]
        names = {known.get(value, value.removeprefix("hf://")) for value in values if value in known or value.startswith("hf://")}
        if names:
            recipes[name] = recipe, names
    unused = set(known.values()) - set().union(*(names for _, names in recipes.values()))
    assert not unused, f"no recipe names {unused}"
    assert not hub.log, hub.log

    seen = set()
    for name, (recipe, names) in recipes.items():
        began = time.monotonic()
        home = folder / f"home-{name}"
        home.mkdir()
        data = recipe["data"]
        for one in data["mixture"] or [data]:
            if one["path"] and one["path"] not in known and not one["path"].startswith("hf://"):
                write_own(home / one["path"], one["name"], recipe["preference"]["loss"] != "none")
        split = recipe["parallel"]
        ranks = split["pipeline"] * split["tensor"] * split["sequence"] * split["expert"]
        settings = ["parallel.backend=gloo", "precision.compute=fp32", f"batch.global={4 * ranks}", "batch.micro=1"]
        # A recipe that keeps its best checkpoint evaluates and saves, as it says.
        settings += [] if recipe["run"]["best"]["patience"] else ["run.evaluate=never", "run.checkpoint.every=never"]
        settings += ["run.generate=0", "data.sequence=128"] if data["sequence"] else []
        if recipe["experts"]["upcycle"]:  # the one kind of model whose sizes config.json does not give; these are model_of's
            settings += ["model.width=32", "model.layers=2", "model.heads=4", "model.kv_heads=2", "model.vocab_size=512", "model.shared_width=32",
                         "model.expert_width=16"]
        phases = [f"phases.{i}.epochs=1" for i in range(len(recipe["phases"]))]
        settings += phases or ["run.epochs=0", "run.steps=1"]
        words = ["launch", name, "--ranks", ranks, *(word for one in settings for word in ("--set", one))]
        hub.log.clear()
        told = run(hub, home, *words).stderr
        fetched = {"/".join(one["path"].removeprefix("/datasets").split("/")[1:3]) for one in hub.log if "/resolve/" in one["path"]}
        assert fetched == {one.removeprefix("datasets/") for one in names}, (name, fetched, names)
        assert not [one for one in hub.log if one["path"].endswith((".md", "pytorch_model.bin"))], (name, hub.log)
        metrics = next((home / "runs").glob("*/metrics.jsonl"), None)
        assert metrics and '"loss"' in metrics.read_text(), (name, told)
        resolved = next((home / "runs").glob("*/recipe.yaml")).read_text()
        for one in names:
            kind = "datasets" if one.startswith("datasets/") else "models"
            assert f"hf://{one}@{hub.commit(kind, one.removeprefix('datasets/'))}" in resolved, (name, one, resolved)
        kind = frozenset(one if one.startswith("datasets/") else one.split("/")[0] == "timm" for one in names), bool(data["sequence"])
        if kind not in seen:
            seen.add(kind)
            hub.log.clear()
            run(hub, home, *words)
            assert not [one for one in hub.log if one["where"] == "cdn" or "/resolve/" in one["path"]], (name, hub.log)
        print(f"{name}: {ranks} ranks, {sorted(names)}, {time.monotonic() - began:.1f} s", flush=True)
print(f"tree recipes: ok, {len(recipes)} recipes")
