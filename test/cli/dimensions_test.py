"""The recipes of one to five dimensions, made tiny, on CPU ranks: training with evaluation and answers, exact resumption, export, what
transformers says of the exported model, and `dstrain verify`."""
import json
import math
import pathlib
import shutil
import tempfile
import time

from text_files import read_cache

try:
    import torch
    import transformers
    from tokenizers import Tokenizer
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

from support import expect_success, losses, metrics, only_run, run
from tiny_metamathqa import ANSWER_TOKENS, ANSWERS, DENSE, STEPS, TEST_SHARE, arguments, write_files

# The fifth goes on from the first's model.
EXPERTS = ["model.experts=4", "model.experts_per_token=2", "model.expert_width=16", "model.shared_width=32"]
# (name, recipe, ranks, settings)
CASES = [("1d", "1d", 2, DENSE),
         ("2d", "2d", 4, DENSE),
         ("3d", "3d", 4, DENSE),
         ("4d", "4d", 8, DENSE),
         ("5d", "5d", 4, EXPERTS),
         ("5d, tensor", "5d", 4, [*EXPERTS, "parallel.pipeline=1", "parallel.tensor=2"])]
# (name, recipe, ranks, settings) that are verified only.
VERIFIED = [("3d in 16 bits", "3d", 4, [*DENSE, "precision.compute=bf16", "precision.states=bf16"]),
            ("5d, adapters", "5d", 4, [*EXPERTS, "lora.rank=4", "lora.targets=[q_proj, v_proj, down_proj]"])]


def near(found, expected, tolerance):
    assert sorted(found) == sorted(expected), (sorted(found), sorted(expected))
    for step, value in expected.items():
        assert abs(found[step] - value) <= tolerance * abs(value), (step, found[step], value)


def start_from(scratch, recipe):
    return [f"model.weights={scratch}/exported_1d"] if recipe == "5d" else []


def demand_verified(recipe, ranks, settings):
    text = expect_success(run(*arguments("verify", recipe, ranks, *settings), "--steps", 2))
    assert "passed: the strategy computes what one rank computes" in text, text


def evaluations(directory):
    return {step: line["loss"] for step, line in metrics(directory, "evaluation").items()}


def answers(directory):
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    return [(e["step"], e["prompt"], e["answer"]) for e in events if e["kind"] == "generated"]


def remove_newest(directory):
    shutil.rmtree(sorted((directory / "checkpoints").glob("step-*"))[-1])


def demand_transformers_agree(exported, directory, held_out, tokenizer):
    """Loss of the held out responses, and greedy answers, of the exported model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(exported).float().eval()
    total = count = 0
    for tokens, response in held_out:
        labels = torch.tensor([[-100] * response + tokens[response:]])
        targets = len(tokens) - response
        with torch.no_grad():
            total += model(torch.tensor([tokens]), labels=labels).loss.item() * targets
        count += targets
    last = metrics(directory, "evaluation")[STEPS]
    assert last["targets"] == count, (last, count)
    assert abs(last["loss"] - total / count) <= 2e-5 * last["loss"], (last, total / count)
    for step, prompt, answer in answers(directory)[-ANSWERS:]:
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        for _ in range(ANSWER_TOKENS):
            with torch.no_grad():
                ids.append(model(torch.tensor([ids])).logits[0, -1].argmax().item())
        assert step == STEPS and tokenizer.decode(ids[-ANSWER_TOKENS:]) == answer, (step, prompt, answer, ids)


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    settings = write_files(scratch)
    tokenizer = Tokenizer.from_file(str(scratch / "qwen/tokenizer.json"))
    first = None
    for name, recipe, ranks, sizes in CASES:
        begin = time.monotonic()
        case = [*settings, *sizes, *start_from(scratch, recipe), f"run.output={scratch}/{name}"]
        expect_success(run(*arguments("launch", recipe, ranks, *case)))
        whole = only_run(scratch / name)
        expected = losses(whole)
        assert sorted(expected) == list(range(1, STEPS + 1)) and all(map(math.isfinite, expected.values())), expected
        assert sorted(evaluations(whole)) == [STEPS // 2, STEPS] and len(answers(whole)) == 2 * ANSWERS, answers(whole)
        first = first or whole
        if recipe != "5d":
            near(expected, losses(first), 1e-5)
            near(evaluations(whole), evaluations(first), 1e-5)
        else:
            assert expected[1] < losses(first)[STEPS], (expected, losses(first))

        remove_newest(whole)
        text = expect_success(run(*arguments("launch", recipe, ranks, *case), "--resume", whole))
        assert f"resumed at step {STEPS // 2}" in text, text
        assert losses(whole) == expected, (losses(whole), expected)

        expect_success(run("checkpoint", "export", whole, scratch / f"exported_{name}"))
        cache, = (scratch / "cache").glob("*.tokens")
        held_out = [(tokens, response) for tokens, response, group in read_cache(cache) if group < TEST_SHARE * 2**64]
        demand_transformers_agree(scratch / f"exported_{name}", whole, held_out, tokenizer)

        demand_verified(recipe, ranks, case)
        if name == "5d":
            fifth = expected
        elif recipe == "5d":  # another layout of the same run
            near(expected, fifth, 1e-5)
        print(f"{name} on {ranks} ranks: {time.monotonic() - begin:.1f} s", flush=True)
    for name, recipe, ranks, more in VERIFIED:
        begin = time.monotonic()
        demand_verified(recipe, ranks, [*settings, *more, *start_from(scratch, recipe), f"run.output={scratch}/verified"])
        print(f"{name} on {ranks} ranks: {time.monotonic() - begin:.1f} s", flush=True)
print("dimensions: ok")
