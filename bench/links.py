#!/usr/bin/env python3
"""Time to first token of a hand-off over links of several speeds, beside a consumer that prefills itself.

    bench/links.py --codec CODEC [--adapter LORA] [--links none,1gbit,100mbit] [--rounds 5] [--json FILE]

A prefill node in a network namespace of its own, joined to this one by a veth pair whose both ends are shaped with
`tc tbf`; a decode node and a router here. Each node is pinned to one core (the producer to the first, the consumer to the
second) and has one engine thread and one worker. Needs root, iproute2, a build (--bin) and Python with tests/requirements.txt.

Every round asks each strategy at each length in an order shuffled anew:

- oracle: the consumer computes the prefix;
- cold: the producer has never seen the prefix;
- warm: the producer has it (K/V in its prefix cache, codes in its store), the consumer does not (its cache is off).

Prints a Markdown table: medians and minima over the rounds, the stages of the median request, bytes, and the ratio of
oracle's time to this one's, oracle being the one of the same round. Another one sets the rate of the largest hand-off
(raw, warm) beside what `ucx_perftest` (Debian: ucx-utils) gets through the same link with messages of a frame's size,
before each round, between the same cores.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE, THERE = "10.213.7.1", "10.213.7.2"  # a link of its own; nothing else is reached by it
FRAME_BYTES, MESSAGES = 4 << 20, 24  # ucx_perftest's: frames of the default size, together about one hand-off


def run(*command):
    subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def link():
    """(namespace, device here); gone afterwards."""
    space, device = f"baton-{os.getpid()}", f"bl{os.getpid()}"
    peer = f"br{os.getpid()}"
    try:
        run("ip", "netns", "add", space)
        run("ip", "link", "add", device, "type", "veth", "peer", "name", peer, "netns", space)
        run("ip", "addr", "add", f"{HERE}/24", "dev", device)
        run("ip", "link", "set", device, "up")
        run("ip", "-n", space, "addr", "add", f"{THERE}/24", "dev", peer)
        run("ip", "-n", space, "link", "set", peer, "up")
        run("ip", "-n", space, "link", "set", "lo", "up")
        yield space, device, peer
    except subprocess.CalledProcessError as e:
        sys.exit(f"no link between namespaces (are you root?): {' '.join(e.cmd)}: {e.stderr.strip()}")
    finally:
        subprocess.run(["ip", "link", "del", device], capture_output=True)
        subprocess.run(["ip", "netns", "del", space], capture_output=True)


def shape(ends, rate):
    """`rate` as tc takes it, or "none"."""
    space, device, peer = ends
    for prefix, dev in (([], device), (["-n", space], peer)):
        subprocess.run(["tc", *prefix, "qdisc", "del", "dev", dev, "root"], capture_output=True)
        if rate != "none":
            run("tc", *prefix, "qdisc", "add", "dev", dev, "root", "tbf", "rate", rate, "burst", "128kb", "latency", "100ms")


def perftest(a, ends):
    """Bytes a second of UCX's own test of active messages, from the producer's end to the consumer's."""
    space, device, peer = ends
    test = ["ucx_perftest", "-p", "13391", "-t", "ucp_am_bw", "-s", str(FRAME_BYTES)]
    tcp = {**os.environ, "UCX_TLS": "tcp"}
    receiver = subprocess.Popen(["taskset", "-c", a.cpus[1], *test], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                env={**tcp, "UCX_NET_DEVICES": device})
    try:
        for _ in range(50):  # until it listens
            time.sleep(0.1)
            sender = subprocess.run(["ip", "netns", "exec", space, "taskset", "-c", a.cpus[0], *test, "-n", str(MESSAGES), "-w", "2", HERE],
                                    capture_output=True, text=True, env={**tcp, "UCX_NET_DEVICES": peer})
            final = [line.split() for line in sender.stdout.splitlines() if line.startswith("Final:")]
            if final:
                return float(final[0][-3]) * 2**20  # the column of the overall MB/s
        sys.exit(f"ucx_perftest gave no result: {sender.stderr.strip()[-500:]}")
    finally:
        receiver.kill()
        receiver.wait()


