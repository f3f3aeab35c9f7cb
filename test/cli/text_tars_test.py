"""Tar shards of texts: the tokens of what webdataset yields of them (where it is installed; else of what was written), losses bit for bit those of
the same records as lines, on other ranks, resumed and in a mixture; what is bad is named with its tar and member; `data show`, `recipe new`."""
import gzip
import io
import json
import os
import pathlib
import sys
import tarfile
import tempfile

from support import copy_until, expect_success, losses, only_run, run
from text_files import read_cache, write_tokenizer  # leaves with 77 without tokenizers
from tokenizers import Tokenizer

try:
    import webdataset
except ImportError:
    webdataset = None

RECIPE = """
model:     {{ name: bloom-560m, layers: 1, width: 32, heads: 2, vocab_size: 512 }}
data:      {{ {data}, tokenizer: "{folder}/tokenizer", cache: "{folder}/cache", sequence: 64 }}
batch:     {{ global: 12, micro: 3 }}
optimizer: {{ lr: 1.0e-3 }}
parallel:  {{ backend: gloo }}
run:       {{ steps: 8, evaluate: 4, checkpoint: {{ every: 2, keep: 100 }} }}
"""
WORDS = 'prompt: "{question}: ", response: "{txt}"'
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def write_tar(path, members, form=tarfile.PAX_FORMAT, mode="w"):
    with tarfile.open(path, mode, format=form) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def sample(i):
    """A picture and other members beside are left alone; endings may be in capitals, keys in folders."""
    key = f"{'part/' if i % 3 == 0 else ''}{i:06}"
    members = [(f"{key}.{'JSON' if i % 4 == 0 else 'json'}", json.dumps({"question": f"What is {i} + 1"}).encode()), (f"{key}.txt", f"it is {i + 1}\n".encode()),
               (f"{key}.jpg", b"\xff\xd8 no text"), (f"{key}.seg.txt", b"of another ending")]
    return members[i % 2:] + members[:i % 2]


def launch(recipe, output, ranks, *more):
    return expect_success(run("launch", recipe, "--ranks", ranks, "--set", f"run.output={output}", *more))


def check_prepared(folder, recipe, tars):
    """The tokens of each tar are those of the samples that webdataset makes of it."""
    said = expect_success(run("data", "prepare", recipe))
    assert "20 records" in said and "; left out: 1 of further splits, the first is val-000000.tar" in said, said
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer/tokenizer.json"))
    found = [[tokens for tokens, _, _ in read_cache(path)] for path in (folder / "cache").glob("jsonl-*.tokens")]
    for tar, first, count in tars:
        if webdataset is None:
            pairs = [(f"What is {i} + 1", f"it is {i + 1}\n") for i in range(first, first + count)]
        else:
            data = webdataset.WebDataset(str(tar), shardshuffle=False).decode()
            pairs = [(one["json"]["question"], one["txt"]) for one in data]
        assert len(pairs) == count
        wanted = [tokenizer.encode(f"{question}: ").ids + tokenizer.encode(text).ids for question, text in pairs]
        assert any([tokens[:-1] for tokens in tokens_of_file] == wanted for tokens_of_file in found), (tar, wanted[0], [f[0] for f in found])
    print(f"  tokens of {len(tars)} tars are those of {'webdataset' if webdataset else 'the members'}", flush=True)


def check_bad(folder):
    """Bad members are left out and named, or end the run; so do tars that are none."""
    tar = folder / "bad.tar"
    write_tar(tar, sample(1) + [("x.txt", b"alone"), ("y.json", b"{"), ("y.txt", b"a"), ("z.json", b'{"question": "q"}'), ("z.txt", b"\xff")] + sample(2) + sample(3))
    recipe = folder / "bad.yaml"
    recipe.write_text(RECIPE.format(folder=folder, data=f'name: jsonl, path: "{tar}", test_share: 0, {WORDS}'))
    said = expect_success(run("data", "prepare", recipe, "--set", "run.evaluate=never"))
    assert "for evaluation" not in said, said  # the tars of the folder beside are none of this one
    assert f"3 left out: first at {tar}: sample 2: x: it has no question" in said, said
    for change, words in ((["data.bad_record=stop"], f"{tar}: sample 2: x: it has no question"), ([f"data.path={folder}/no.tar"], "no.tar' is not there"),
                          ([f"data.path={folder}/packed.tar.gz"], "packed.tar.gz: it is compressed by gzip"),
                          ([f"data.path={folder}/cut.tar"], "cut.tar: it ends without a block of zeros"),
                          ([f"data.path={folder}/no-{{00..03}}.tar"], "no-00.tar")):
        (folder / "packed.tar.gz").write_bytes(gzip.compress(tar.read_bytes()))
        (folder / "cut.tar").write_bytes(tar.read_bytes()[:-10240])
        done = run("data", "prepare", recipe, *(word for one in change for word in ("--set", one)))
        assert done.returncode in (64, 65, 66) and words in done.stderr, (change, done.returncode, done.stdout, done.stderr)
    # A chat is one JSON object.
    write_tar(folder / "chats.tar", [("a.json", json.dumps({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}).encode()),
                                     ("b.txt", b"no chat")])
    done = run("data", "show", recipe, "--set", "data.name=chat", "--set", f"data.path={folder}/chats.tar", "--set", "data.template=chatml", "--set", "data.prompt=", "--set",
               "data.response=", "--set", "data.bad_record=stop")
    assert done.returncode != 0 and f"{folder}/chats.tar: sample 2: b: it has no b.json, only b.txt" in done.stderr, done.stderr


