#!/usr/bin/env python3
"""Makes the seeds that are not written by hand: tests/fuzz/make_corpus.py SHARED_DATA.

Small files of the malformed set (CC0), the tiny fixtures' configs, and texts of our own.
"""
import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent / "data"
LIMIT = 2048  # bytes; larger files only repeat the same


def put(target, name, data):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def containers(shared):
    for kind in ("gguf", "safetensors"):
        for f in sorted((shared / "malformed" / kind).glob("*.bin")):
            if f.stat().st_size <= LIMIT:
                put(kind, f.stem, f.read_bytes())


def gguf_string(s):
    return struct.pack("<Q", len(s)) + s


def gguf_value(v):
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + gguf_string(v.encode())
    if isinstance(v[0], str):
        return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(gguf_string(s.encode()) for s in v)
    return struct.pack("<IIQ", 9, 5, len(v)) + struct.pack(f"<{len(v)}i", *v)


def gguf_model():
    """Metadata of a whole model with a byte-level vocabulary."""
    keys = {
        "general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 64,
        "llama.embedding_length": 8, "llama.feed_forward_length": 12,
        "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": 6, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<s>", "</s>", "a", "b", "ab", "Ġ"],
        "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 1], "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
    }
    body = b"".join(gguf_string(k.encode()) + gguf_value(v) for k, v in keys.items())
    put("gguf", "model", b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + body)


def model_configs(shared):
    configs = sorted((shared / "configs").glob("*.json")) + sorted(DATA.glob("tiny_*/config*.json"))
    for f in configs:
        put("model_config", f"{f.parent.name}_{f.stem}",
            f.read_text() + "\n---\n" + '{"eos_token_id": [2, 3], "bos_token_id": 1}')


def lora():
    shapes = {"q_proj": (8, 16), "v_proj": (8, 8)}
    tensors, data = {}, b""
    for layer in range(2):
        for module, (fan_in, fan_out) in shapes.items():
            for side, shape in (("A", [2, fan_in]), ("B", [fan_out, 2])):
                raw = struct.pack("<f", 0.5) * (shape[0] * shape[1])
                name = f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_{side}.weight"
                tensors[name] = {"dtype": "F32", "shape": shape,
                                 "data_offsets": [len(data), len(data) + len(raw)]}
                data += raw
    header = json.dumps(tensors).encode()
    weights = struct.pack("<Q", len(header)) + header + data
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none",
              "target_modules": ["q_proj", "v_proj"]}
    variants = {
        "plain": config,
        "rslora": {**config, "use_rslora": True},
        "pattern": {**config, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 8}},
        "dora": {**config, "use_dora": True},
        "all_linear": {**config, "target_modules": "all-linear"},
        "layers": {**config, "layers_to_transform": [0, 1], "layers_pattern": "layers"},
    }
    for name, c in variants.items():
        put("lora", name, json.dumps(c).encode() + b"\n---\n" + weights)


def tokenizer():
    alphabet = [chr(c) for c in range(33, 127)]
    vocab = {c: i for i, c in enumerate(alphabet)}
    for extra in ("Ġ", "Ċ", "ab", "Ġa"):
        vocab[extra] = len(vocab)
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    base = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": len(vocab), "content": "<s>", **token},
                         {"id": len(vocab) + 1, "content": "</s>", **token}],
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b", "Ġ a"]},
    }
    split = {"type": "Split", "pattern": {"Regex": r"\p{L}+|\p{N}{1,3}|\s+"}, "behavior": "Isolated",
             "invert": False}
    template = {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [len(vocab)], "tokens": ["<s>"]}}}
    variants = {
        "plain": base,
        "pairs": {**base, "model": {**base["model"], "merges": [["a", "b"], ["Ġ", "a"]]}},
        "nfc": {**base, "normalizer": {"type": "NFC"}},
        "split": {**base, "pre_tokenizer": {"type": "Sequence",
                                            "pretokenizers": [split, {**byte_level, "use_regex": False}]}},
        "digits": {**base, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level]}},
        "template": {**base, "post_processor": template},
        "unigram": {**base, "model": {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 0}},
        "byte_fallback": {**base, "model": {**base["model"], "byte_fallback": True, "unk_token": "<s>"}},
    }
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True}
    for name, t in variants.items():
        put("tokenizer_json", name, "\n---\n".join(
            [json.dumps(t, ensure_ascii=False), json.dumps(config), "ab a <s> x1234\n"]))


