#!/usr/bin/env python3
"""Each room has a README.md, and the source files a README names in backticks exist."""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from check_layers import ROOT, TOP, rooms  # noqa: E402

NAMED = re.compile(r"`([\w./-]+\.(?:h|cc|cu|cuh|proto|py|sh|yaml|md|cmake))`")


def main():
    errors = []
    names = {f.name for top in (*TOP, "tests", "cmake", "bench") for f in (ROOT / top).rglob("*")}
    for name, room in rooms().items():
        readme = ROOT / room["dir"] / "README.md"
        if not readme.is_file():
            errors.append(f"room {name}: {room['dir']}/README.md is missing")
            continue
        text = readme.read_text()
        for named in NAMED.findall(text):
            places = [ROOT / room["dir"] / named, ROOT / named]
            if not any(p.exists() for p in places) and not ("/" not in named and named in names):
                errors.append(f"{room['dir']}/README.md names `{named}`, which does not exist")
        if len(text.splitlines()) > 90:
            errors.append(f"{room['dir']}/README.md is longer than one screen or two ({len(text.splitlines())} lines)")
    for e in errors:
        print(f"check_rooms: {e}", file=sys.stderr)
    print(f"check_rooms: {len(rooms())} rooms, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
