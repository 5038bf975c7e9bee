"""The embedded model in the forms that other engines want, written once and kept in the cache folder."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

from engine.cache_folder import cache_folder, locked
from engine.model_source import resolve_model

FORMATS = ("F32", "F16", "Q8_0", "Q4_1", "Q4_0")


def gguf_as(model: str, format_name: str) -> Path:
    """A GGUF file whose matrices, embeddings included, have one of FORMATS."""
    source = resolve_model(model).path
    target = cache_folder("bench") / f"{source.stem}.{format_name}-all.gguf"
    with locked(target.with_suffix(".lock")):
        if not target.is_file():
            unfinished = target.with_suffix(".part")
            _convert(source, GGMLQuantizationType[format_name], unfinished)
            unfinished.replace(target)
    return target


def huggingface_folder(model: str) -> Path:
    """A folder with config.json and fp32 safetensors."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = resolve_model(model).path
    target = cache_folder("bench") / f"{source.stem}-fp32"
    with locked(target.with_suffix(".lock")):
        if not (target / "config.json").is_file():
            read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
            read.config.__dict__.pop("quantization_config", None)
            plain = AutoModelForCausalLM.from_config(read.config)
            plain.load_state_dict(read.state_dict())
            AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
            plain.save_pretrained(target)
    return target


def _convert(source: Path, kind: GGMLQuantizationType, target: Path) -> None:
    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value, types = field.contents(), field.types
        item = types[-1] if types[0] is GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, types[0], item)
    for tensor in reader.tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        chosen = kind if values.ndim > 1 else GGMLQuantizationType.F32
        data = values if chosen is GGMLQuantizationType.F32 else quantize(values, chosen)
        writer.add_tensor(tensor.name, data, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Prints the path of the form named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("form", choices=(*FORMATS, "huggingface"))
    parser.add_argument("--model", default="smollm2")
    options = parser.parse_args()
    form: str = options.form
    path = huggingface_folder(options.model) if form == "huggingface" else gguf_as(options.model, form)
    print(path)


if __name__ == "__main__":
    main()