def texts(shared):
    for line in (shared / "tokenizers" / "texts.jsonl").read_text().splitlines():
        row = json.loads(line)
        text = row["text"].encode()
        if len(text) <= 400:
            for kind in (b"\0", b"\1"):
                put("tokenizer_encode", f"{row['id']}{kind[0]}", kind + text)
    put("tokenizer_encode", "specials", b"\0<|im_start|>user\nhi<|im_end|>")
    put("tokenizer_encode", "not_utf8", b"\0a\xff\xf0\x9f")


def protobuf(field, value):
    """One field of a protobuf message: int, float, bytes or text."""
    def varint(n):
        out = b""
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])
    if isinstance(value, float):
        return varint(field << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(field << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def vocabularies():
    pieces = [("<unk>", 2), ("<s>", 3), ("</s>", 3)]
    pieces += [(f"<0x{b:02X}>", 6) for b in range(256)]
    pieces += [(p, 1) for p in ("\u2581a", "ab", "\u2581", "a", "b", "c", "\u00e9")]
    def model(pieces, trainer=(), normalizer=()):
        out = b"".join(protobuf(1, protobuf(1, text) + protobuf(2, -float(i)) + (protobuf(3, kind) if kind != 1 else b""))
                       for i, (text, kind) in enumerate(pieces))
        trainer = b"".join(protobuf(*f) for f in ((3, 2), (35, 1), *trainer))
        return out + protobuf(2, trainer) + protobuf(3, b"".join(protobuf(*f) for f in normalizer))
    plain = ((1, "identity"), (3, 1), (4, 0), (5, 1))
    small = pieces[:3] + pieces[-7:]
    for name, m in {
        "full": model(pieces, normalizer=plain),
        "small": model(small, ((35, 0),), plain),
        "no_prefix": model(pieces, normalizer=((1, "identity"), (3, 0), (4, 0), (5, 1))),
        "infinite": model([*small, ("x", 1)], ((35, 0),), plain).replace(struct.pack("<f", -3.0), struct.pack("<f", float("-inf"))),
        "user": model([*small, ("[INST]", 4)], ((35, 0),), plain),
        "unigram": model(small, ((3, 1),), plain),
        "charsmap": model(small, (), ((1, "nfkc"), (2, b"\0\1\2\3"))),
    }.items():
        put("sentencepiece", name, "ab a \u00e9c\n".encode() + b"\n---\n" + m)
    import base64
    ranks = [bytes([b]) for b in range(256)] + [b"ab", b" a", b" ab"]
    lines = "".join(f"{base64.b64encode(r).decode()} {i}\n" for i, r in enumerate(ranks))
    for name, text in (("full", lines), ("small", "YQ== 0\nYg== 1\nYWI= 2\n"), ("gap", "YQ== 0\nYg== 2\n"),
                       ("twice", "YQ== 0\nYQ== 1\n"), ("no_pair", "YQ== 0\nYWJj 1\n")):
        put("tiktoken", name, "ab a \u00e9c\n---\n" + text)


def chats():
    call = {"id": "abcdefghi", "name": "f", "arguments": '{"x": 1}'}
    tool = {"type": "function", "function": {"name": "f", "description": "d",
                                             "parameters": {"type": "object", "properties": {}}}}
    plain = {"messages": [{"role": "system", "content": "Be <|im_end|> [INST] kind."},
                          {"role": "user", "content": "Hi </s>"},
                          {"role": "assistant", "content": " there ", "reasoning": "hm"},
                          {"role": "user", "content": "Bye"}], "generation": "1"}
    tools = {"messages": [{"role": "user", "content": "Do f"},
                          {"role": "assistant", "content": "", "tool_calls": [call]},
                          {"role": "tool", "content": "42", "tool_call_id": "abcdefghi"},
                          {"role": "user", "content": "So?"}], "tools": [tool], "generation": "1"}
    for name in ("chatml", "smollm2", "qwen2", "qwen2.5", "qwen2.5-base", "qwen3", "qwen3-2507", "llama3",
                 "llama3.1", "mistral-v0.1", "mistral-v0.2", "mistral-v1", "mistral-v3"):
        put("chat_template", name, f"{name}\n---\n{json.dumps(plain)}")
        if name in ("qwen2.5", "qwen3", "llama3.1", "mistral-v3"):
            put("chat_template", name + "-tools", f"{name}\n---\n{json.dumps(tools)}")
    put("chat_template", "thinking", "qwen3\n---\n" + json.dumps(
        {**plain, "thinking": "", "date": "1 Jan 2026", "messages": plain["messages"][1:2]}))


def stops():
    for name, stop, text in (
            ("simple", ["END"], "some text END more"), ("overlap", ["aab", "ab", "b"], "aaaaab"),
            ("nested", ["abcd", "bc"], "xabcx abcd"), ("none", [], "text"),
            ("partial", ["\u00e9\u00e9"], "\u00e9 \u00e9"), ("prefixes", ["a", "aa", "aaa"], "baaa")):
        put("stop_matcher", name, "\n".join(stop) + "\n---\n" + text)


def wire():
    # Offsets: docs/wire_format.md. The MAC is wrong; the target signs what it could read.
    def frame(kind, chunks, payload, version=1, total=2, end=4):
        return (b"0123456789abcdef" +
                struct.pack("<4sHHQIIIIIIIIQQ16x", b"BTNF", version, kind, 7, 1, 0, 0, end, 0, total,
                            len(chunks), 0, len(payload), 0) +
                b"".join(struct.pack("<IIQQ", *c) for c in chunks) + payload)

    rows = [(0, 1, 0, 8), (0, 2, 8, 8)]
    put("wire_frame", "raw", frame(1, rows, bytes(16)))
    put("wire_frame", "error", frame(2, [(0, 3, 0, 4)], b"oops", end=0))
    put("wire_frame", "error_plain", frame(2, [], b"", end=0))
    put("wire_frame", "version", frame(1, rows, bytes(16), version=2))
    put("wire_frame", "gap", frame(1, [(0, 1, 0, 8), (0, 2, 9, 7)], bytes(16)))
    put("wire_frame", "codes", frame(4, [(0, 4, 0, 8)], bytes(8), end=64))
    put("wire_frame", "stream", frame(5, [(0, 5, 0, 96)], bytes(96), end=16))
    put("wire_frame", "zeros", b"0123456789abcdef" + bytes(80))


def codecs():
    layers, hidden, kv = 2, 4, 2

    def file(meta=(), skip=(), mlp_of=(), native=()):
        meta = {"format": "baton-codec", "format_version": "1", "producer_weights": "p", "consumer_weights": "c",
                "tokenizer": "t", "source": "h", "layers": str(layers), "hidden": str(hidden), "kv_heads": "1",
                "head_dim": str(kv), "report": "{}", **dict(meta)}
        header, data = {"__metadata__": meta}, b""
        for layer in range(layers):
            if layer in native:
                continue
            levels = [-1.0, 1.0, -3.0, -1.0, 1.0, 3.0]
            fields = {"bits": ("U8", [2], bytes([1, 2])), "mean": ("F32", [hidden], [0.1] * hidden),
                      "encoder": ("F32", [2, hidden], [0.5] * 2 * hidden), "levels": ("F32", [6], levels),
                      "importance": ("F32", [2], [2.0, 1.0]), "offset": ("F32", [2 * kv], [0.0] * 2 * kv),
                      "decoder": ("F32", [2 * kv, 2], [0.25] * 4 * kv)}
            if layer in mlp_of:
                fields |= {"mlp_in": ("F32", [4, 2], [0.5] * 8), "mlp_out": ("F32", [hidden, 4], [0.25] * 4 * hidden)}
            for name, (dtype, shape, values) in fields.items():
                if name in skip:
                    continue
                part = values if isinstance(values, bytes) else struct.pack(f"<{len(values)}f", *values)
                header[f"layers.{layer}.{name}"] = {"dtype": dtype, "shape": shape,
                                                    "data_offsets": [len(data), len(data) + len(part)]}
                data += part
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    for name, bytes_ in {"good": file(), "kv": file({"source": "kv", "hidden": "9"}), "version": file({"format_version": "9"}),
                         "no_bits": file(skip=("bits",)), "huge": file({"layers": "99999999999"}),
                         "patch": file({"format_version": "2", "patch_layers": "0,1"}, mlp_of=(1,)),
                         "no_patch": file({"format_version": "2", "patch_layers": "1,x"}, mlp_of=(0,)),
                         "run": file({"format_version": "3", "run_layers": "0-1"}, native=(1,)),
                         "patch_run": file({"format_version": "3", "patch_layers": "0", "run_layers": "1-1"}, mlp_of=(0,)),
                         "no_run": file({"format_version": "3", "run_layers": "1-0"})}.items():
        put("codec", name, bytes_)


def yaml():
    for name, text in {
        "full": "name: n1\ntoken: x\nport: 7001\npeers: [a, \"b c\"]\nengine:\n  max_batch: 8\n  patience: 1.5s\n"
                "  share: 0.5\n  learning_rate: 1e-4\n  pool_bytes: 1MiB\n  cache_bytes: auto\n  threads: 4\n"
                "  chunked: no\n  policy: priority\nmodels:\n  - {name: a, path: /x}\n  - name: b\n    path: |\n      /y\n",
        "quotes": "name: 'it''s'\npeers:\n- \"\\u00e9\\n\"\n- '# no comment'\n- null\n",
        "anchor": "a: &x 1\nb: *x\n", "tag": "port: !!int \"7\"\n", "duplicate": "port: 1\nport: 2\n",
        "empty": "", "flow": "{engine: {policy: fcfs, threads: null}, models: []}\n",
        "env": "token: ${HOME}\nmodels: [{name: a, path: \"${X:-y}\"}]\n",
        "numbers": "port: 0x1F\nengine: {max_batch: 1_000, share: .5, learning_rate: 1e-400}\n",
        "escapes": "name: \"\\u0085\\x41\"\npeers: [\"\\N\", \"\\_\", \"\\L\"]\n", "two": "--- \nname: a\n---\nname: b\n", "bom": "\ufeffname: a\n",
    }.items():
        put("yaml_config", name, text)


def openai():
    chat = {"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]}
    bodies = {
        "chat": (0, chat),
        "chat_parts": (0, {**chat, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
        "chat_all": (0, {**chat, "stream": True, "stream_options": {"include_usage": True}, "n": 2, "seed": 1,
                         "max_tokens": 5, "max_completion_tokens": 5, "temperature": 0.5, "top_p": 0.9,
                         "stop": ["a", "b"], "logprobs": True, "top_logprobs": 3, "logit_bias": {"5": -100},
                         "presence_penalty": 0.1, "frequency_penalty": 0.1, "user": "u",
                         "response_format": {"type": "text"}}),
        "chat_tools": (0, {**chat, "tools": [{"type": "function", "function": {"name": "f"}}]}),
        "completion": (1, {"model": "m", "prompt": "once", "max_tokens": 3, "echo": True, "logprobs": 2}),
        "completion_many": (1, {"model": "m", "prompt": ["a", "b"], "best_of": 1, "suffix": None}),
        "completion_ids": (1, {"model": "m", "prompt": [[1, 2], [3]], "stop": "x"}),
        "empty": (0, {}),
    }
    for name, (kind, body) in bodies.items():
        put("openai_request", name, bytes([kind]) + json.dumps(body).encode())
    put("openai_request", "deep", b"\0" + b'{"a":' * 70 + b"1" + b"}" * 70)
    put("openai_request", "not_utf8", b'\0{"model":"\xff"}')


def http():
    for name, text in {
        "get": "GET /a?x=1 HTTP/1.1\r\nhost: x\r\n\r\n",
        "post": "POST /v1 HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
        "stream": "POST /stream HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc",
        "chunked": "POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "pipelined": "GET /a HTTP/1.1\r\nhost: x\r\n\r\nHEAD /b HTTP/1.1\r\nhost: x\r\n\r\n",
        "old": "GET / HTTP/1.0\r\n\r\n",
        "expect": "POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\nx",
        "two_lengths": "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxy",
        "smuggle": "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "id": "GET / HTTP/1.1\r\nhost: x\r\nx-request-id: abc-1\r\n\r\n", "cut": "POST / HT", "upgrade":
        "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    }.items():
        put("http_server", name, text)


def main():
    shared = pathlib.Path(sys.argv[1])
    containers(shared)
    gguf_model()
    model_configs(shared)
    lora()
    tokenizer()
    texts(shared)
    vocabularies()
    chats()
    stops()
    wire()
    codecs()
    yaml()
    openai()
    http()


if __name__ == "__main__":
    main()
