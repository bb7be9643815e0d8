"""`baton calibrate` and what its codec does between three daemons."""
import json
import os
import pathlib
import struct
import subprocess
import sys

from harness import BIN, Client, Cluster, check, tiny_entry, write_tiny_adapter, write_tiny_model
from test_identity import book


def calibrate(out, *args):
    run = subprocess.run([os.path.join(BIN, "baton"), "calibrate", "--out", str(out), *map(str, args)],
                         capture_output=True, text=True, timeout=300)
    check(run.returncode == 0, f"baton calibrate: {run.stderr[-2000:]}")
    return run.stdout


def bytes_per_token(codec):
    """From the file itself: the bits of every component."""
    data = codec.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    ranges = [v["data_offsets"] for k, v in header.items() if k.endswith(".bits")]
    return sum(sum(data[8 + length + a:8 + length + b]) for a, b in ranges) / 8


def scenario_reuse():
    """Two consumers of one base: their own K/V from the base's codes, and a warm prefix without a forward pass."""
    with Cluster() as c:
        base = write_tiny_model(c.dir / "base", seed=1)
        (c.dir / "text.txt").write_text(book(40000))
        entries, codecs = [], []
        for name, seed in (("a", 5), ("b", 6)):
            adapter = write_tiny_adapter(c.dir / name, seed)
            codec = c.dir / f"{name}.safetensors"
            said = calibrate(codec, "--producer", base, "--consumer", base, "--adapter", adapter, "--data", c.dir / "text.txt",
                             "--prefix", 256, "--held-out", 4, "--train-documents", 12, "--epochs", 1)
            check("bytes per token" in said and "trained" in said, f"baton calibrate said: {said}")
            entries.append(tiny_entry(base, name, adapter=adapter, base_model="base", codecs=[str(codec)]))
            codecs.append(codec)
        p = c.prefill([tiny_entry(base, "base", codecs=[str(x) for x in codecs])]).start()
        d = c.decode(entries).start()
        r = c.router([d], [p]).start()
        client = Client(r)
        client.wait_ready(models=2)
        prompt = list(book(700).encode())
        cold = {n: client.generate(prompt, model=n, strategy="oracle", max_tokens=12) for n in "ab"}
        d.stop()
        d.pin_ports()
        d.start()
        client.wait_ready(models=2)
        first = {}
        for name, codec in zip("ab", codecs):
            got = client.generate(prompt, model=name, strategy="reuse", max_tokens=12)
            check(got.finished.timing.strategy == "reuse", f"{name}: no codes: {got.finished.timing.fallback_reason}")
            prefix = got.finished.usage.transferred_tokens + 4
            check(got.finished.timing.handoff_bytes == prefix * bytes_per_token(codec),
                  f"{name}: {got.finished.timing.handoff_bytes} bytes for a prefix of {prefix}")
            first[name] = list(got.ids)
        d.stop()
        d.pin_ports()
        d.start()
        client.wait_ready(models=2)
        for name in "ab":
            warm = client.generate(prompt, model=name, strategy="reuse", max_tokens=12)
            timing = warm.finished.timing
            check(timing.producer_cached_tokens == 576 and timing.prefill_s == 0,
                  f"{name}: {timing.producer_cached_tokens} tokens from the store, {timing.prefill_s} s of prefill")
            check(list(warm.ids) == first[name], f"{name}: a warm prefix gave another answer")
            own = client.generate(prompt, model=name, strategy="oracle", max_tokens=12)
            check(list(own.ids) == list(cold[name].ids), f"{name}: oracle after reuse differs from a cold oracle")


def scenario_twin():
    """A twin computes the same function in other numbers: raw K/V are noise to it, codes at full rank are its own."""
    with Cluster() as c:
        base = write_tiny_model(c.dir / "base", seed=1)
        script = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "twin.py"
        subprocess.run([sys.executable, str(script), base, str(c.dir / "twin")], check=True, timeout=60)
        (c.dir / "text.txt").write_text(book(40000))
        codec = c.dir / "twin.safetensors"
        calibrate(codec, "--producer", base, "--consumer", c.dir / "twin", "--data", c.dir / "text.txt", "--bytes-per-token", 192,
                  "--prefix", 256, "--held-out", 4, "--epochs", 0, "--metric", "identity", "--storage", "fp32", "--ridge", 1e-3)
        p = c.prefill([tiny_entry(base, "base", codecs=[str(codec)])]).start()
        d = c.decode([tiny_entry(c.dir / "twin", "twin", base_model="base", codecs=[str(codec)])],
                     engine={"prefix_cache": False}).start()  # else what oracle computed serves the rest
        client = Client(c.router([d], [p]).start())
        client.wait_ready()
        # One token each, so that a near tie of this random model costs one answer and not the rest of it.
        prompts = [list(book(200 + 10 * n).encode())[::-1] for n in range(40)]
        same = {"raw": 0, "reuse": 0}
        for prompt in prompts:
            own = client.generate(prompt, strategy="oracle", max_tokens=1).ids
            for strategy in same:
                got = client.generate(prompt, strategy=strategy, max_tokens=1)
                check(got.finished.timing.strategy == strategy, f"{strategy}: {got.finished.timing.fallback_reason}")
                same[strategy] += list(got.ids) == list(own)
        total = len(prompts)
        check(same["reuse"] >= 0.9 * total, f"{same['reuse']} of {total} first tokens are the twin's own with codes")
        check(same["raw"] <= 0.2 * total, f"{same['raw']} of {total} first tokens survive raw K/V: the test proves nothing")
