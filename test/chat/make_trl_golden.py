"""Writes what TRL's SFTTrainer makes of conversations, ids and what of them is trained: test/golden/chat/trl.json.gz.

python3 test/chat/make_trl_golden.py   (trl, datasets, transformers; written with trl 1.16.0, datasets 4.4.1, transformers 5.24.0)
No test needs them: test/cli/trl_test.py compares dstrain with the file. Tokenizers are small and of the families' kinds.
"""
import gzip
import json
import os
import pathlib
import re
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import datasets
import tokenizers
import transformers
import trl
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "test/data"))
from tokenizer_samples import BLOOM_PATTERN, QWEN_PATTERN

LLAMA_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                 r"|\s+(?!\S)|\s+")
# template of TRL's wheel: pattern, tokens of beginning and end, whether the tokenizer itself adds the first
FAMILIES = {
    "qwen2_5": (QWEN_PATTERN, None, "<|im_end|>", False), "qwen3": (QWEN_PATTERN, None, "<|im_end|>", False),
    "llama3": (LLAMA_PATTERN, "<|begin_of_text|>", "<|eot_id|>", True), "phi3": (LLAMA_PATTERN, "<s>", "<|endoftext|>", False),
    "gemma": (LLAMA_PATTERN, "<bos>", "<eos>", True), "deepseekv3": (LLAMA_PATTERN, "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
                                                                      "<\uff5cend\u2581of\u2581sentence\uff5c>", True),
    "lfm2": (LLAMA_PATTERN, "<|startoftext|>", "<|im_end|>", True),
    "cohere": (BLOOM_PATTERN, "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", True),
}
MORE_SPECIAL = {"gemma": ["<start_of_turn>", "<end_of_turn>"]}
SYSTEM = {name: name not in ("gemma",) for name in FAMILIES}  # whether the template takes one


def turns(*texts, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    return messages + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


CHATS = [turns(f"What is {a} plus {a + 1}?", f"{a} + {a + 1} = {2 * a + 1}.") for a in range(7, 10)] + [
    turns("Hello", "Hi!\nHow can I help?", "Say A", "A.", "and B", "B, of course:\n\n- b\n- B"),
    turns("One", "Two", system="Count."), turns("caf\u00e9 \U0001f600 \u65e5\u672c\u8a9e", "na\u00efve \u2014 d\u00e9j\u00e0 vu"),
    turns("Write code", "```python\nfor i in range(10):\n    print(i)\n```"), turns("x" * 50 + " y", "word " * 40 + "end")]
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Name"}}, "required": ["city"]}}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Z\u00fcrich"}}}
# As text: in a table of Arrow the fields of an object have another order.
TOOL_CHATS = [{"tools": json.dumps([WEATHER]), "messages": [
    {"role": "user", "content": f"Is it warm in Z\u00fcrich{mark}", "tool_calls": None},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "21.5", "tool_calls": None},
    {"role": "assistant", "content": "Yes, 21.5 degrees.", "tool_calls": None}]} for mark in ("?", " now?")]
PAIRS = [{"prompt": f"Question: {a} and {a}?\nAnswer:", "completion": f" {2 * a}, so it is."} for a in range(4)]
ALPACA = [{"instruction": f"Add {a} and {a}.", "input": "", "output": f"{2 * a}"} for a in range(3)] + [
    {"instruction": "Name the animal.", "input": "It says meow.", "output": "A cat."}]
ALPACA_PROMPT = "Below is an instruction.\n\n### Instruction:\n{instruction}\n\n### Response:\n"


def template_of(name):
    return (pathlib.Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()


def special_of(name):
    """The tokens that a template writes, in its literals."""
    found = re.findall(r"<[|\uff5c][^<>\s'\"{}]+[|\uff5c]>", template_of(name))
    return list(dict.fromkeys(found)) + MORE_SPECIAL.get(name, [])


def make_tokenizer(name, texts):
    pattern, begin, end, adds = FAMILIES[name]
    tokenizer = Tokenizer(models.BPE())
    if pattern == QWEN_PATTERN:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                             show_progress=False))
    special = list(dict.fromkeys([*special_of(name), *filter(None, (begin, end))]))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    plain = processors.ByteLevel(trim_offsets=False)
    tokenizer.post_processor = plain if not adds else processors.Sequence([plain, processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, tokenizer.token_to_id(begin))])])
    return tokenizer


