"""Real daemons in real processes, driven by real clients.

Every scenario makes a Cluster in a temporary folder, starts nodes with generated configuration
files on ports the system picks, and waits for conditions with deadlines (never for a fixed time).
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import grpc
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["BATON_BIN_DIR"])
sys.path.insert(0, os.environ["BATON_PY_STUBS"])
import common_pb2  # noqa: E402,F401
import decode_pb2  # noqa: E402,F401
import decode_pb2_grpc  # noqa: E402,F401
import prefill_pb2  # noqa: E402,F401
import prefill_pb2_grpc  # noqa: E402,F401
import router_pb2  # noqa: E402
import router_pb2_grpc  # noqa: E402

REAL_MODEL = os.environ.get("BATON_SMOLLM2_GGUF", "")


def wait_for(condition, seconds, what):
    """Polls until `condition()` is true; its last value is returned."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


def check(condition, message):
    if not condition:
        raise AssertionError(message)


class Node:
    """One daemon process."""

    def __init__(self, cluster, role, name, config, prefix=(), env=None):
        self.cluster, self.role, self.name = cluster, role, name
        self.config_path = cluster.dir / f"{name}.yaml"
        self.ports_path = cluster.dir / f"{name}.ports.json"
        self.log_path = cluster.dir / f"{name}.log"
        self.prefix, self.env = list(prefix), dict(env or {})
        self.config = config
        self.process = None

    def start(self, wait=True):
        self.config_path.write_text(json.dumps(self.config, indent=1) + "\n")
        self.ports_path.unlink(missing_ok=True)
        log = open(self.log_path, "ab")
        self.process = subprocess.Popen(
            [*self.prefix, str(BIN / f"baton-{self.role}"), "--config", str(self.config_path),
             "--ports-file", str(self.ports_path)],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **self.env})
        log.close()
        if wait:
            self.wait_ports()
        return self

    def wait_ports(self, seconds=90):
        def ports():
            if self.process.poll() is not None:
                raise AssertionError(f"{self.name} exited with {self.process.returncode}:\n{self.log()[-3000:]}")
            with contextlib.suppress(OSError, ValueError):
                return json.loads(self.ports_path.read_text())
            return None
        self.ports = wait_for(ports, seconds, f"{self.name} to write its ports")
        return self.ports

    def pin_ports(self):
        """The next start uses the ports of this one."""
        self.config.setdefault("rpc", {})["port"] = self.ports["grpc"]
        self.config.setdefault("http", {})["port"] = self.ports["http"]

    @property
    def host(self):
        return self.config.get("rpc", {}).get("bind", "127.0.0.1")

    @property
    def address(self):
        return f"{self.host}:{self.ports['grpc']}"

    def http(self, path, seconds=10):
        host = self.config.get("http", {}).get("bind", "127.0.0.1")
        with urllib.request.urlopen(f"http://{host}:{self.ports['http']}{path}", timeout=seconds) as r:
            return r.read().decode()

    def metric(self, name, **labels):
        """Sum over the samples of `name` whose labels include `labels`; 0 when there is none."""
        total = 0.0
        for line in self.http("/metrics").splitlines():
            m = re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line)
            if not m or m.group(1) != name:
                continue
            have = dict(re.findall(r'(\w+)="([^"]*)"', m.group(2) or ""))
            if all(have.get(k) == v for k, v in labels.items()):
                total += float(m.group(3))
        return total

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)

    def stop(self, seconds=30):
        """SIGTERM; returns the exit code."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
                raise AssertionError(f"{self.name} did not stop within {seconds} s of SIGTERM")
        return self.process.returncode if self.process else None


class Cluster:
    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-e2e-"))
        os.chmod(self.dir, 0o755)
        self.nodes = []
        self.failed = False

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.failed = kind is not None
        codes = {}
        for node in reversed(self.nodes):
            with contextlib.suppress(Exception):
                codes[node.name] = node.stop()
        if self.failed:
            for node in self.nodes:
                print(f"----- {node.name} (exit {codes.get(node.name)}) -----\n{node.log()[-4000:]}", file=sys.stderr)
        shutil.rmtree(self.dir, ignore_errors=True)
        return False

    def node(self, role, name, config, **kw):
        config.setdefault("node", {}).setdefault("name", name)
        node = Node(self, role, name, config, **kw)
        self.nodes.append(node)
        return node

    def prefill(self, models, name="prefill", **extra):
        config = {k: extra.pop(k) for k in list(extra) if k not in ("prefix", "env")}
        return self.node("prefill", name, {"models": models, **config}, **extra)

    def decode(self, models, name="decode", **extra):
        config = {k: extra.pop(k) for k in list(extra) if k not in ("prefix", "env")}
        return self.node("decode", name, {"models": models, **config}, **extra)

    def router(self, decode, prefill, name="router", **extra):
        config = {k: extra.pop(k) for k in list(extra) if k not in ("prefix", "env")}
        nodes = {"decode": [n if isinstance(n, str) else n.address for n in decode],
                 "prefill": [n if isinstance(n, str) else n.address for n in prefill]}
        return self.node("router", name, {"nodes": nodes, **config}, **extra)

    def spine(self, models, decode_models=None, decode_extra=None, prefill_extra=None, router_extra=None):
        """prefill + decode + router, started and ready."""
        p = self.prefill(models, **(prefill_extra or {})).start()
        d = self.decode(decode_models or models, **(decode_extra or {})).start()
        r = self.router([d], [p], **(router_extra or {})).start()
        client = Client(r)
        client.wait_ready()
        return p, d, r, client


class Result:
    def __init__(self):
        self.text, self.ids, self.finished, self.error, self.code = "", [], None, None, None


class Client:
    """The public gRPC API of a router."""

    def __init__(self, router):
        self.router = router
        self.channel = grpc.insecure_channel(router.address, options=[("grpc.max_receive_message_length", 64 << 20)])
        self.stub = router_pb2_grpc.InferenceStub(self.channel)

    def wait_ready(self, seconds=60, models=1):
        def ready():
            with contextlib.suppress(grpc.RpcError):
                listed = self.stub.ListModels(router_pb2.ListModelsRequest(), timeout=5).models
                return sum(m.ready for m in listed) >= models
            return False
        wait_for(ready, seconds, "the router to see a ready model")

    def request(self, prompt, model="", strategy="", max_tokens=16, temperature=0.0, shared=None, ignore_eos=True, **kw):
        r = router_pb2.GenerateRequest(model=model, strategy=strategy, want_timing=True)
        if isinstance(prompt, str):
            r.text = prompt
        elif prompt and isinstance(prompt[0], dict):
            for m in prompt:
                r.chat.messages.add(role=m["role"], content=m["content"])
        else:
            r.tokens.ids.extend(prompt)
        r.sampling.temperature = temperature
        for k, v in kw.items():
            setattr(r.sampling, k, v)
        r.stop.max_tokens = max_tokens
        r.stop.ignore_eos = ignore_eos
        if shared is not None:
            r.shared_prefix_tokens = shared
        return r

    def generate(self, prompt, timeout=120, **kw):
        """Runs to the end; raises grpc.RpcError when the server says no."""
        out = Result()
        for event in self.stub.Generate(self.request(prompt, **kw), timeout=timeout):
            if event.HasField("finished"):
                out.finished = event.finished
            else:
                out.text += event.delta.text
                out.ids.extend(event.delta.token_ids)
        check(out.finished is not None, "the stream ended without a Finished event")
        return out

    def try_generate(self, prompt, **kw):
        """Like generate, but an error becomes result.error and result.code."""
        try:
            return self.generate(prompt, **kw)
        except grpc.RpcError as e:
            out = Result()
            out.error, out.code = e.details(), e.code()
            return out

    def generate_many(self, prompts, **kw):
        """All at once, one thread each; results in order."""
        results = [None] * len(prompts)

        def run(i):
            results[i] = self.try_generate(prompts[i], **kw)
        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return results


def pages_in_use(node):
    return node.metric("baton_kv_pages", state="held") + node.metric("baton_kv_pages", state="reserved")


def wait_all_free(nodes, seconds=20):
    """Every page, landing byte and transfer of these nodes is given back (prefix caches must be off)."""
    for n in nodes:
        wait_for(lambda n=n: pages_in_use(n) == 0, seconds, f"{n.name} to hold no pages (holds {pages_in_use(n)})")
        running = n.metric("baton_num_requests_running") + n.metric("baton_num_requests_waiting")
        check(running == 0, f"{n.name}: {running} requests still there")


def strict_metrics(text):
    """Parses a scrape as Prometheus' own client does; histograms must be possible ones. Returns {family: samples}."""
    from prometheus_client.parser import text_string_to_metric_families
    out = {}
    for family in text_string_to_metric_families(text):
        check(family.name not in out, f"{family.name} twice in one scrape")
        out[family.name] = family.samples
        if family.type not in ("histogram", "counter"):
            continue
        buckets, counts = {}, {}
        for s in family.samples:
            check(s.value >= 0 and s.value == s.value, f"impossible value: {s}")
            labels = dict(s.labels)
            bound = labels.pop("le", None)
            key = tuple(sorted(labels.items()))
            if s.name.endswith("_bucket"):
                buckets.setdefault(key, []).append((float(bound), s.value))
            elif s.name.endswith("_count"):
                counts[key] = s.value
        for key, series in buckets.items():
            check(series == sorted(series), f"{family.name}{key}: bounds out of order")
            values = [v for _, v in series]
            check(values == sorted(values), f"{family.name}{key}: a decreasing bucket: {series}")
            check(series[-1] == (float("inf"), counts[key]), f"{family.name}{key}: count and last bucket differ")
    check(out, "an empty scrape")
    return out


