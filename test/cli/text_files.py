"""Small tokenizers and data sets of text in their true formats, and what dstrain has made of them; leaves with 77 where `tokenizers`
or numpy is not installed."""
import json
import pathlib
import struct

try:
    import numpy as np
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

SAMPLE = np.dtype([("end", "<u8"), ("group", "<u8"), ("response", "<u4"), ("record", "<u4")])


def write_tokenizer(folder, texts, qwen):
    """A byte-level BPE tokenizer as the model family's own is built, of few tokens."""
    tokenizer = Tokenizer(models.BPE())
    if qwen:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] if qwen else ["<unk>", "<s>", "</s>", "<pad>"]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False,
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    end = "<|endoftext|>" if qwen else "</s>"
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": end if qwen else "<pad>"}))


def write_metamathqa(path, count):
    path.write_text(json.dumps([{"query": f"What is {a} plus {a % 7}?", "response": f"{a} + {a % 7} = {a + a % 7}\nThe answer is: {a + a % 7}",
                                 "type": "GSM_Rephrased", "original_question": f"{a} + {a % 7}?"} for a in range(count)]))


def read_cache(path):
    """[(tokens, first token of the response, group)] of a cache file."""
    content = pathlib.Path(path).read_bytes()
    header = struct.Struct("<8s32s7Q")
    magic, _, width, samples, tokens, *_ = header.unpack_from(content)
    assert magic == b"dstrtok2", magic
    ids = np.frombuffer(content, dtype=f"<u{width}", count=tokens, offset=header.size)
    index = np.frombuffer(content, dtype=SAMPLE, count=samples, offset=header.size + (tokens * width + 7) // 8 * 8)
    begins = [0, *index["end"][:-1].tolist()]
    return [(ids[b:s["end"]].tolist(), int(s["response"]), int(s["group"])) for b, s in zip(begins, index)]
