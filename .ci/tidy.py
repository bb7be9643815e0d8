#!/usr/bin/env python3
"""clang-tidy over every source of the product: .ci/tidy.py BUILD_DIR [-j N] [path prefix ...]

BUILD_DIR is a configured build whose generated headers exist. Most of clang-tidy's time goes into
headers, so sources of all rooms are read in a few units; sources that define the same names
outside a namespace of their own go to different units. Exits 1 when anything is found.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from check_layers import ROOT, TOP  # noqa: E402

PER_UNIT = 32
LOCAL = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$", re.M | re.S)
NAMES = (
    re.compile(r"\b(?:class|struct|enum class|enum|concept)\s+(\w+)"),
    re.compile(r"^(?:[\w:<>,&*\[\]]+\s+)+[&*]?(\w+)\(", re.M),  # functions
    re.compile(r"\b(k[A-Z]\w*)\b(?:\[\w*\])?\s*(?:=|\{|\()"),
    re.compile(r"^using\s+(\w+)\s*=", re.M),
)


# Flags that say where libraries are and how they were built; those of other rooms do no harm.
LIBRARY_FLAG = re.compile(r"-I|-isystem|-D(?!BATON_)|-pthread$|-fPI[CE]$")


def local_names(text):
    names = set(re.findall(r"^#define (\w+)", text, re.M)) | set(re.findall(r"^static .*?(\w+)\(", text, re.M))
    names.update(re.findall(r"^using (?:\w+::)+(\w+);", text, re.M))
    names.update(re.findall(r"^int (main)\(", text, re.M))
    for body in LOCAL.findall(text):
        for pattern in NAMES:
            names.update(pattern.findall(body))
    return names


def flags_of(entry):
    """The compiler's arguments without output, dependency file and the source itself."""
    words = shlex.split(entry["command"].replace("-isystem ", "-isystem"))
    while not words[0].endswith("clang++"):
        words.pop(0)  # ccache and its settings
    kept, skip = [], False
    for w in words[1:]:
        if skip:
            skip = False
        elif w in ("-o", "-MF", "-MT"):
            skip = True
        elif w not in ("-c", "-MD", entry["file"]) and not w.startswith(("-fsanitize", "-fno-sanitize")):
            kept.append(w)
    return kept


def sources(build, prefixes):
    entries = json.loads((build / "compile_commands.json").read_text())
    if any("/Unity/unity_" in entry["file"] for entry in entries):
        sys.exit(f"{build}: a unity build does not list the rooms' sources; configure with -DBATON_UNITY=OFF")
    for entry in entries:
        path = pathlib.Path(entry["file"])
        if not path.is_relative_to(ROOT):
            continue
        rel = path.relative_to(ROOT).as_posix()
        if rel.split("/")[0] in TOP and (not prefixes or rel.startswith(tuple(prefixes))):
            yield rel, flags_of(entry)


def units(build, prefixes):
    """[(flags, [source, ...]), ...]: no two sources of a unit define the same local name."""
    open_units, seen = [], set()
    for rel, flags in sorted(sources(build, prefixes)):
        if rel in seen:
            continue
        seen.add(rel)
        names = local_names((ROOT / rel).read_text())
        own = [f for f in flags if not LIBRARY_FLAG.match(f)]
        for unit in open_units:
            if unit["own"] == own and len(unit["files"]) < PER_UNIT and not names & unit["names"]:
                break
        else:
            unit = {"own": own, "library": {}, "files": [], "names": set()}
            open_units.append(unit)
        unit["files"].append(rel)
        unit["names"] |= names
        unit["library"].update(dict.fromkeys(f for f in flags if LIBRARY_FLAG.match(f)))
    return [([*u["own"], *u["library"]], u["files"]) for u in open_units]


def tidy(path, flags, *options):
    """(output, exit status, seconds); the output has what went to the error stream if clang-tidy failed."""
    start = time.monotonic()
    run = subprocess.run(["clang-tidy", "--quiet", f"--config-file={ROOT}/.clang-tidy", *options, str(path), "--", *flags],
                         cwd=ROOT, capture_output=True, text=True)
    output = run.stdout + (run.stderr if run.returncode else "")
    return output, run.returncode, time.monotonic() - start


def check(build, number, unit):
    flags, files = unit
    flags = ["-Wreserved-identifier" if f == "-Wextra" else f for f in flags]
    if len(files) > 1:
        path = build / "tidy" / f"unit_{number}.cc"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f'#include "{f}"\n' for f in files))
        output, code, seconds = tidy(path, [*flags, "-Wno-everything", "-Wreserved-identifier", "-Wthread-safety"],
                                     "--checks=-bugprone-suspicious-include")
        if "clang-diagnostic-error" not in output:
            return files, output, code, seconds
        print(f"tidy: unit {number} does not compile, so its sources are read one by one:\n"
              + "".join(re.findall(r"(?m)^.*\[clang-diagnostic-error\]$", output)[:1]), flush=True)
    runs = [tidy(ROOT / f, flags) for f in files]
    return files, "".join(r[0] for r in runs), max(abs(r[1]) for r in runs), sum(r[2] for r in runs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("prefixes", nargs="*")
    parser.add_argument("-j", type=int, default=os.cpu_count())
    args = parser.parse_intermixed_args()
    work = units(args.build.resolve(), args.prefixes)
    failed, findings = 0, set()
    with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
        jobs = [pool.submit(check, args.build.resolve(), i, u) for i, u in enumerate(work)]
        for done, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            files, output, code, seconds = job.result()
            print(f"tidy: [{done}/{len(work)}] {seconds:4.0f} s {' '.join(files)}", flush=True)
            failed += code != 0
            # A header's finding shows once, not once per unit.
            shown = False
            for finding in re.split(r"(?m)^(?=\S+?:\d+:\d+: (?:error|warning): )", output):
                if re.match(r"\S+?:\d+:\d+: ", finding):
                    shown = True
                    if finding not in findings:
                        findings.add(finding)
                        print(finding.rstrip(), flush=True)
            if code != 0 and not shown:
                print(f"tidy: clang-tidy ended with {code} on {' '.join(files)}\n{output.strip()}", flush=True)
    print(f"tidy: {sum(len(f) for _, f in work)} sources in {len(work)} units, {len(findings)} findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
