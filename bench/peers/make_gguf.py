#!/usr/bin/env python3
"""Writes one GGUF per weight format from a GGUF, so that every engine runs the same weights.

    make_gguf.py MODEL.gguf OUT_FOLDER [--formats fp32,bf16,q8_0]

Every matrix is dequantised and stored in the format (vectors stay fp32) by the `gguf` package;
metadata is copied. Files that exist are kept; a file appears only when it is whole. Prints one
"FORMAT PATH" line per file. Needs gguf and numpy.
"""
import argparse
import pathlib
import sys

# Our name of a format: the types of the gguf package that it stands for.
FORMATS = {"fp32": ("F32", "ALL_F32"), "bf16": ("BF16", "MOSTLY_BF16"),
           "q8_0": ("Q8_0", "MOSTLY_Q8_0"), "q4_1": ("Q4_1", "MOSTLY_Q4_1")}


def path_of(source, folder, name):
    return pathlib.Path(folder) / f"{pathlib.Path(source).stem}.{name}.gguf"


def copy_metadata(reader, writer, file_type):
    import gguf
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if name == "general.file_type":
            writer.add_file_type(file_type)
            continue
        value_type = field.types[0]
        sub_type = field.types[-1] if value_type == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), value_type, sub_type=sub_type)


def convert(source, name, target):
    """Writes `source` with every matrix stored in the format `name`."""
    import gguf
    import numpy as np
    type_name, file_type = FORMATS[name]
    kind = gguf.GGMLQuantizationType[type_name]
    reader = gguf.GGUFReader(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".part")
    writer = gguf.GGUFWriter(partial, reader.get_field("general.architecture").contents())
    copy_metadata(reader, writer, gguf.LlamaFileType[file_type])
    for t in reader.tensors:
        data = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        data = data.reshape([int(d) for d in reversed(t.shape)])
        if data.ndim == 1:
            writer.add_tensor(t.name, data)
        else:
            writer.add_tensor(t.name, gguf.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--formats", default="fp32,bf16,q8_0")
    a = p.parse_args()
    for name in a.formats.split(","):
        if name not in FORMATS:
            sys.exit(f"unknown format {name}: one of {', '.join(FORMATS)}")
        target = path_of(a.model, a.folder, name)
        if not target.exists():
            convert(a.model, name, target)
        print(name, target, flush=True)


if __name__ == "__main__":
    main()
