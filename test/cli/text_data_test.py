"""`dstrain data prepare` on SQuAD, MetaMathQA and JSONL in their true formats, JSON and parquet: the tokens are those that `tokenizers`
gives for the whole text, the figures those that numpy counts, wrong parquet files are named, a second run finds the cache."""
import json
import pathlib
import random
import sys
import tempfile
import time

from support import ROOT, expect_success, run
from text_files import read_cache

sys.path.insert(0, str(ROOT / "test/data"))
try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tokenizer_families import SPACE, pre_tokenizers, prepending, sentence_piece
    from tokenizer_samples import Samples, train
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

SYSTEM = "You are a careful tutor."
rng = random.Random(5)


def make_tokenizer(kind, texts):
    """"legacy" puts a space before each text, "mistral" before the first; a response goes on where its prompt ends."""
    if kind == "legacy":
        return sentence_piece(texts, 1000, prepending())
    if kind == "mistral":
        return sentence_piece(texts, 1000, pre_tokenizer=pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False))
    return train(kind, 1000, texts)


def write_tokenizer(folder, kind, texts):
    tokenizer = make_tokenizer(kind, texts)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{%- if x %}{{- '<|im_start|>system\\n" + SYSTEM + "<|im_end|>\\n' }}{%- endif %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"eos_token": "</s>", "pad_token": "<pad>" if kind == "bloom" else "<unk>"} if kind != "qwen" else
        {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "chat_template": template}))
    return tokenizer


def make_questions(samples, count, v2):
    """(context, question, answer or None, answer_start): the answer stands in the context, at a code point."""
    made = []
    while len(made) < count:
        context = " ".join(samples.sentence() for _ in range(rng.randint(1, 6))).strip()
        words = context.split()
        for _ in range(rng.randint(1, 4)):
            answer = " ".join(rng.choice(words) for _ in range(1)) if words else ""
            if not answer:
                continue
            impossible = v2 and rng.random() < 0.3
            made.append((context, samples.sentence(), None if impossible else answer, context.index(answer)))
    return made[:count]


def write_squad_json(path, questions, v2):
    paragraphs = {}
    for i, (context, question, answer, start) in enumerate(questions):
        qa = {"question": question, "id": f"{i:024x}", "answers": [] if answer is None else
              [{"text": answer, "answer_start": start}, {"text": "other", "answer_start": 0}]}
        if v2:
            qa["is_impossible"] = answer is None
        paragraphs.setdefault(context, []).append(qa)
    listed = [({"qas": q, "context": c} if v2 else {"context": c, "qas": q}) for c, q in paragraphs.items()]
    file = {"data": [{"title": "A", "paragraphs": listed[:3]}, {"title": "B", "paragraphs": listed[3:]}]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": "v2.0", **file} if v2 else {**file, "version": "1.1"}, ensure_ascii=rng.random() < 0.5))


def squad_table(questions):
    return pa.table({
        "id": [f"{i:024x}" for i in range(len(questions))], "title": ["A"] * len(questions),
        "context": [q[0] for q in questions], "question": [q[1] for q in questions],
        "answers": pa.array([{"text": [] if q[2] is None else [q[2]], "answer_start": [] if q[2] is None else [q[3]]} for q in questions],
                            pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))]))})


def write_parquet(path, table, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)


def prepare(recipe, cache, settings, expect=0):
    words = [word for s in (*settings, f"data.cache={cache}", "model.weights=") for word in ("--set", s)]
    result = run("data", "prepare", "--recipe", ROOT / recipe, "--json", *words)
    assert result.returncode == expect, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stderr if expect else json.loads(result.stdout), result.stderr


def only_cache(cache, split_of=1):
    found = sorted(pathlib.Path(cache).glob("*.tokens"))
    assert len(found) == split_of, found
    return found


def demand_tokens(what, tokenizer, paths, prompts, responses, end):
    got = [sample for path in paths for sample in read_cache(path)]
    assert len(got) == len(prompts), (what, len(got), len(prompts))
    for (tokens, response, _), prompt, answer in zip(got, prompts, responses):
        whole = tokenizer.encode(prompt + answer, add_special_tokens=False).ids
        if whole[-1] != end:
            whole.append(end)
        assert tokens == whole, f"{what}: {prompt + answer!r}\n  dstrain    {tokens}\n  tokenizers {whole}"
        assert response == len(tokenizer.encode(prompt, add_special_tokens=False).ids), what


