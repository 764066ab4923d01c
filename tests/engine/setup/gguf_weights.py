"""What both converters share: reading a GGUF checkpoint and writing a safetensors folder."""
import json
import os

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file


def read_fields(reader: GGUFReader) -> dict:
    """The scalar fields: the tokenizer's long lists are left to transformers."""
    return {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith(("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges",
                                "tokenizer.ggml.scores"))
    }


def float_tensors(reader: GGUFReader):
    """Yields (GGUF name, fp32 tensor)."""
    for tensor in reader.tensors:
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type)).astype(np.float32)
        yield tensor.name, torch.from_numpy(values)


def write_folder(folder: str, weights: dict, config: dict, generation: dict | None = None) -> None:
    weights = {name: w.to(torch.bfloat16).contiguous() for name, w in weights.items()}
    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
    if generation is not None:
        with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as f:
            json.dump(generation, f, indent=1)
