#!/usr/bin/env python3
"""Alternates Baton, HF Transformers and llama.cpp on one machine and prints a Markdown table.

    run_interleaved.py --model FILE.gguf --baton build/bin/model_bench --python /path/to/python

Every round runs each engine once, one after the other, so that all of them see the same
neighbours and clock. Cells are the median over the rounds, with the minimum in parentheses.
An engine that cannot run is named below the table, not left out silently.
"""
import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def engines(a):
    sizes = ["--threads", str(a.threads), "--repeat", "1", "--prefill", a.prefill,
             "--decode", a.decode, "--context", str(a.context), "--tokens", str(a.tokens)]
    for dtype in a.dtypes.split(","):
        yield f"baton {dtype}", [a.baton, a.model, "--dtype", dtype, *sizes]
        if a.hf:
            yield f"hf-sdpa {dtype}", [a.python, str(HERE / "hf_bench.py"), a.model,
                                       "--dtype", dtype, *sizes]
        if a.llamacpp:
            yield f"llama.cpp {dtype}", [a.python, str(HERE / "llamacpp_bench.py"), a.model,
                                         "--dtype", dtype, "--cache", a.cache, *sizes]


def table(results, columns):
    head = ["engine", "dtype"] + [f"{what} {size}" for what, size in columns]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for engine, dtype in results:
        cells = []
        for column in columns:
            rates = results[engine, dtype].get(column)
            cells.append(f"{statistics.median(rates):.0f} ({min(rates):.0f})" if rates else "–")
        print("| " + " | ".join([engine, dtype] + cells) + " |")


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--baton", required=True, help="the model_bench program")
    p.add_argument("--python", default=sys.executable, help="a Python with the peers installed")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--dtypes", default="fp32,bf16")
    p.add_argument("--prefill", default="512,2048")
    p.add_argument("--decode", default="1,8")
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--cache", default="/tmp/baton-bench")
    p.add_argument("--no-hf", dest="hf", action="store_false")
    p.add_argument("--no-llamacpp", dest="llamacpp", action="store_false")
    a = p.parse_args()
    results = collections.defaultdict(lambda: collections.defaultdict(list))
    columns, failures = [], {}
    for round_number in range(a.rounds):
        for name, command in engines(a):
            print(f"round {round_number + 1}/{a.rounds}: {name}", file=sys.stderr, flush=True)
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode != 0:
                failures[name] = (run.stderr.strip().splitlines() or ["no message"])[-1]
                continue
            for line in run.stdout.splitlines():
                if not line.startswith("{"):
                    continue
                r = json.loads(line)
                column = (r["what"], r["size"])
                if column not in columns:
                    columns.append(column)
                results[r["engine"], r["dtype"]][column] += r["tokens_per_s"]
    print(f"Tokens/s, {a.threads} threads, median (minimum) of {a.rounds} interleaved rounds; "
          f"prefill by length, decode by batch size at context {a.context}.\n")
    table(results, columns)
    for name, reason in failures.items():
        print(f"\nfailed: {name}: {reason}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
