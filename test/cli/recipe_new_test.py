"""recipe new: of some twenty pairs of model and data it makes recipes that recipe check has nothing to say about, with what the files say in
them; it asks at a terminal, refuses what is no model or no data, and never overwrites."""
import io
import json
import os
import pathlib
import pickle
import pty
import re
import subprocess
import sys
import tarfile
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "data"))
from support import ROOT, expect_success, only_run, run  # noqa: E402
from text_files import write_metamathqa, write_tokenizer  # noqa: E402  (leaves with 77 without tokenizers)

try:
    import numpy
    import pyarrow
    import pyarrow.parquet
    from PIL import Image
    from parquet_files import classes_of, image_bytes, write_parquet
except ImportError as missing:
    print(f"recipe_new: skipped: {missing}")
    sys.exit(77)

TINY = dict(hidden_size=32, intermediate_size=64, num_attention_heads=2, num_hidden_layers=2, num_key_value_heads=2, vocab_size=512,
            max_position_embeddings=256, rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=True, hidden_act="silu")
MODELS = {
    "qwen": dict(TINY, model_type="qwen2", architectures=["Qwen2ForCausalLM"], use_sliding_window=False),
    "llama": dict(TINY, model_type="llama", architectures=["LlamaForCausalLM"]),
    "bloom": dict(model_type="bloom", architectures=["BloomForCausalLM"], hidden_size=32, n_layer=2, n_head=2, vocab_size=512),
    "vit": dict(model_type="vit", architectures=["ViTForImageClassification"], hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                intermediate_size=64, image_size=32, patch_size=8, num_channels=3),
    "mobilenet": dict(architecture="mobilenetv2_100", num_classes=7),
}
TEMPLATE = """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""
SUMS = [(f"What is {a} plus {b}?", f"{a} + {b} = {a + b}") for a in range(30) for b in range(4)]
draw = numpy.random.default_rng(3)


def lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in records))


def chat(question, answer):
    return [dict(role="user", content=question), dict(role="assistant", content=answer)]


def write_models(root):
    texts = [text for pair in SUMS for text in pair]
    head = json.dumps(dict(x=dict(dtype="F32", shape=[1], data_offsets=[0, 4]))).encode()
    for name, config in MODELS.items():
        if name in ("vit", "mobilenet"):
            (root / name).mkdir()
        else:
            write_tokenizer(root / name, texts, qwen=name == "qwen")
        (root / name / "config.json").write_text(json.dumps(config))
        (root / name / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
    (root / "qwen/chat_template.jinja").write_text(TEMPLATE)


def write_texts(root):
    lines(root / "messages.jsonl", [dict(messages=chat(q, a)) for q, a in SUMS])
    (root / "share").mkdir()
    (root / "share/train.json").write_text(json.dumps([dict(conversations=[{"from": "human", "value": q}, {"from": "gpt", "value": a}])
                                                       for q, a in SUMS]))
    lines(root / "share/test.jsonl", [dict(messages=chat(*SUMS[0]))])
    (root / "alpaca.json").write_text(json.dumps([dict(instruction=q, input="", output=a) for q, a in SUMS]))
    lines(root / "pairs/train.jsonl", [dict(prompt=q, completion=a) for q, a in SUMS])
    lines(root / "lists.jsonl", [dict(prompt=chat(q, a)[:1], completion=chat(q, a)[1:]) for q, a in SUMS])
    lines(root / "answers/train.jsonl", [dict(id=i, question=q, answer=a) for i, (q, a) in enumerate(SUMS)])
    lines(root / "answers/test.jsonl", [dict(id=0, question=SUMS[0][0], answer=SUMS[0][1])])
    lines(root / "plain.jsonl", [dict(text=f"{q} {a}") for q, a in SUMS])
    lines(root / "odd.jsonl", [dict(eins=q, zwei=a, drei=1) for q, a in SUMS])
    lines(root / "wishes/train.jsonl", [dict(prompt=q, chosen=a, rejected=a[:3]) for q, a in SUMS])
    lines(root / "few.jsonl", [dict(messages=chat(q, a)) for q, a in SUMS[:20]])
    write_metamathqa(root / "MetaMathQA-395K.json", 200)
    (root / "squad").mkdir()
    entry = dict(context="The Broncos won. " * 9, qas=[dict(id="1", question="Who won?", answers=[dict(text="The Broncos", answer_start=0)])])
    for name in ("train", "dev"):
        (root / f"squad/{name}-v1.1.json").write_text(json.dumps(dict(version="1.1", data=[dict(title="x", paragraphs=[entry] * 60)])))
    (root / "hub/plain_text").mkdir(parents=True)
    (root / "hub2/data").mkdir(parents=True)
    for name in ("train", "validation"):
        pyarrow.parquet.write_table(pyarrow.table({"id": ["1"], "title": ["x"], "context": [entry["context"]], "question": ["Who won?"],
                                                   "answers": [dict(text=["The Broncos"], answer_start=[0])]}),
                                    root / f"hub/plain_text/{name}-00000-of-00001.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"prompt_id": list(range(len(SUMS))), "messages": [chat(q, a) for q, a in SUMS]}),
                                root / "hub2/data/train_sft-00000-of-00001.parquet")


def picture(path, side=40):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw.integers(0, 256, (side, side + 3, 3), dtype=numpy.uint8)).save(path)


def write_images(root):
    for split in ("train", "test"):
        for label in ("cat", "dog", "owl"):
            for i in range(12):
                picture(root / f"split/{split}/{label}/{i}.png")
                picture(root / f"single/{label}/{i}.jpg") if split == "train" else None
                picture(root / f"alone/train/{label}/{i}.jpg") if split == "train" else None
    for split in ("train", "test"):
        for label in ("run", "jump"):
            for clip in range(2):
                for frame in range(20):
                    picture(root / f"clips/{split}/{label}/{clip}/{frame}.jpg", 16)
    for name in ("binary", "python", "food/meta"):
        (root / name).mkdir(parents=True)
    for split in ("train", "test"):
        (root / f"binary/{split}.bin").write_bytes(b"".join(bytes([0, i % 100]) + bytes(3072) for i in range(200)))
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        with open(root / "python" / name, "wb") as file:
            pickle.dump({b"data": draw.integers(0, 256, (8, 3072), dtype=numpy.uint8), b"labels": list(range(8))}, file, protocol=2)
    (root / "food/meta/classes.txt").write_text("pie\nsoup\n")
    for split in ("train", "test"):
        (root / f"food/meta/{split}.txt").write_text("".join(f"{name}/{split}{i}\n" for name in ("pie", "soup") for i in range(4)))
        for name in ("pie", "soup"):
            for i in range(4):
                picture(root / f"food/images/{name}/{split}{i}.jpg")
    for split in ("train", "test"):
        files = [image_bytes(draw.integers(0, 256, (32, 32, 3), dtype=numpy.uint8)) for _ in range(20)]
        fine = [i % 100 for i in range(20)]
        write_parquet(root / "parquet/data", split, {"image": files, "label": [i % 4 for i in range(20)]}, {"label": classes_of(4)})
        write_parquet(root / "hundred", split, {"img": files, "fine_label": fine, "coarse_label": [i // 5 for i in fine]},
                      {"fine_label": classes_of(100), "coarse_label": classes_of(20)})


def write_tars(root):
    """Two shards for training, one for evaluation; each sample has its class in KEY.cls and, another one, in KEY.json."""
    (root / "tars").mkdir()
    for shard in ("train-0", "train-1", "val-0"):
        with tarfile.open(root / f"tars/{shard}.tar", "w") as tar:
            for i in range(20):
                for end, content in (("png", image_bytes(draw.integers(0, 256, (32, 32, 3), dtype=numpy.uint8))), ("cls", b"%d" % (i % 4)),
                                     ("json", json.dumps({"class": i % 3}).encode())):
                    member = tarfile.TarInfo(f"{shard}-{i:04}.{end}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def write_text_tars(root):
    """Records with a picture beside: text for a model of text."""
    with tarfile.open(root / "records.tar", "w") as tar:
        for i in range(60):
            for end, content in (("jpg", b"\xff\xd8 a picture"), ("json", json.dumps({"question": f"What is {i}?"}).encode()), ("answer", b"%d" % i)):
                member = tarfile.TarInfo(f"{i:04}.{end}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def write_tokens(root):
    """Tokens of chats in a file, of texts in a folder."""
    for name, words in (("chats.tokens", dict(name="chat", path="messages.jsonl")),
                        ("numbers/train.tokens", dict(name="jsonl", path="plain.jsonl", response="{text}"))):
        recipe = root / "prepare.yaml"
        words |= dict(tokenizer=root / "qwen", sequence=64, cache=root / "cache_of_tokens", test_share=0, path=root / words["path"])
        recipe.write_text("model: { name: qwen2.5-0.5b }\nbatch: { global: 8, micro: 8 }\noptimizer: { lr: 1.0e-3 }\nrun: { steps: 1, evaluate: never }\ndata:\n"
                          + "".join(f"  {key}: {json.dumps(str(value)) if isinstance(value, (str, pathlib.Path)) else value}\n" for key, value in words.items()))
        expect_success(run("data", "prepare", recipe))
        [made_file] = (root / "cache_of_tokens").glob("*.tokens")
        (root / name).parent.mkdir(exist_ok=True)
        made_file.rename(root / name)


# Model, data, words beside, and what the recipe then has.
PAIRS = [
    ("qwen", "messages.jsonl", [], dict(name="chat", loss="assistant", sequence="128", test_share="0.05", packing="false", **{"global": "8"})),
    ("qwen", "share", [], dict(name="chat", path="share")),
    ("qwen", "alpaca.json", ["--lora"], dict(name="chat", rank="16", targets="[all-linear]", lr="2.0e-4")),
    ("qwen", "pairs", [], dict(name="chat", loss="assistant")),
    ("qwen", "lists.jsonl", [], dict(name="chat")),
    ("qwen", "hub2", [], dict(name="chat", loss="assistant")),
    ("qwen", "few.jsonl", [], dict(name="chat", test_share="0", evaluate="never", **{"global": "8"})),
    ("qwen", "answers", [], dict(name="jsonl", prompt='"Question: {question}\\nAnswer:"', response='" {answer}"', loss="response")),
    ("llama", "plain.jsonl", [], dict(name="jsonl", response='"{text}"', loss="all")),
    ("llama", "odd.jsonl", ["--prompt", "Q {eins}: ", "--response", "{zwei}"], dict(name="jsonl", prompt='"Q {eins}: "')),
    ("qwen", "MetaMathQA-395K.json", ["--epochs", "2"], dict(name="metamathqa", epochs="2")),
    ("bloom", "squad", [], dict(name="squad", loss="response")),
    ("llama", "hub", ["--ranks", "2"], dict(name="squad", zero="{ stage: 2 }")),
    ("llama", "pairs/train.jsonl", [], dict(name="chat")),
    ("qwen2.5-0.5b", "messages.jsonl", ["--tokenizer", "qwen"], dict(name="chat", weights='"hf://Qwen/Qwen2.5-0.5B"', lr="2.0e-5")),
    ("Qwen/Qwen2.5-7B", "messages.jsonl", ["--tokenizer", "qwen"], dict(name="chat", rank="16", lr="1.0e-4")),
    ("vit-tiny", "digits", [], dict(name="digits", channels="1", classes="10", augment="[random_crop]")),
    ("cnn-basic", "split", ["--epochs", "1"], dict(name="images", classes="3", evaluate="epoch")),
    ("resnet50", "single", [], dict(name="images", classes="3")),
    ("mobilenet-v2", "alone", [], dict(name="images", path="alone/train", classes="3")),
    ("convnext-tiny", "parquet", [], dict(name="images", classes="4", lr="5.0e-4")),
    ("vit", "binary", [], dict(name="cifar100", classes="100", lr="5.0e-5", metric="accuracy")),
    ("vit", "python", ["--lora"], dict(name="cifar10", also_train="[classifier]", lr="3.0e-3")),
    ("vit", "hundred", [], dict(name="cifar100", classes="100")),
    ("vit", "binary", ["--label", "coarse_label"], dict(name="cifar100", classes="20", label='"coarse_label"')),
    ("mobilenet", "food", [], dict(name="food101", classes="2")),
    ("vit-base", "cifar100", [], dict(name="cifar100", path="data/cifar-100-binary", weights='"hf://google/vit-base-patch16-224"')),
    ("qwen", "wishes", [], dict(name="chat", loss="dpo", lr="1.0e-6", epochs="1", **{"global": "8"})),
    ("vit", "tars", [], dict(name="webdataset", classes="4", evaluate="epoch")),
    ("resnet50", "tars/train-1.tar", ["--label", "json.class"], dict(name="webdataset", classes="3", label="json.class")),
    ("qwen", "records.tar", [], dict(name="jsonl", prompt='"Question: {question}\\nAnswer:"', response='" {answer}"', loss="response")),
    ("qwen", "chats.tokens", [], dict(name="tokens", loss="assistant", sequence="128", test_share="0.05")),
    ("qwen", "numbers", [], dict(name="tokens", loss="response")),
    ("cnn-lstm", "clips", [], dict(name="frames", classes="2")),
]


def expected_lines(text, expected, root):
    """Each value on a line of its own, with a reason behind it."""
    for key, value in expected.items():
        found = [line for line in text.splitlines() if re.match(rf"  {key}: |  \w+: {{ {key}: ", line)]
        assert any(f"{key}: {value}" in line or f"{key}: {root}/{value}" in line for line in found), (key, value, text)
    for line in text.splitlines()[1:]:
        assert re.fullmatch(r"\w+:|  \w+: .*?  # \S.*", line), line


def made(root, output, *words, code=0, said=""):
    done = run("recipe", "new", *words, "-o", output)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    assert said in done.stdout + done.stderr, (said, done.stdout, done.stderr)
    assert (code == 0) == output.exists(), (words, done.stdout, done.stderr)
    return done


def test_pairs(root):
    recipes = []
    for model, data, words, expected in PAIRS:
        output = root / f"{len(recipes)}.yaml"
        places = [root / word if (root / word).exists() else word for word in (model, data, *words)]
        done = made(root, output, *places, "--yes", "--machine", "t4")
        assert f"dstrain recipe check {output}\n  dstrain launch {output} --ranks" in done.stdout, done.stdout
        assert "no terminal" not in done.stderr and "warning" not in done.stderr, done.stderr
        expected_lines(output.read_text(), expected, root)
        recipes.append(output)
    done = run("recipe", "check", *recipes)
    assert done.returncode == 0 and done.stdout.count(": ok\n") == len(PAIRS) and "warning" not in done.stderr, (done.stdout, done.stderr)
    return recipes


def test_trains(root, recipes):
    """What was made of an image folder trains as it stands, and chats are the samples that were counted."""
    recipe = next(one for one, pair in zip(recipes, PAIRS) if pair[:2] == ("cnn-basic", "split"))
    text = expect_success(run("launch", recipe, "--ranks", 1, "--set", "parallel.backend=gloo", "--set", f"run.output={root}/runs"))
    assert "test accuracy" in text and only_run(root / "runs"), text
    prepared = json.loads(run("data", "prepare", recipes[0], "--json", "--set", f"data.cache={root}/tokens").stdout)
    samples = prepared["train"]["samples"] + prepared["test"]["samples"]
    assert samples == len(SUMS) and f"# {samples} records for training" in recipes[0].read_text(), prepared
    settings = [word for setting in (f"data.cache={root}/tokens", "data.test_share=0", "run.evaluate=never", "run.best.metric=none", "run.generate=0")
                for word in ("--set", setting)]
    whole = json.loads(run("data", "prepare", recipes[0], "--json", *settings).stdout)["train"]
    lengths = f"95 % of {samples} samples have at most {whole['p95']} tokens, the longest {whole['longest']}"
    assert lengths in recipes[0].read_text(), (lengths, recipes[0].read_text())


def test_fits(root):
    """What does not fit in full is trained by adapters; what does not fit at all is said."""
    words = ("Qwen/Qwen2.5-3B", root / "messages.jsonl", "--tokenizer", root / "qwen", "--yes")
    large, small, tiny = root / "large.yaml", root / "small.yaml", root / "tiny.yaml"
    made(root, large, *words, "--machine", "h200")
    made(root, small, *words, "--machine", "rtx4090")
    assert "lora:" not in large.read_text() and "lora:" in small.read_text()
    assert re.search(r"rank: 16 +# all weights take [\d.]+ GiB, which does not fit on ", small.read_text()), small.read_text()
    made(root, tiny, *words, "--machine", "rtx4090", "--full", said="note: it does not fit: a rank needs")
    plan = run("plan", small, "--machine", "rtx4090", "--json")
    assert plan.returncode == 0, plan.stderr


def test_refusals(root):
    for name in ("adapter", "empty", "notes", "other", "no_tokenizer", "loose"):
        (root / name).mkdir()
    (root / "adapter/adapter_config.json").write_text(json.dumps(dict(base_model_name_or_path="Qwen/Qwen2.5-0.5B")))
    (root / "notes/a.csv").write_text("a,b\n")
    (root / "other/config.json").write_text(json.dumps(dict(model_type="t5")))
    for name in ("config.json", "model.safetensors"):
        (root / f"no_tokenizer/{name}").write_bytes((root / f"qwen/{name}").read_bytes())
    picture(root / "loose/1.png")
    (root / "void.jsonl").write_text("\n")
    (root / "broken.jsonl").write_text("{\"messages\": \n")
    lines(root / "no_chat.jsonl", [dict(messages=[dict(role="judge", content="x")])] * 3)
    (root / "table.csv").write_text("a,b\n")
    output = root / "refused.yaml"
    for model, data, words, code, said in (
            ("adapter", "messages.jsonl", [], 64, "is an adapter, not a model"),
            ("adapter", "messages.jsonl", [], 64, "made for, Qwen/Qwen2.5-0.5B, and set lora.weights"),
            ("empty", "messages.jsonl", [], 65, "has no config.json"),
            ("other", "messages.jsonl", [], 65, "model_type is 't5'"),
            ("no_such", "messages.jsonl", [], 64, "is no model"),
            ("qwen2.5-0.6b", "messages.jsonl", [], 64, "did you mean qwen2.5-0.5b?"),
            ("no_tokenizer", "messages.jsonl", [], 65, "tokenizer.json is not there"),
            ("qwen", "split", [], 64, "qwen takes text, but"),
            ("vit", "messages.jsonl", [], 64, "vit takes images, but"),
            ("vit", "records.tar", [], 65, "has no 0000.cls beside it"),
            ("qwen", "tars/train-0.tar", ["--label", "cls"], 64, "qwen takes text, but"),
            ("vit", "chats.tokens", [], 64, "chats.tokens has tokens of chat"),
            ("llama", "chats.tokens", [], 65, "its tokens are of another tokenizer"),
            ("vit", "digits", [], 64, "holds grey images"),
            ("qwen", "empty", [], 65, "is empty"),
            ("qwen", "notes", [], 65, "holds no data of a known form, but 1 .csv"),
            ("qwen", "table.csv", [], 65, "write each row as a JSON object"),
            ("qwen", "void.jsonl", [], 65, "void.jsonl is empty"),
            ("qwen", "broken.jsonl", [], 65, "broken.jsonl: record 1"),
            ("qwen", "no_chat.jsonl", [], 65, "none of the first 3 records can be used"),
            ("qwen", "odd.jsonl", [], 64, "is the answer is not clear"),
            ("qwen", "nowhere", [], 64, "there is no data 'nowhere'"),
            ("llama", "messages.jsonl", [], 64, "has no chat template"),
            ("vit", "loose", [], 65, "holds no folder; it needs one per class"),
            ("resnet50", "split", ["--lora"], 64, "--lora: resnet50 starts from random weights"),
            ("mobilenet", "split", ["--lora"], 64, "--lora: mobilenet is convolutional"),
            ("qwen", "messages.jsonl", ["--prompt", "a", "--response", "b"], 64, "--prompt is for JSON Lines of any fields"),
            ("vit", "split", ["--label", "x"], 64, "--label is for parquet files of images, CIFAR-100 and tars"),
            ("vit", "split", ["--tokenizer", "x"], 64, "--tokenizer is for text"),
            ("qwen", "answers", ["--template", "chatml"], 64, "--template is for chats"),
            ("qwen", "org/none", [], 69, "org/none")):
        places = [root / word if (root / word).exists() else word for word in (model, data)]
        made(root, output, *places, *words, "--yes", code=code, said=said)
    (root / "locked.jsonl").write_text("{}")
    (root / "locked.jsonl").chmod(0)
    if os.geteuid() != 0:
        made(root, output, root / "qwen", root / "locked.jsonl", "--yes", code=65, said="locked.jsonl")
    done = run("recipe", "new", "--yes")
    assert done.returncode == 64 and "MODEL is missing" in done.stderr, done.stderr
    done = run("recipe", "new", root / "qwen")
    assert done.returncode == 64 and "no terminal: defaults are taken" in done.stderr and "DATA is missing" in done.stderr, done.stderr
    # A file that is there stays.
    (root / "mine.yaml").write_text("mine")
    done = run("recipe", "new", root / "qwen", root / "messages.jsonl", "-o", root / "mine.yaml")
    assert done.returncode == 64 and "mine.yaml is there already and is not overwritten" in done.stderr, done.stderr
    assert (root / "mine.yaml").read_text() == "mine"


def test_questions(root):
    def asked(words, answers, code=0):
        ours, theirs = pty.openpty()
        process = subprocess.Popen([os.environ["DSTRAIN"], "recipe", "new", *map(str, words), "--machine", "h200"], cwd=root, stdin=theirs,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=os.setsid)
        os.close(theirs)
        os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
        out, told = process.communicate(timeout=120)
        os.close(ours)
        assert process.returncode == code, (out, told)
        return out, told

    out, told = asked([], ["qwen", "odd.jsonl", "eins zwei", "5", "lora"])
    assert told.count(": ") >= 5 and "Train all weights (full) or adapters (lora)?" in told and "Epochs [3]" in told, told
    text = (root / "qwen_odd.yaml").read_text()
    expected_lines(text, dict(weights='"qwen"', path="odd.jsonl", prompt='"{eins}\\n"', response='"{zwei}"', epochs="5", rank="16"), root)
    assert "dstrain launch qwen_odd.yaml --ranks 1" in out, out
    # Empty lines take the defaults.
    asked(["qwen", "answers", "-o", "default.yaml"], ["", "", ""])
    expected_lines((root / "default.yaml").read_text(), dict(response='" {answer}"', epochs="3"), root)
    assert "lora:" not in (root / "default.yaml").read_text()
    _, told = asked(["qwen", "answers", "-o", "never.yaml"], ["", "many"], code=64)
    assert "'many' is no number of epochs" in told and not (root / "never.yaml").exists(), told
    _, told = asked(["qwen", "odd.jsonl", "-o", "never.yaml"], ["eins vier"], code=64)
    assert "no field 'vier'" in told and "eins, zwei, drei" in told, told


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    os.environ["DSTRAIN_CACHE"] = str(scratch / "cache")
    os.environ.pop("DSTRAIN_DATA", None)
    write_models(scratch)
    write_texts(scratch)
    write_images(scratch)
    write_tars(scratch)
    write_text_tars(scratch)
    write_tokens(scratch)
    test_trains(scratch, test_pairs(scratch))
    test_fits(scratch)
    test_refusals(scratch)
    test_questions(scratch)
    print(f"recipe_new: {len(PAIRS)} pairs: ok")
