#!/usr/bin/env python3
"""Writes huggingface.json and sentencepiece.json beside this file.

Small tokenizers of many shapes, and the ids that Hugging Face `tokenizers` (0.23.3) and SentencePiece
(0.2.1) give for random texts.

    pip install tokenizers==0.23.3 sentencepiece==0.2.1
    python make_fixtures.py
"""
import base64
import io
import json
import os
import random

import sentencepiece
import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
SPACE = "\u2581"
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    "the cat sat on the mat and the other cat ate the hat",
    "this is a small text about nothing at all, it's only here to make some merges",
    "there isn't much to say: 10 words, 200 words, 3000 words; that's it!",
    "der kleine Bär läuft über die Brücke, ça va très bien où es-tu",
    "привет мир, мир привет; привет привет",
    "    indented code = value(1, 2)\n    return code == value\n",
    "aaaa aaaaaaaa aaa aa bbbb abab ababab",
]
WORDS = [
    "the", "cat", "hat", "sat", "that", "This", "is", "it's", "IT'S", "we'll", "nothing", "abab",
    "aaaa", "aaaaaaa", "x", "xx", "xxyx", "10", "2000", "3", "a1b2", "\u0662\u0663", "\u00bd",
    "B\u00e4r", "Ba\u0308r", "\u00e7a", "c\u0327a", "\u043c\u0438\u0440", "\u4e16\u754c", "\ufb01",
    "\u2460", "\U0001f60a", "\u200d", "\u00a0", "\u3000", "\u180e", "\u00df", ",", ".", "!?", "--",
    "$5", "a+b", "<x>", "_", "`", SPACE, "\n", "\n\n", "\r\n", "\t", " ", "  ", "    ", "", "",
    "<|a|>", "<s>", "</s>", "<unk>", "<0x41>", "[TOOL]", "tok", "word", "[L]", "[R]", "[LR]", "-",
    "NoRm", "cafe\u0301", "caf\u00e9", "\ufffd",
]


def texts(seed, count):
    rng = random.Random(seed)
    made = ["", " ", "the cat", " the cat", "the  cat ", "<s>the cat</s>", "<s> the cat"]
    while len(made) < count:
        glue = rng.choice(["", "", " ", " ", "  "])
        made.append(glue.join(rng.choice(WORDS) for _ in range(rng.randint(1, 9))))
    return made


def byte_base():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=380,
            special_tokens=["<s>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.decoder = decoders.ByteLevel()
    return json.loads(tokenizer.to_str())


def char_base():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=430,
            special_tokens=["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)],
            max_token_length=8,
            show_progress=False,
        ),
    )
    base = json.loads(tokenizer.to_str())
    # Bytes are tokens of the vocabulary, not added ones.
    base["added_tokens"] = [t for t in base["added_tokens"] if not t["content"].startswith("<0x")]
    base["decoder"] = sequence(
        "decoders",
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    )
    return base


def sequence(kind, *steps):
    return {"type": "Sequence", kind: list(steps)}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
BYTES_REGEX = dict(BYTES, use_regex=True)


def split(pattern, behavior, invert=False):
    kind = "Regex" if pattern.startswith("(") else "String"
    return {
        "type": "Split",
        "pattern": {kind: pattern},
        "behavior": behavior,
        "invert": invert,
    }


def before_bytes(*steps):
    return {"pre_tokenizer": sequence("pretokenizers", *steps, BYTES)}


def added(first_id, normalized=False):
    """Added tokens of every kind; `normalized` for those that aren't special."""
    rows = [
        ("<|a|>", dict(special=True)),
        ("[TOOL]", dict()),
        ("tok", dict(single_word=True)),
        ("[L]", dict(lstrip=True)),
        ("[R]", dict(rstrip=True, special=True)),
        ("[LR]", dict(lstrip=True, rstrip=True)),
        ("NoRm", dict(normalized=True)),
        ("caf\u00e9", dict(normalized=True)),
        ("[L][R]", dict(special=True, normalized=True)),
    ]
    tokens = [
        {"id": 0, "content": "<s>", "special": True},
        {"id": 1, "content": "</s>", "special": True},
    ]
    tokens += [dict(flags, id=first_id + i, content=text) for i, (text, flags) in enumerate(rows)]
    for token in tokens:
        token.setdefault("special", False)
        token.setdefault("normalized", normalized and not token["special"])
        for flag in ("single_word", "lstrip", "rstrip"):
            token.setdefault(flag, False)
    return tokens