def demand_figures(what, figures, lengths, sequence):
    lengths = np.array(lengths)
    cut = np.minimum(lengths, sequence)
    assert figures["samples"] == len(lengths), (what, figures)
    assert figures["cut"] == int((lengths > sequence).sum()) and figures["tokens"] == int(cut.sum()), (what, figures)
    assert abs(figures["mean"] - lengths.mean()) < 1e-6 and figures["longest"] == lengths.max(), (what, figures)
    for name, q in (("p50", 50), ("p95", 95)):
        assert figures[name] == np.percentile(lengths, q, method="inverted_cdf"), (what, name, figures)
    assert abs(figures["padding_share"] - (1 - cut.sum() / (len(lengths) * sequence))) < 1e-9
    min_rows = -(-int(cut.sum()) // sequence)
    assert min_rows <= figures["packed_rows"] <= 1.25 * min_rows + 2, (what, figures, min_rows)


def squad(scratch, samples, tokenizer, v2, model="bloom"):
    name, suffix = ("squad_v2", "v2.0") if v2 else ("plain_text", "v1.1")
    splits = {"train": make_questions(samples, 700, v2), "dev": make_questions(samples, 80, v2)}
    folder = scratch / f"squad-{suffix}-{model}"
    for split, questions in splits.items():
        write_squad_json(folder / "json" / f"{split}-{suffix}.json", questions, v2)
    train_table = squad_table(splits["train"])
    write_parquet(folder / f"parquet/{name}/train-00000-of-00002.parquet", train_table.slice(0, 300), compression="snappy")
    write_parquet(folder / f"parquet/{name}/train-00001-of-00002.parquet", train_table.slice(300), row_group_size=100, compression="zstd")
    write_parquet(folder / f"parquet/{name}/validation-00000-of-00001.parquet", squad_table(splits["dev"]))
    for kind in ("json", "parquet"):
        cache = scratch / f"cache-{suffix}-{kind}-{model}"
        settings = [f"data.path={folder / kind}", f"data.tokenizer={scratch / model}", "data.sequence=128", "data.loss=response"]
        figures, _ = prepare("recipes/bloom/bloom-560m_squad.yaml", cache, settings)
        end = tokenizer.token_to_id("</s>")
        # A token file of each input file, in their order: 700 and 80 samples, or 300, 400 and 80.
        files = {len(read_cache(f)): f for f in only_cache(cache, 2 if kind == "json" else 3)}
        for split, counts in (("train", (700,) if kind == "json" else (300, 400)), ("dev", (80,))):
            paths = [files[count] for count in counts]
            # JSON groups questions by context, in the order in which contexts come first.
            questions = splits[split]
            order = {}
            for q in questions:
                order.setdefault(q[0], []).append(q)
            questions = [q for group in order.values() for q in group] if kind == "json" else questions
            prompts = [f"Question: {q} Context: {c} Answer:" for c, q, _, _ in questions]
            responses = [" " + ("unanswerable" if a is None else a) for _, _, a, _ in questions]
            demand_tokens(f"squad {suffix} {kind} {split}", tokenizer, paths, prompts, responses, end)
            # Samples cut before their answer have nothing left to learn.
            used = [len(t) for path in paths for t, r, _ in read_cache(path) if r < 128]
            demand_figures(f"squad {suffix} {kind} {split}", figures["train" if split == "train" else "test"], used, 128)
    print(f"squad {suffix}, {model}: {len(splits['train'])} + {len(splits['dev'])} samples equal")


def metamathqa(scratch, samples, tokenizer):
    entries = [{"type": "GSM_Rephrased", "query": samples.sentence().strip() or "?", "original_question": f"question {i % 150}",
                "response": f"{rng.choice(['We', '$x$', '12', 'Zürich'])} {samples.sentence()}\nThe answer is: {i}"} for i in range(900)]
    folder = scratch / "metamathqa"
    (folder / "json").mkdir(parents=True)
    (folder / "json/MetaMathQA-395K.json").write_text(json.dumps(entries, indent=2))
    table = pa.Table.from_pylist(entries)
    table = table.set_column(table.schema.get_field_index("query"), "query", table["query"].cast(pa.large_string()))
    table = table.set_column(table.schema.get_field_index("type"), "type", table["type"].dictionary_encode())
    table = table.set_column(table.schema.get_field_index("original_question"), "original_question",
                             table["original_question"].dictionary_encode())
    write_parquet(folder / "parquet/data/train-00000-of-00001.parquet", table)
    prompts = [f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{e['query']}<|im_end|>\n<|im_start|>assistant\n" for e in entries]
    responses = [e["response"] + "<|im_end|>" for e in entries]
    for kind in ("json", "parquet"):
        cache = scratch / f"cache-metamathqa-{kind}"
        settings = [f"data.path={folder / kind}", f"data.tokenizer={scratch / 'qwen'}", "data.sequence=512", "data.test_share=0.1"]
        figures, said = prepare("recipes/qwen/qwen2.5-3b_metamathqa.yaml", cache, settings)
        path, = only_cache(cache)
        demand_tokens(f"metamathqa {kind}", tokenizer, [path], prompts, responses, tokenizer.token_to_id("<|im_end|>"))
        assert figures["train"]["samples"] + figures["test"]["samples"] == len(entries), figures
        assert figures["test"]["samples"] % 6 == 0 and 0 < figures["test"]["samples"] < 250, figures  # groups stay together
        assert said.count("tokenised") == 1, said
        begin = time.monotonic()
        again, said = prepare("recipes/qwen/qwen2.5-3b_metamathqa.yaml", cache, settings)
        assert again == figures and "tokenised" not in said, said
        print(f"metamathqa {kind}: {len(entries)} samples equal; again from the cache in {time.monotonic() - begin:.2f} s")


def wrong_parquet(scratch, samples):
    """Every wrong parquet file is named, with what was expected; records without an answer are counted."""
    good = squad_table(make_questions(samples, 20, False))
    answers = pa.array([{"text": "a", "answer_start": 0}] * 20)
    cases = {
        "there is no column question; it has id, title, context, answers": good.drop_columns(["question"]),
        "column question is int64, expected text": good.set_column(3, "question", pa.array(range(20))),
        "there is no column answers.text": good.set_column(4, "answers", pa.array(["a"] * 20)),
        "column answers.text is string, expected a list of texts": good.set_column(4, "answers", answers),
    }
    cut = scratch / "cut/plain_text/train-00000-of-00001.parquet"
    write_parquet(cut, good)
    cut.write_bytes(cut.read_bytes()[:-20])
    for number, (message, table) in enumerate(cases.items()):
        folder = scratch / f"wrong-{number}"
        write_parquet(folder / "plain_text/train-00000-of-00001.parquet", table)
        said, _ = prepare("recipes/bloom/bloom-560m_squad.yaml", scratch / "cache-wrong",
                          [f"data.path={folder}", f"data.tokenizer={scratch / 'bloom'}"], expect=65)
        assert message in said and "train-00000-of-00001.parquet" in said, (message, said)
    said, _ = prepare("recipes/bloom/bloom-560m_squad.yaml", scratch / "cache-wrong",
                      [f"data.path={scratch / 'cut'}", f"data.tokenizer={scratch / 'bloom'}"], expect=65)
    assert "not a parquet file" in said, said

    rows = good.to_pylist()
    rows[2]["question"] = None
    rows[4]["answers"] = {"text": [], "answer_start": []}
    rows[6]["answers"]["answer_start"] = [10000]
    rows[8]["answers"] = None
    folder = scratch / "few-wrong"
    write_parquet(folder / "plain_text/train-00000-of-00001.parquet", pa.Table.from_pylist(rows, schema=good.schema))
    settings = [f"data.path={folder}", f"data.tokenizer={scratch / 'bloom'}", "data.test_share=0.2"]
    figures, said = prepare("recipes/bloom/bloom-560m_squad.yaml", scratch / "cache-few", settings)
    assert figures["train"]["left_out"] == 4 and "4 left out: first at" in said and "record 3: its question is null" in said, said
    said, _ = prepare("recipes/bloom/bloom-560m_squad.yaml", scratch / "cache-few", [*settings, "data.bad_record=stop"], expect=65)
    assert "record 3: its question is null" in said, said
    print(f"wrong parquet: {len(cases) + 2} files named")


with tempfile.TemporaryDirectory() as place:
    scratch = pathlib.Path(place)
    special = {"bloom": ["</s>"], "qwen": ["<|im_end|>"], "legacy": ["</s>"], "mistral": ["</s>"]}
    for kind in special:
        samples = Samples(7, special[kind])
        tokenizer = write_tokenizer(scratch / kind, kind, [samples.sentence() for _ in range(2000)])
        if kind == "bloom":
            squad(scratch, samples, tokenizer, v2=False)
            squad(scratch, samples, tokenizer, v2=True)
            wrong_parquet(scratch, samples)
        elif kind != "qwen":
            squad(scratch, samples, tokenizer, v2=True, model=kind)
        else:
            metamathqa(scratch, samples, tokenizer)
    result = run("data", "prepare", ROOT / "recipes/quickstart.yaml")
    assert result.returncode == 64 and "needs no preparation" in result.stderr, result.stderr
print("text data: ok")
