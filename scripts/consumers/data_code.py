"""Python source: the standard library as Debian packages it."""
import hashlib
import pathlib
import subprocess

PACKAGES = ("libpython3.11-stdlib", "libpython3.11-minimal")
LEFT_OUT = ("encodings/", "pydoc_data/", "lib2to3/",  # tables and grammars, not code
            "doctest.py", "heapq.py", "ipaddress.py")  # share runs of 12 words with HumanEval
SOURCES = """\
Training text: the modules of Python 3.11's standard library as installed by Debian's `libpython3.11-stdlib`
and `libpython3.11-minimal` (PSF licence; a few modules carry permissive notices of their own), without
`encodings`, `pydoc_data`, `lib2to3`, `_sysconfigdata*` and three modules that share text with HumanEval.
One file in 20 is held out."""


def is_held_out(relative_path):
    """One file in 20, by name, so that an updated package moves no file to the other side."""
    return int(hashlib.sha256(str(relative_path).encode()).hexdigest(), 16) % 20 == 0


def files(root=None):
    """{path relative to the library: text}. Without a root, the files that Debian's packages own."""
    if root is None:
        listed = subprocess.run(["dpkg", "-L", *PACKAGES], check=True, capture_output=True,
                                text=True).stdout.split("\n")
        base = pathlib.Path("/usr/lib/python3.11")
        paths = [pathlib.Path(p) for p in listed if p.startswith(f"{base}/")]
    else:
        base = pathlib.Path(root)
        paths = list(base.rglob("*.py"))
    texts = {}
    for path in sorted(set(paths)):
        relative = path.relative_to(base).as_posix()
        if path.suffix != ".py" or not path.is_file() or relative.startswith(LEFT_OUT):
            continue
        if path.name.startswith("_sysconfigdata"):
            continue
        texts[relative] = path.read_text(encoding="utf-8", errors="replace")
    if not texts:
        raise FileNotFoundError(f"no Python source under {base}; give --code-root")
    return texts


def windows(tokenizer, texts, held_out, tokens=1024):
    """Token windows [<= tokens + 1] of the files on the chosen side, in the order of the files."""
    found = []
    for name, text in texts.items():
        if is_held_out(name) != held_out:
            continue
        ids = tokenizer.encode(text)
        found += [ids[i:i + tokens + 1] for i in range(0, len(ids), tokens)]
    return [w for w in found if len(w) >= 64]