def check_recipe_new(folder):
    """`recipe new` tells texts from images, and chats from other records."""
    output, tars = folder / "made.yaml", folder / "texts"
    tars.mkdir()
    for name, some in (("train-0", range(20)), ("test-0", range(100, 105))):
        write_tar(tars / f"{name}.tar", [member for i in some for member in sample(i) if not member[0].endswith("jpg")])
    write_tar(folder / "chat.tar", [("a.json", json.dumps({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}).encode())] * 1)
    write_tar(folder / "plain.tar", [member for i in range(30) for member in ((f"{i}.txt", f"text {i}".encode()), (f"{i}.cls", b"1"))])
    for data, words in ((tars, ("name: jsonl", f"path: {tars}", 'prompt: "Question: {question}\\nAnswer:"', 'response: " {txt}"', "evaluate: epoch")),
                        (folder / "plain.tar", ("name: jsonl", 'response: "{txt}"')), (folder / "chat.tar", ("name: chat", "chat.tar"))):
        output.unlink(missing_ok=True)
        more = ["--prompt", "Question: {question}\nAnswer:", "--response", " {txt}"] if data == tars else []
        done = run("recipe", "new", "bloom-560m", data, "--tokenizer", folder / "tokenizer", *more, "-o", output, "--yes", "--machine", "t4")
        text = output.read_text() if output.exists() else ""
        assert done.returncode == 0 and all(word in text for word in words), (data, done.stdout, done.stderr, text)


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    os.environ["DSTRAIN_CACHE"] = str(folder / "other-cache")
    write_tokenizer(folder / "tokenizer", [f"What is {a} + 1: it is {a + 1}" for a in range(200)], qwen=True)
    tars = folder / "tars"
    tars.mkdir()
    shards = [(tars / f"train-{s:06}.tar", 20 * s, 20) for s in range(3)]
    for (path, first, count), form in zip(shards, FORMATS):
        write_tar(path, [member for i in range(first, first + count) for member in sample(i)], form)
    write_tar(tars / "test-000000.tar", [member for i in range(100, 109) for member in sample(i)])
    write_tar(tars / "val-000000.tar", sample(200))
    recipe = folder / "tars.yaml"
    recipe.write_text(RECIPE.format(folder=folder, data=f'name: jsonl, path: "{tars}/train-{{000000..000002}}.tar", {WORDS}'))
    expect_success(run("recipe", "check", recipe, "--files"))
    check_prepared(folder, recipe, shards)
    shown = expect_success(run("data", "show", recipe, "-n", 2))
    assert f"{shards[0][0]}: sample 1" in shown and "What is 0 + 1: it is 1" in shown.replace("[[", "").replace("]]", ""), shown

    # As the same records in lines.
    (folder / "lines").mkdir()
    for name, some in (("train", range(60)), ("test", range(100, 109))):
        (folder / f"lines/{name}.jsonl").write_text("".join(json.dumps({"question": f"What is {i} + 1", "txt": f"it is {i + 1}\n"}) + "\n" for i in some))
    launch(recipe, folder / "lines-run", 1, "--set", f"data.path={folder}/lines")
    expected = losses(only_run(folder / "lines-run"))
    assert len(expected) == 8
    said = launch(recipe, folder / "one", 1)
    assert losses(only_run(folder / "one")) == expected and "data, test: 9 samples" in said, (expected, said)
    launch(recipe, folder / "two", 2, "--set", f"data.path={tars}")
    for step, loss in losses(only_run(folder / "two")).items():
        assert abs(loss - expected[step]) < 1e-5 * expected[step], (step, loss, expected[step])
    part = copy_until(only_run(folder / "two"), folder / "part", 4)
    launch(recipe, folder / "resumed", 3, "--set", "batch.micro=2", "--resume", part)
    resumed = losses(part)
    assert all(abs(resumed[step] - expected[step]) < 1e-5 * expected[step] for step in range(5, 9)), (resumed, expected)

    # Beside others in a mixture.
    mixed = folder / "mixed.yaml"
    mixed.write_text(RECIPE.format(folder=folder, data=f'mixture: [{{ name: jsonl, path: "{shards[0][0]}", {WORDS}, weight: 1 }}, '
                                                       f'{{ name: jsonl, path: "{folder}/lines", {WORDS}, weight: 1 }}]'))
    said = launch(mixed, folder / "mixed", 1)
    assert f"mixture: jsonl {shards[0][0]} 50.0 % (20 samples)" in said, said
    print("  losses are those of lines, on other ranks, resumed and in a mixture", flush=True)
    check_bad(folder)
    check_recipe_new(folder)
print("text_tars: ok")
