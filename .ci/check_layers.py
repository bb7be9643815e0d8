#!/usr/bin/env python3
"""Refuses an #include that crosses rooms without a declared dependency.

Reads the room() declarations of all CMakeLists.txt files. A room may include its own headers and
those of every room it reaches through DEPS; rooms must sit on falling layers. Mains and tests are
held to what they link.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOP = ("common", "kernels", "proto", "prefill_node", "decode_node", "router", "tools")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def strip_comments(text):
    return re.sub(r"#.*", "", text)


def rooms():
    found = {}
    for top in TOP:
        for cmake in sorted((ROOT / top).rglob("CMakeLists.txt")):
            for body in re.findall(r"\broom\s*\(([^)]*)\)", strip_comments(cmake.read_text())):
                words = body.split()
                fields, key = {}, None
                for w in words:
                    if w in ("NAME", "LAYER", "HDRS", "SRCS", "DEPS", "LIBS", "ALONE", "COLD"):
                        key = w
                        fields[key] = []
                    else:
                        fields[key].append(w)
                name = fields["NAME"][0]
                found[name] = {
                    "dir": cmake.parent.relative_to(ROOT).as_posix(),
                    "layer": int(fields["LAYER"][0]),
                    "deps": fields.get("DEPS", []),
                }
    return found


def reach(name, all_rooms, seen=None):
    seen = seen if seen is not None else set()
    for dep in all_rooms[name]["deps"]:
        if dep not in seen and dep in all_rooms:
            seen.add(dep)
            reach(dep, all_rooms, seen)
    return seen


def owner(path, by_dir):
    """The room of the longest folder that holds `path`."""
    parts = path.split("/")[:-1]
    while parts:
        name = by_dir.get("/".join(parts))
        if name:
            return name
        parts.pop()
    return None


def main():
    all_rooms = rooms()
    by_dir = {r["dir"]: n for n, r in all_rooms.items()}
    errors = []
    for name, room in all_rooms.items():
        for dep in room["deps"]:
            if dep not in all_rooms:
                errors.append(f"room {name}: DEPS names '{dep}', which is no room")
            elif all_rooms[dep]["layer"] >= room["layer"]:
                errors.append(f"room {name} (layer {room['layer']}) depends on {dep} (layer {all_rooms[dep]['layer']})")
    checked = 0
    for top in TOP:
        for f in sorted((ROOT / top).rglob("*")):
            if f.suffix not in (".h", ".cc", ".cu", ".cuh"):
                continue
            rel = f.relative_to(ROOT).as_posix()
            room = owner(rel, by_dir)
            checked += 1
            for inc in INCLUDE.findall(f.read_text()):
                if inc.split("/")[0] == "tests":
                    errors.append(f"{rel}: includes {inc} from tests/")
                if inc.split("/")[0] not in TOP:
                    continue
                target = owner(inc, by_dir)
                if target is None:
                    errors.append(f"{rel}: {inc} belongs to no room")
                elif room is None:
                    continue
                elif target != room and f.name != "main.cc" and target not in reach(room, all_rooms):
                    errors.append(f"{rel}: includes {inc} of room '{target}', which room '{room}' does not depend on")
                elif target != room and f.name == "main.cc" and target not in reach(room, all_rooms) and target != "transport_ucx":
                    linked = (f.parent / "CMakeLists.txt").read_text()
                    if not re.search(rf"\b{target}\b", linked):
                        errors.append(f"{rel}: includes {inc} of room '{target}', which its target does not link")
            if f.suffix == ".h" and "#pragma once" not in f.read_text():
                errors.append(f"{rel}: no #pragma once")
    for e in errors:
        print(f"check_layers: {e}", file=sys.stderr)
    print(f"check_layers: {len(all_rooms)} rooms, {checked} files, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