# --- models -----------------------------------------------------------------------------------

def byte_alphabet():
    """GPT-2's byte <-> printable character table."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {b: chr(b) for b in printable}, 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + extra)
            extra += 1
    return table


def write_tiny_model(path, seed=0, layers=3, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=128, max_context=4096,
                     vocab_extra=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), scale=0.08):
    """A random Llama with a byte-level vocabulary, as a Hugging Face folder."""
    from safetensors.numpy import save_file
    path = pathlib.Path(path)
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    vocab = 256 + len(vocab_extra)

    def w(*shape):
        return (rng.standard_normal(shape) * scale).astype(np.float32)
    t = {"model.embed_tokens.weight": w(vocab, hidden) * 8, "model.norm.weight": 1 + w(hidden), "lm_head.weight": w(vocab, hidden) * 2}
    for i in range(layers):
        p = f"model.layers.{i}."
        t[p + "input_layernorm.weight"] = 1 + w(hidden)
        t[p + "post_attention_layernorm.weight"] = 1 + w(hidden)
        t[p + "self_attn.q_proj.weight"] = w(heads * head_dim, hidden) * 3
        t[p + "self_attn.k_proj.weight"] = w(kv_heads * head_dim, hidden) * 3
        t[p + "self_attn.v_proj.weight"] = w(kv_heads * head_dim, hidden) * 2
        t[p + "self_attn.o_proj.weight"] = w(hidden, heads * head_dim) * 2
        t[p + "mlp.gate_proj.weight"] = w(ffn, hidden) * 2
        t[p + "mlp.up_proj.weight"] = w(ffn, hidden) * 2
        t[p + "mlp.down_proj.weight"] = w(hidden, ffn) * 2
    save_file(t, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
        "vocab_size": vocab, "max_position_embeddings": max_context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "hidden_act": "silu", "bos_token_id": 256, "eos_token_id": 258, "torch_dtype": "float32"}))
    table = byte_alphabet()
    added = [{"id": 256 + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, s in enumerate(vocab_extra)]
    (path / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {**{table[b]: b for b in range(256)}, **{s: 256 + i for i, s in enumerate(vocab_extra)}},
                  "merges": []}}))
    template = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
                "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
    (path / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "chat_template": template, "add_bos_token": False}))
    return str(path)


def write_tiny_gguf(path, folder, templates):
    """The model of write_tiny_model's `folder` as one GGUF. `templates`: text by name; "" is the nameless one."""
    import struct
    from safetensors.numpy import load_file
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    tokenizer = json.loads((pathlib.Path(folder) / "tokenizer.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    added = len(tokenizer["added_tokens"])

    def text(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()

    def string(s):
        return struct.pack("<I", 8) + text(s)

    def u32(v):
        return struct.pack("<II", 4, v)

    def f32(v):
        return struct.pack("<If", 6, v)

    def array(kind, items):
        return struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)
    meta = {"general.architecture": string("llama"),
            "llama.block_count": u32(config["num_hidden_layers"]), "llama.context_length": u32(config["max_position_embeddings"]),
            "llama.embedding_length": u32(config["hidden_size"]), "llama.feed_forward_length": u32(config["intermediate_size"]),
            "llama.attention.head_count": u32(heads), "llama.attention.head_count_kv": u32(kv_heads),
            "llama.attention.key_length": u32(config["head_dim"]), "llama.attention.value_length": u32(config["head_dim"]),
            "llama.attention.layer_norm_rms_epsilon": f32(config["rms_norm_eps"]), "llama.rope.freq_base": f32(config["rope_theta"]),
            "tokenizer.ggml.model": string("gpt2"), "tokenizer.ggml.pre": string("gpt-2"),
            "tokenizer.ggml.tokens": array(8, [text(t) for t in vocab]),
            "tokenizer.ggml.token_type": array(5, [struct.pack("<i", 3 if i >= len(vocab) - added else 1) for i in range(len(vocab))]),
            "tokenizer.ggml.merges": array(8, []), "tokenizer.ggml.add_bos_token": struct.pack("<IB", 7, 0),
            "tokenizer.ggml.bos_token_id": u32(config["bos_token_id"]), "tokenizer.ggml.eos_token_id": u32(config["eos_token_id"])}
    for name, template in templates.items():
        meta["tokenizer.chat_template" + ("." + name if name else "")] = string(template)
    if len(templates) > 1:
        meta["tokenizer.chat_templates"] = array(8, [text(n) for n in templates if n])

    def rotated(w, n):
        # llama.cpp keeps the pairs that RoPE turns side by side.
        return w.reshape(n, 2, w.shape[0] // n // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
             "post_attention_layernorm": "ffn_norm"}
    tensors = {}
    for name, w in load_file(pathlib.Path(folder) / "model.safetensors").items():
        part = name.split(".")
        if part[1] == "layers":
            kind = ".".join(part[3:-1])
            if kind in ("self_attn.q_proj", "self_attn.k_proj"):
                w = rotated(w, heads if "q_" in kind else kv_heads)
            tensors[f"blk.{part[2]}.{names[kind]}.weight"] = w
        else:
            tensors[{"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                     "lm_head.weight": "output.weight"}[name]] = w
    head = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(meta)) + b"".join(text(k) + v for k, v in meta.items())
    data = b""
    for name, w in tensors.items():
        head += text(name) + struct.pack("<I", w.ndim) + struct.pack(f"<{w.ndim}Q", *w.shape[::-1]) + struct.pack("<IQ", 0, len(data))
        data += np.ascontiguousarray(w, np.float32).tobytes()
        data += bytes(-len(data) % 32)
    path = pathlib.Path(path)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return str(path)


def write_tiny_adapter(path, seed, rank=4, layers=3, hidden=64, heads=4, kv_heads=2, head_dim=16):
    """A random LoRA over q, v and o of write_tiny_model's default shape, as a PEFT folder."""
    from safetensors.numpy import save_file
    path = pathlib.Path(path)
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    shapes = {"q_proj": (heads * head_dim, hidden), "v_proj": (kv_heads * head_dim, hidden), "o_proj": (hidden, heads * head_dim)}
    t = {}
    for i in range(layers):
        for module, (rows, cols) in shapes.items():
            p = f"base_model.model.model.layers.{i}.self_attn.{module}."
            t[p + "lora_A.weight"] = (rng.standard_normal((rank, cols)) * 0.2).astype(np.float32)
            t[p + "lora_B.weight"] = (rng.standard_normal((rows, rank)) * 0.2).astype(np.float32)
    save_file(t, path / "adapter_model.safetensors", metadata={"format": "pt"})
    (path / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 8, "lora_dropout": 0.0, "bias": "none",
        "target_modules": sorted(shapes), "fan_in_fan_out": False, "base_model_name_or_path": "base"}))
    return str(path)


def tiny_entry(path, name="tiny", **extra):
    return {"name": name, "path": str(path), "weight_dtype": "fp32", "kv_dtype": "fp32", **extra}


def real_entry(name="smollm2", **extra):
    check(REAL_MODEL and os.path.isfile(REAL_MODEL), "BATON_SMOLLM2_GGUF does not name the model file")
    return {"name": name, "path": REAL_MODEL, "weight_dtype": "fp32", "kv_dtype": "fp32", **extra}
