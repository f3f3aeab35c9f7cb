"""The recipes of one to five dimensions (recipes/qwen/qwen2.5-3b_metamathqa_*d.yaml), made tiny."""
from text_files import write_metamathqa, write_tokenizer

STEPS, ANSWERS, ANSWER_TOKENS, TEST_SHARE = 4, 2, 6, 0.1
DENSE = ["model.weights=", "model.mlp_width=64"]


def write_files(scratch):
    """A data set and a tokenizer in `scratch`; returns the settings of a tiny model that trains on them."""
    write_metamathqa(scratch / "MetaMathQA-395K.json", 200)
    write_tokenizer(scratch / "qwen", [(scratch / "MetaMathQA-395K.json").read_text()], qwen=True)
    return [f"data.path={scratch}/MetaMathQA-395K.json", f"data.tokenizer={scratch}/qwen", f"data.cache={scratch}/cache",
            "data.sequence=160", f"data.test_share={TEST_SHARE}", "data.workers=1", "parallel.backend=gloo", "precision.compute=fp32",
            "model.vocab_size=400", "model.width=32", "model.layers=2", "model.heads=4", "model.kv_heads=2", "batch.micro=2",
            "batch.global=8", "optimizer.lr=0.003", "optimizer.warmup_steps=2", f"run.generate={ANSWERS}",
            f"run.generate_tokens={ANSWER_TOKENS}", "run.epochs=0", f"run.steps={STEPS}", f"run.evaluate={STEPS // 2}",
            f"run.checkpoint.every={STEPS // 2}"]


def arguments(command, recipe, ranks, *settings):
    words = [word for setting in settings for word in ("--set", setting)]
    return [command, f"recipes/qwen/qwen2.5-3b_metamathqa_{recipe}.yaml", "--ranks", str(ranks), *words]
