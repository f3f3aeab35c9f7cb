"""Tokenizers made of the parts that published families have, trained on samples, for tokenizer_equality.py."""

import json

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPACE = "\u2581"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>"]


def sentence_piece(texts, vocab_size, normalizer=None, pre_tokenizer=None, strip=True, fuse=True):
    """Characters as symbols, bytes of those that are no token: Llama 2, Mistral, Phi-3, Gemma."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=fuse, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    # Words of spaces and letters, so that tokens begin with the space; the file is used without.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIAL + BYTES, limit_alphabet=400, show_progress=False))
    file = json.loads(tokenizer.to_str())
    file["added_tokens"] = [token for token in file["added_tokens"] if token["content"] in SPECIAL]
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    return tokenizer


def prepending():
    return normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])


def gemma(texts):
    """Runs of newlines, of the visible space and some of HTML are tokens by themselves; a text opens with the first special one."""
    plain = sentence_piece(texts, 3000, normalizers.Replace(" ", SPACE), pre_tokenizers.Split(" ", "merged_with_previous"), strip=False)
    turns = with_tokens(plain, ["<start_of_turn>", "<end_of_turn>"])
    runs = [symbol * count for symbol in ("\n", SPACE, "\t") for count in (2, 3, 4, 8)]
    tokenizer = with_tokens(turns, runs + ["<h1>", "</table>", "<unused0>"], special=False)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{SPECIAL[1]} $A", special_tokens=[(SPECIAL[1], 1)])
    return tokenizer


def with_tokens(tokenizer, tokens, **options):
    """Phi-3's are special and take the space behind them; `</s>` does so without being found in a normalised text."""
    file = json.loads(tokenizer.to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    at = len(file["model"]["vocab"])
    file["added_tokens"] += [flags | options | {"id": at + i, "content": token} for i, token in enumerate(tokens)]
    return Tokenizer.from_str(json.dumps(file))


def byte_level(texts, vocab_size, pre_tokenizer, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre_tokenizer, decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                             special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False))
    return tokenizer


def families(texts):
    """Name and tokenizer of each family; the parts are those of its published tokenizer.json."""
    bytes_of = lambda use_regex: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CL100K), "isolated"), bytes_of(False)])
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_of(True)])
    phi3 = with_tokens(sentence_piece(texts, 3000, prepending()), ["<|user|>", "<|assistant|>", "<|end|>"], rstrip=True)
    return {
        "Llama 2, Mistral 7B v0.1, Mixtral": sentence_piece(texts, 3000, prepending()),
        "Mistral v0.3": sentence_piece(texts, 3000, pre_tokenizer=pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)),
        "Phi-3.5-mini": phi3,
        "Phi-3.5-mini with normalised tokens": with_tokens(phi3, ["<|x|>", "w\u00f6rd", " n"], normalized=True, special=False),
        "Gemma": gemma(texts),
        "SmolLM2": byte_level(texts, 3000, digits),
        "Phi-4, OLMo 2": byte_level(texts, 3000, split),
        "GPT-2": byte_level(texts, 3000, bytes_of(True)),
        "Pythia": byte_level(texts, 3000, bytes_of(True), normalizers.NFC()),
        "Metaspace that splits": metaspace(texts, "always"),
        "Metaspace that prepends nothing": metaspace(texts, "never"),
        "Metaspace of the first part": metaspace(texts, "first"),
        "digits together": byte_level(texts, 3000, pre_tokenizers.Sequence([pre_tokenizers.Digits(), bytes_of(False)])),
        "unknown characters": unknown_characters(texts, fuse=False),
        "unknown characters, fused": unknown_characters(texts, fuse=True),
    }


def metaspace(texts, scheme):
    """Strip takes nothing off the end: there `tokenizers` 0.23 ends itself on a short text."""
    tokenizer = sentence_piece(texts, 3000, pre_tokenizer=pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme))
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(SPACE, prepend_scheme=scheme), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip("e", 2, 0)])
    return tokenizer


def unknown_characters(texts, fuse):
    """Some bytes are no token either."""
    file = json.loads(sentence_piece(texts, 3000, prepending(), fuse=fuse).to_str())
    for byte in (*range(0xc3, 0xe4), 0xf0, 0x0a):
        del file["model"]["vocab"][f"<0x{byte:02X}>"]
    return Tokenizer.from_str(json.dumps(file))