class Prompts:
    """Prompts of a length that nobody has seen, of text's own tokens."""

    def __init__(self, client, path, suffix):
        import router_pb2
        text = pathlib.Path(path).read_text("utf-8", errors="replace")[:400_000]
        self._ids = list(client.stub.Tokenize(router_pb2.TokenizeRequest(text=text), timeout=60).ids)
        self._random, self._suffix = random.Random(1), suffix

    def fresh(self, tokens):
        at = self._random.randrange(len(self._ids) - tokens - self._suffix)
        prompt = self._ids[at:at + tokens + self._suffix]
        prompt[4] = self._random.randrange(1000, 40_000)  # no two begin alike
        return prompt


def ask(client, prompt, strategy):
    """(seconds to the first token as the client sees them, what the nodes say)."""
    request = client.request(prompt, model="consumer", strategy=strategy, max_tokens=1)
    start, first, finished = time.perf_counter(), None, None
    for event in client.stub.Generate(request, timeout=300):
        if first is None and not event.HasField("finished"):
            first = time.perf_counter() - start
        if event.HasField("finished"):
            finished = event.finished
    # A codec without patched layers serves scd as reuse.
    if finished.timing.strategy not in ({"scd", "reuse"} if strategy == "scd" else {strategy}):
        sys.exit(f"{strategy} was asked for, {finished.timing.strategy} served: {finished.timing.fallback_reason}")
    return first if first is not None else time.perf_counter() - start, finished


def measure(a, client, prompts, ends, rate, rows, peaks):
    cases = [(s, n, state) for n in a.lengths for s in a.strategies
             for state in (("cold",) if s == "oracle" else ("cold", "warm"))]
    for number in range(a.rounds + 1):  # the first one warms links, caches of code and allocators
        random.Random(number).shuffle(cases)
        peaks.append({"link": rate, "round": number, "bytes_per_s": perftest(a, ends)})
        for strategy, tokens, state in cases:
            prompt = prompts.fresh(tokens)
            if state == "warm":
                ask(client, prompt, strategy)
            seconds, finished = ask(client, prompt, strategy)
            t = finished.timing
            if number > 0:
                rows.append({"link": rate, "strategy": strategy, "tokens": tokens, "state": state, "round": number,
                             "ttft_s": seconds, "queue_s": t.queue_s, "prefill_s": t.prefill_s, "transfer_s": t.transfer_s,
                             "import_s": t.import_s, "suffix_s": t.suffix_s, "bytes": t.handoff_bytes, "lane": t.lane})
        print(f"links: {rate}, round {number} of {a.rounds}", file=sys.stderr, flush=True)


