#!/usr/bin/env python3
"""kvarve.attend beside PyTorch's scaled_dot_product_attention on the CPU, in turns, in one process.

    PYTHONPATH=build/release/python build/engine/venv/bin/python tests/perf/attention_peer.py

Decode of one token over blocks of 128 tokens that lie anywhere; PyTorch gets the same KV gathered and contiguous,
without the time of gathering it. Errors are against the same in double, of the largest V.
"""
import os
import statistics
import time

import torch

import kvarve

QUERY_HEADS, KV_HEADS, DIM, BLOCK = 32, 8, 128, 128
ROUNDS = 9


def measure(tokens: int, threads: int) -> None:
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    count = tokens // BLOCK
    kv = torch.randn(count, 2, KV_HEADS, BLOCK, DIM).to(torch.bfloat16)
    q = torch.randn(1, QUERY_HEADS, DIM).to(torch.bfloat16)
    blocks = [kv[i].view(torch.uint8).numpy() for i in range(count)]
    k, v = (kv[:, i].transpose(0, 1).reshape(1, KV_HEADS, tokens, DIM).contiguous() for i in range(2))
    q32 = q.float().numpy()
    shape = dict(layer=0, layers=1, kv_heads=KV_HEADS, block_tokens=BLOCK, k_dim=DIM,
                 element_type=kvarve.ElementType.BF16, threads=threads)
    peer_q = q.view(1, QUERY_HEADS, 1, DIM)
    exact = torch.nn.functional.scaled_dot_product_attention(peer_q.double(), k.double(), v.double(), enable_gqa=True)
    mine, peer, ratios = [], [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        out, _ = kvarve.attend(q32, blocks, **shape)
        middle = time.perf_counter()
        theirs = torch.nn.functional.scaled_dot_product_attention(peer_q, k, v, enable_gqa=True)
        end = time.perf_counter()
        mine.append(middle - begin)
        peer.append(end - middle)
        ratios.append((end - middle) / (middle - begin))
    largest = v.abs().max().item()
    error = (torch.frombuffer(out, dtype=torch.float32).view(1, QUERY_HEADS, 1, DIM) - exact).abs().max().item()
    peer_error = (theirs.double() - exact).abs().max().item()
    print(f"{tokens:>8} {threads:>7} {statistics.median(mine) * 1e3:>9.2f} {statistics.median(peer) * 1e3:>9.2f} "
          f"{statistics.median(ratios):>7.2f}x {error / largest:>11.1e} {peer_error / largest:>11.1e}")


def main() -> None:
    print(f"PyTorch {torch.__version__}; {QUERY_HEADS} query and {KV_HEADS} KV heads of {DIM}, bf16\n")
    print("  tokens threads kvarve ms  torch ms  faster       error torch error")
    for threads in (1, os.cpu_count() or 1):
        for tokens in (2048, 8192, 32768):
            measure(tokens, threads)


if __name__ == "__main__":
    main()