def variants(byte, char):
    behaviors = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    yield "byte_plain", "byte", {"pre_tokenizer": BYTES_REGEX}
    yield "byte_no_regex", "byte", {"pre_tokenizer": BYTES}
    yield "byte_prefix", "byte", {"pre_tokenizer": dict(BYTES_REGEX, add_prefix_space=True)}
    yield "byte_ignore_merges", "byte", {"model": {"ignore_merges": True}}
    yield "byte_qwen", "byte", dict(
        before_bytes(split("(" + QWEN + ")", "Isolated")), normalizer={"type": "NFC"}
    )
    for behavior in behaviors:
        yield "split_space_" + behavior, "byte", before_bytes(split(" ", behavior))
        yield "split_runs_" + behavior, "byte", before_bytes(split(r"(\s+|[aeiou])", behavior))
        yield "split_not_" + behavior, "byte", before_bytes(split("(x|[a-z]+)", behavior, True))
        yield "punctuation_" + behavior, "byte", before_bytes(
            {"type": "Punctuation", "behavior": behavior}
        )
    yield "split_empty_matches", "byte", before_bytes(split("(x*)", "Isolated"))
    yield "split_chained", "byte", before_bytes(
        {"type": "Digits", "individual_digits": True},
        split(r"(\p{L}+)", "MergedWithNext"),
        split("a+b", "Isolated"),
    )
    yield "digits_runs", "byte", before_bytes({"type": "Digits", "individual_digits": False})
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield "form_" + form, "byte", {"normalizer": {"type": form}}
    yield "added", "byte", {"added_tokens": added(len(byte["model"]["vocab"]))}
    yield "added_normalized", "byte", {
        "normalizer": sequence(
            "normalizers",
            {"type": "NFC"},
            {"type": "Replace", "pattern": {"Regex": "[-_]+"}, "content": "~"},
        ),
        "added_tokens": added(len(byte["model"]["vocab"]), True),
    }
    yield "added_prefix", "byte", {
        "pre_tokenizer": dict(BYTES_REGEX, add_prefix_space=True),
        "added_tokens": added(len(byte["model"]["vocab"])),
    }
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = sequence("normalizers", {"type": "Prepend", "prepend": SPACE}, replace)
    metaspace = {"type": "Metaspace", "replacement": SPACE, "split": False}
    yield "char_prepend", "char", {"normalizer": prepend, "pre_tokenizer": None}
    for scheme in ("first", "always", "never"):
        for cut in (False, True):
            step = dict(metaspace, prepend_scheme=scheme, split=cut)
            yield "char_%s_%d" % (scheme, cut), "char", {"pre_tokenizer": step}
    yield "char_first_after_split", "char", {
        "pre_tokenizer": sequence(
            "pretokenizers", split("a", "Removed"), dict(metaspace, prepend_scheme="first")
        )
    }
    yield "char_gemma", "char", {
        "normalizer": replace,
        "pre_tokenizer": split(" ", "MergedWithPrevious"),
        "decoder": sequence("decoders", *char["decoder"]["decoders"][:3]),
    }
    yield "char_unk", "char", {"model": {"byte_fallback": False}}
    yield "char_unk_each", "char", {"model": {"byte_fallback": False, "fuse_unk": False}}
    yield "char_drop", "char", {"model": {"byte_fallback": False, "unk_token": None}}
    yield "char_ignore_merges", "char", {"model": {"ignore_merges": True}}
    tokens = [dict(t, id=t["id"] + 1) for t in added(len(char["model"]["vocab"]) - 1)]
    yield "char_added", "char", {
        "pre_tokenizer": dict(metaspace, prepend_scheme="first"),
        "added_tokens": tokens,
    }
    yield "char_added_prepend", "char", {
        "normalizer": prepend,
        "pre_tokenizer": None,
        "added_tokens": tokens,
    }


def merge_patch(target, patch):
    """RFC 7386, but a null at the top stays: it means "none" in a tokenizer.json."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        nested = key == "model"
        result[key] = merge_patch(result.get(key), value) if nested else value
    return result


def huggingface():
    assert tokenizers.__version__ == "0.23.3", tokenizers.__version__
    bases = {"byte": byte_base(), "char": char_base()}
    rows = []
    for number, (name, base, patch) in enumerate(variants(**bases)):
        tokenizer = Tokenizer.from_str(json.dumps(merge_patch(bases[base], patch)))
        cases = []
        for text in texts(number, 36):
            tokenizer.encode_special_tokens = False
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            tokenizer.encode_special_tokens = True
            plain = tokenizer.encode(text, add_special_tokens=False).ids
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            cases.append([text, ids, plain, decoded])
        rows.append({"name": name, "base": base, "patch": patch, "cases": cases})
    return {"bases": bases, "variants": rows}


def sentence_pieces():
    kinds = {
        "bytes": dict(byte_fallback=True),
        "bytes_no_prefix": dict(byte_fallback=True, add_dummy_prefix=False),
        "bytes_collapse": dict(byte_fallback=True, remove_extra_whitespaces=True),
        "unknown": dict(byte_fallback=False),
        "whitespace_pieces": dict(
            byte_fallback=True, allow_whitespace_only_pieces=True, split_by_whitespace=False
        ),
    }
    rows = []
    for number, (name, options) in enumerate(kinds.items()):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS),
            model_writer=model,
            model_type="bpe",
            vocab_size=430 if options["byte_fallback"] else 160,
            normalization_rule_name="identity",
            control_symbols=["<|a|>"],
            user_defined_symbols=["[TOOL]", "tok", "tokword"],
            minloglevel=2,
            **{"remove_extra_whitespaces": False, **options},
        )
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        cases = []
        for text in texts(100 + number, 60):
            ids = processor.encode(text)
            cases.append([text, ids, processor.decode(ids)])
        rows.append(
            {
                "name": name,
                "model": base64.b64encode(model.getvalue()).decode(),
                "pieces": [
                    [processor.id_to_piece(i), processor.get_score(i)]
                    for i in range(processor.get_piece_size())
                ],
                "cases": cases,
            }
        )
    return rows


def write(name, value):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as out:
        json.dump(value, out, ensure_ascii=False, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    write("huggingface.json", huggingface())
    write("sentencepiece.json", sentence_pieces())