def prepared(tokenizer, model, rows, folder, formatting=None, **options):
    """[(ids, 1 where the loss looks)] of the trainer."""
    arguments = trl.SFTConfig(output_dir=folder, report_to="none", max_length=options.pop("max_length", None), use_cpu=True, bf16=False,
                              **options)
    trainer = trl.SFTTrainer(model=model, args=arguments, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer,
                             formatting_func=formatting)
    return [[row["input_ids"], [int(label != -100) for label in row["labels"]]] for row in trainer.train_dataset]


def cases_of(name, tokenizer, model, folder):
    chats = [chat for chat in CHATS if SYSTEM[name] or chat[0]["role"] != "system"]
    marked = name if trl.chat_template_utils.has_generation_markers(template_of(name)) else f"{name}_training"
    messages = [{"messages": chat} for chat in chats]

    def case(what, rows, template, settings, formatting=None, records=None, format="chat", **options):
        return {"what": what, "records": records or rows, "template": template, "format": format, "settings": settings,
                "rows": prepared(tokenizer, model, rows, folder, formatting, **options)}

    yield case("answers", messages, marked, {"data.loss": "assistant"}, assistant_only_loss=True)
    whole = case("all tokens", messages, name, {"data.loss": "all"})
    yield whole
    # Without the chats that a marked copy renders otherwise than its template.
    rule = case("answers by the rule", messages, name, {"data.loss": "assistant"}, assistant_only_loss=True)
    same = [ours[0] == theirs[0] for ours, theirs in zip(whole["rows"], rule["rows"])]
    for key in ("records", "rows"):
        rule[key] = [one for one, equal in zip(rule[key], same) if equal]
    assert len(rule["rows"]) > 4, name
    yield rule
    yield case("cut", messages, marked, {"data.loss": "assistant", "data.sequence": 48}, assistant_only_loss=True, max_length=48)
    shared = [{"conversations": [{"from": m["role"], "value": m["content"]} for m in chat]} for chat in chats]
    yield case("sharegpt", shared, name, {"data.loss": "all"})  # TRL refuses assistant_only_loss for it
    lists = [{"prompt": chat[:-1], "completion": chat[-1:]} for chat in chats]
    yield case("completion", lists, name, {"data.loss": "response"}, completion_only_loss=True)
    yield case("text pairs", PAIRS, name, {"data.loss": "response"}, completion_only_loss=True)
    yield case("text pairs, all tokens", PAIRS, name, {"data.loss": "all"}, completion_only_loss=False)
    if name in ("qwen2_5", "qwen3"):
        yield case("tools", TOOL_CHATS, marked, {"data.loss": "assistant"}, assistant_only_loss=True)
    if name in ("qwen2_5", "llama3"):
        yield case("alpaca", ALPACA, name, {"data.loss": "all", "data.prompt": ALPACA_PROMPT, "data.response": "{output}"}, format="jsonl",
                   formatting=lambda row: ALPACA_PROMPT.format(**row) + row["output"])
        asked = [{"messages": turns(row["instruction"] + ("\n" + row["input"] if row["input"] else ""), row["output"])} for row in ALPACA]
        yield case("alpaca as chats", asked, marked, {"data.loss": "assistant"}, records=ALPACA, assistant_only_loss=True)


def main():
    texts = [m["content"] for chat in CHATS for m in chat] + [text for pair in PAIRS for text in pair.values()]
    out = {"made with": f"trl {trl.__version__}, datasets {datasets.__version__}, transformers {transformers.__version__}, "
                        f"tokenizers {tokenizers.__version__}", "families": {}}
    for name, (_, begin, end, _) in FAMILIES.items():
        tokens = {"eos_token": end, "pad_token": end, **({"bos_token": begin} if begin else {})}
        file = make_tokenizer(name, texts)
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=file, chat_template=template_of(name), **tokens)
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
            vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1))
        with tempfile.TemporaryDirectory() as folder:
            cases = list(cases_of(name, tokenizer, model, folder))
        out["families"][name] = {"tokenizer": file.to_str(), "tokens": tokens, "cases": cases}
    path = ROOT / "test/golden/chat/trl.json.gz"
    path.write_bytes(gzip.compress(json.dumps(out, ensure_ascii=False).encode(), 9, mtime=0))
    count = sum(len(case["rows"]) for family in out["families"].values() for case in family["cases"])
    print(f"{len(out['families'])} families, {count} samples, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
