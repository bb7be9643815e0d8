#!/usr/bin/env python3
"""What several fine-tunes on one prefix cost together, beside one prefill.

    bench/fan_out.py --consumer LORA,CODEC [--consumer ...] [--copies 4] [--tokens 2048] [--rounds 3] [--json FILE]

A prefill node, a decode node with the consumers (each of them again, under other names, until there are --copies) and a
router. Every round takes a new text and asks

- each consumer once by codes (scd), and once more with the prefix in its cache, which costs the suffix alone;
- one of them in the same two ways by its own prefill (oracle), with another text.

Processor seconds are both nodes', from the kernel; a hand-off costs the first request less the second. Prints the sum over
the consumers, its ratio to the prefill of the same round, and how many tokens the base forwarded (once would be the prefix).
Needs a build (--bin) and Python with tests/requirements.txt; pins nothing, so leave the machine alone meanwhile.
"""
import argparse
import itertools
import json
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(node):
    fields = pathlib.Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS  # user and system


def forwarded(node):
    """Prompt tokens that went through the model, since it started."""
    return node.metric("baton_prompt_tokens_total") - node.metric("baton_prefix_cache_hits_tokens_total")


class Meter:
    """Processor seconds of requests to a producer and a consumer."""

    def __init__(self, client, nodes):
        self._client, self._nodes = client, nodes

    def _total(self):
        return sum(cpu_seconds(n) for n in self._nodes)

    def ask(self, prompt, model, strategy):
        before = self._total()
        got = self._client.generate(prompt, model=model, strategy=strategy, max_tokens=1)
        time.sleep(0.5)  # codes that are made ahead for the next consumers are part of it
        return self._total() - before, got.finished

    def hand_off(self, prompt, model, strategy):
        """(seconds without the suffix, what the first answer says)."""
        first, finished = self.ask(prompt, model, strategy)
        again, cached = self.ask(prompt, model, strategy)
        if cached.usage.cached_tokens == 0:
            sys.exit(f"{model}: the prefix was not in the cache the second time")
        return first - again, finished


def measure(a, cluster):
    from harness import Client
    from links import Prompts
    model = {"path": str(a.model), "weight_dtype": a.dtype}
    codecs = [str(codec) for _, codec in a.consumers]
    copies = list(itertools.islice(itertools.cycle(a.consumers), a.copies))
    entries = [{"name": f"c{i}", "base_model": "base", "adapter": str(lora), "codecs": [str(codec)], **model}
               for i, (lora, codec) in enumerate(copies)]
    producer = cluster.prefill([{"name": "base", "codecs": codecs, **model}]).start()
    consumer = cluster.decode(entries).start()
    client = Client(cluster.router([consumer], [producer]).start())
    client.wait_ready(models=len(entries), seconds=300)
    prompts, meter, rounds = Prompts(client, a.text, a.suffix), Meter(client, [producer, consumer]), []
    for number in range(a.rounds + 1):  # the first one warms up
        before = forwarded(producer)
        prompt, costs = prompts.fresh(a.tokens), []
        for entry in entries:
            seconds, finished = meter.hand_off(prompt, entry["name"], "scd")
            if finished.timing.strategy not in ("scd", "reuse"):
                sys.exit(f"{entry['name']}: {finished.timing.strategy} served: {finished.timing.fallback_reason}")
            costs.append(seconds)
        tokens = forwarded(producer) - before
        own, _ = meter.hand_off(prompts.fresh(a.tokens), entries[0]["name"], "oracle")
        if number > 0:
            rounds.append({"hand_offs_s": costs, "prefill_s": own, "base_tokens": tokens})
        print(f"fan_out: round {number} of {a.rounds}", file=sys.stderr, flush=True)
    return rounds


def report(a, rounds):
    lines = [f"{a.copies} consumers ({len(a.consumers)} codecs), a prefix of {a.tokens} tokens, {a.dtype}; load average {os.getloadavg()[0]:.1f}", "",
             "| round | first, s | further ones, s | together, s | one prefill, s | ratio | tokens the base forwarded |", "|---|---|---|---|---|---|---|"]
    for i, r in enumerate(rounds, 1):
        first, *rest = r["hand_offs_s"]
        total = first + sum(rest)
        lines.append(f"| {i} | {first:.2f} | {', '.join(f'{x:.2f}' for x in rest)} | {total:.2f} | {r['prefill_s']:.2f} | "
                     f"{total / r['prefill_s']:.2f} | {r['base_tokens']:.0f} |")
    ratios = [sum(r["hand_offs_s"]) / r["prefill_s"] for r in rounds]
    lines.append(f"\nratio: median {statistics.median(ratios):.2f}, min {min(ratios):.2f}")
    return "\n".join(lines)


def consumer(value):
    lora, _, codec = value.partition(",")
    paths = pathlib.Path(lora).resolve(), pathlib.Path(codec).resolve()
    if not codec or not all(p.exists() for p in paths):
        raise argparse.ArgumentTypeError(f"{value}: not LORA_FOLDER,CODEC_FILE")
    return paths


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--stubs", type=pathlib.Path, help="generated Python stubs (default: gen_py beside --bin)")
    parser.add_argument("--model", type=pathlib.Path, default=os.environ.get("BATON_SMOLLM2_GGUF"), required="BATON_SMOLLM2_GGUF" not in os.environ)
    parser.add_argument("--consumer", type=consumer, action="append", dest="consumers", required=True, metavar="LORA,CODEC")
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--text", type=pathlib.Path, default=ROOT.parent / "shared/data/public_domain_book/moby_dick.txt", help="prompts are cut from it")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--tokens", type=int, default=2048, help="of the prefix, a multiple of 64")
    parser.add_argument("--suffix", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def main():
    a = parse()
    os.environ["BATON_BIN_DIR"] = str(a.bin)
    os.environ["BATON_PY_STUBS"] = str(a.stubs or a.bin.parent / "gen_py")
    sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "bench")]
    from harness import Cluster
    with Cluster() as cluster:
        rounds = measure(a, cluster)
    if a.json:
        a.json.write_text(json.dumps(rounds, indent=1) + "\n")
    print(report(a, rounds))


if __name__ == "__main__":
    main()
