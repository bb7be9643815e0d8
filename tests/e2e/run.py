"""Runs one scenario: run.py NAME. `run.py --list` prints the names, one a line."""
import importlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


def scenarios():
    """Every function scenario_X of the modules test_*.py, as "module.X"."""
    names = []
    for f in sorted(HERE.glob("test_*.py")):
        for line in f.read_text().splitlines():
            if line.startswith("def scenario_"):
                names.append(f"{f.stem[5:]}.{line[len('def scenario_'):].split('(')[0]}")
    return names


if __name__ == "__main__":
    if sys.argv[1] == "--list":
        print("\n".join(scenarios()))
    else:
        module, name = sys.argv[1].split(".")
        getattr(importlib.import_module(f"test_{module}"), f"scenario_{name}")()
        print(f"{sys.argv[1]}: passed")
