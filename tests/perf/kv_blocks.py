#!/usr/bin/env python3
"""Writes the KV that a model computes for a text as blocks in kvarve's canonical layout, for `kvarve_bench codec`.

usage: kv_blocks.py MODEL_DIR TEXT OUT [--tokens N] [--block-tokens N]   (with a Python that has transformers)
The file: six u32 (layers, KV heads, tokens, k_dim, v_dim, bytes of an element), then blocks, bf16.
"""
import argparse
import struct

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("out")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--block-tokens", type=int, default=64)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    with open(args.text, encoding="utf-8") as f:
        ids = AutoTokenizer.from_pretrained(args.model).encode(f.read(), add_special_tokens=False)[:args.tokens]
    with torch.no_grad():
        layers = model(torch.tensor([ids]), use_cache=True).past_key_values.layers
    # Sliding-window layers keep the last tokens only; all are taken from where all have them.
    tokens = min(layer.keys.shape[2] for layer in layers)
    heads, k_dim = layers[0].keys.shape[1], layers[0].keys.shape[3]
    v_dim = layers[0].values.shape[3]
    with open(args.out, "wb") as out:
        out.write(struct.pack("<6I", len(layers), heads, args.block_tokens, k_dim, v_dim, 2))
        for begin in range(0, tokens - args.block_tokens + 1, args.block_tokens):
            for layer in layers:
                for part in (layer.keys, layer.values):
                    rows = part[0, :, part.shape[2] - tokens:][:, begin:begin + args.block_tokens]
                    out.write(rows.contiguous().view(torch.uint8).numpy().tobytes())


if __name__ == "__main__":
    main()
