#!/usr/bin/env python3
"""Compiles without writing objects: .ci/compile_alone.py BUILD_DIR --headers | --thread-safety [-j N] [path prefix ...]

--headers        every public header compiles alone. A header that is the first include of its own
                 source is proven by the build; the others are compiled here.
--thread-safety  every source passes clang's -Wthread-safety (lock annotations of
                 common/base/mutex.h). BUILD_DIR must be a clang build.
BUILD_DIR is configured, and its generated headers exist.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from check_layers import ROOT, TOP  # noqa: E402
from tidy import sources  # noqa: E402

FIRST_INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^">]+)[">]', re.M)


def compiler(build):
    text = (build / "CMakeCache.txt").read_text()
    return re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", text, re.M).group(1)


def headers(build, prefixes):
    """(header, flags) of each header that no source proves."""
    flags_of_dir = {}
    for source, flags in sources(build, []):
        flags_of_dir.setdefault(os.path.dirname(source), flags)
    proven = count = 0
    for top in TOP:
        for path in sorted((ROOT / top).rglob("*.h")):
            rel = path.relative_to(ROOT).as_posix()
            folder = os.path.dirname(rel)
            if folder not in flags_of_dir or (prefixes and not rel.startswith(tuple(prefixes))):
                continue  # a room that this build leaves out
            count += 1
            own = path.with_suffix(".cc")
            first = FIRST_INCLUDE.search(own.read_text()) if own.exists() else None
            if first and first.group(1) == rel:
                proven += 1
            else:
                yield rel, flags_of_dir[folder]
    print(f"compile_alone: {count} headers, {proven} are first in their own source")


def compile_one(command, rel, flags):
    run = subprocess.run([command, "-fsyntax-only", *flags, rel], cwd=ROOT, capture_output=True, text=True)
    return rel, run.returncode, run.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("prefixes", nargs="*")
    parser.add_argument("--headers", action="store_true")
    parser.add_argument("--thread-safety", action="store_true")
    parser.add_argument("-j", type=int, default=os.cpu_count())
    args = parser.parse_intermixed_args()
    build = args.build.resolve()
    command = compiler(build)
    work = []
    if args.headers:
        work += [(h, [*f, "-x", "c++", "-Wno-pragma-once-outside-header", "-Wno-unused-function",
                      "-Wno-unused-const-variable", "-Werror"]) for h, f in headers(build, args.prefixes)]
    if args.thread_safety:
        if "clang" not in command:
            sys.exit("compile_alone: --thread-safety needs a build by clang")
        work += [(s, [*f, "-Wthread-safety", "-Werror=thread-safety"]) for s, f in sources(build, args.prefixes)]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
        jobs = [pool.submit(compile_one, command, rel, flags) for rel, flags in work]
        for done, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            rel, code, text = job.result()
            if code:
                failed += 1
                print(f"compile_alone: {rel} fails:\n{text}", flush=True)
            elif done % 20 == 0:
                print(f"compile_alone: [{done}/{len(work)}]", flush=True)
    print(f"compile_alone: {len(work)} files compiled, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