def table(rows):
    lines = ["| link | prefix | strategy | producer | TTFT, ms: median (min) | oracle : this, median (min) | bytes | prefill | transfer | import | suffix |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    keys = sorted({(r["link"], r["tokens"], r["strategy"], r["state"]) for r in rows},
                  key=lambda k: (rows[0]["link"] != k[0], k[0], k[1], k[2] != "oracle", k[2], k[3]))
    for link_, tokens, strategy, state in keys:
        mine = [r for r in rows if (r["link"], r["tokens"], r["strategy"], r["state"]) == (link_, tokens, strategy, state)]
        oracle = {r["round"]: r["ttft_s"] for r in rows
                  if (r["link"], r["tokens"], r["strategy"]) == (link_, tokens, "oracle")}
        ratios = [oracle[r["round"]] / r["ttft_s"] for r in mine if r["round"] in oracle]
        times = [1e3 * r["ttft_s"] for r in mine]
        middle = sorted(mine, key=lambda r: r["ttft_s"])[len(mine) // 2]
        ratio = "–" if strategy == "oracle" or not ratios else f"{statistics.median(ratios):.1f} ({min(ratios):.1f})"
        stages = " | ".join(f"{1e3 * middle[s]:.0f}" for s in ("prefill_s", "transfer_s", "import_s", "suffix_s"))
        lines.append(f"| {link_} | {tokens} | {strategy} | {'' if strategy == 'oracle' else state} | {statistics.median(times):.0f} "
                     f"({min(times):.0f}) | {ratio} | {middle['bytes']:,} | {stages} |")
    return "\n".join(lines)


def rates(rows, peaks):
    """The largest hand-off of raw K/V that were ready, beside ucx_perftest."""
    lines = ["| link | bytes | hand-off, MB/s: median (max) | ucx_perftest, MB/s | hand-off : perftest of its round, median (max) |", "|---|---|---|---|---|"]
    raw = [r for r in rows if (r["strategy"], r["state"]) == ("raw", "warm")]
    longest = max((r["tokens"] for r in raw), default=0)
    for link_ in dict.fromkeys(r["link"] for r in raw):
        mine = [r for r in raw if (r["link"], r["tokens"]) == (link_, longest)]
        peak = {p["round"]: p["bytes_per_s"] for p in peaks if p["link"] == link_}
        got = [r["bytes"] / (r["prefill_s"] + r["transfer_s"]) for r in mine]
        ratios = [g / peak[r["round"]] for g, r in zip(got, mine)]
        lines.append(f"| {link_} | {mine[0]['bytes']:,} | {statistics.median(got) / 1e6:.1f} ({max(got) / 1e6:.1f}) | "
                     f"{statistics.median(peak.values()) / 1e6:.1f} | {statistics.median(ratios):.2f} ({max(ratios):.2f}) |")
    return "\n".join(lines)


def nodes(cluster, a, ends):
    """A client of a producer behind the link, a consumer and a router."""
    from harness import Client
    space, device, peer = ends
    threads = {"engine": 1, "worker": 1}
    model = {"path": str(a.model), "weight_dtype": a.dtype}

    def lanes(net_device):
        return {"tls": ["tcp"], "net_devices": [net_device]}
    producer = cluster.prefill([{"name": "base", "codecs": a.codec, **model}], threads=threads,
                               rpc={"bind": THERE}, http={"bind": THERE}, transport=lanes(peer),
                               prefix=["ip", "netns", "exec", space, "taskset", "-c", a.cpus[0]]).start()
    entry = {"name": "consumer", "base_model": "base", "codecs": a.codec, **model}
    if a.adapter:
        entry["adapter"] = str(a.adapter)
    consumer = cluster.decode([entry], threads=threads, engine={"prefix_cache": False}, rpc={"bind": HERE},
                              transport=lanes(device), prefix=["taskset", "-c", a.cpus[1]]).start()
    client = Client(cluster.router([consumer], [producer], prefix=["taskset", "-c", a.cpus[0]]).start())
    client.wait_ready()
    return client


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--stubs", type=pathlib.Path, help="generated Python stubs (default: gen_py beside --bin)")
    parser.add_argument("--model", type=pathlib.Path, default=os.environ.get("BATON_SMOLLM2_GGUF"), required="BATON_SMOLLM2_GGUF" not in os.environ)
    parser.add_argument("--adapter", type=pathlib.Path)
    parser.add_argument("--codec", action="append", default=[])
    parser.add_argument("--text", type=pathlib.Path, default=ROOT.parent / "shared/data/public_domain_book/moby_dick.txt", help="prompts are cut from it")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--links", default="none,1gbit,100mbit", type=lambda s: s.split(","))
    parser.add_argument("--lengths", default="512,2048", type=lambda s: [int(x) for x in s.split(",")], help="multiples of 64")
    parser.add_argument("--suffix", type=int, default=32, help="tokens after the prefix")
    parser.add_argument("--strategies", default="oracle,raw,q4,scd", type=lambda s: s.split(","))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpus", default="0,1", type=lambda s: s.split(","))
    parser.add_argument("--json", type=pathlib.Path)
    a = parser.parse_args()
    a.codec = [str(pathlib.Path(c).resolve()) for c in a.codec]
    return a


def main():
    a = parse()
    os.environ["BATON_BIN_DIR"] = str(a.bin)
    os.environ["BATON_PY_STUBS"] = str(a.stubs or a.bin.parent / "gen_py")
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    from harness import Cluster
    rows, peaks = [], []
    with link() as ends, Cluster() as cluster:
        client = nodes(cluster, a, ends)
        prompts = Prompts(client, a.text, a.suffix)
        for rate in a.links:
            shape(ends, rate)
            measure(a, client, prompts, ends, rate, rows, peaks)
            if a.json:
                a.json.write_text(json.dumps({"requests": rows, "perftest": peaks}, indent=1) + "\n")
    print(f"load average {os.getloadavg()[0]:.1f}\n\n{table(rows)}\n\n{rates(rows, peaks)}")


if __name__ == "__main__":
    main()
