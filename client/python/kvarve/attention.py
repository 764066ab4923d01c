"""Attention where blocks lie: over the host tier's memory, for the part of a context that is in no GPU.

    with space.view(keys) as view:
        out, lse = kvarve.attend(q, [view[i] for i in range(len(view))], layer=3, layers=32, kv_heads=8,
                                 block_tokens=128, k_dim=128, element_type=kvarve.ElementType.BF16, q_position=9000)
    out, lse = kvarve.merge_states([out, gpu_out], [lse, gpu_lse])   # exact: as if nothing had been apart

Queries, outputs and log-sum-exps (natural; of nothing: minus infinity) are buffers of fp32, numpy arrays for instance;
results are memoryviews of shape [tokens][heads][dim] and [tokens][heads], which numpy.asarray takes as they are.
"""

import math
from typing import Any, Sequence

from kvarve import _native

MLA_DIM, MLA_LATENT = 576, 512


def _floats(shape: tuple[int, ...]) -> memoryview:
    return memoryview(bytearray(4 * math.prod(shape))).cast("f", shape)


def attend(q: Any, blocks: Sequence[Any], *, layer: int, layers: int, kv_heads: int, block_tokens: int, k_dim: int,
           element_type: Any, v_dim: int | None = None, kv_tokens: int | None = None, kv_position: int = 0,
           q_position: int | None = None, scale: float | None = None, soft_cap: float = 0.0, window: int = 0,
           threads: int = 1) -> tuple[memoryview, memoryview]:
    """Attention of `q`, fp32 [tokens][heads][k_dim], at most 16 tokens, over one layer of `blocks`.

    `kv_tokens`: how many of the blocks' tokens there are (default: all); `kv_position`: of the first; `q_position`: of
    the first query token (default: the last of the blocks' positions are the queries' own). v_dim defaults to k_dim; 0
    is MLA, where V is the first 512 elements of K. scale defaults to 1 / sqrt(k_dim). Raises kvarve.Error.
    """
    shape = memoryview(q).shape
    if len(shape) != 3 or shape[2] != k_dim:
        raise ValueError(f"q has shape {shape}: it must be [tokens][heads][{k_dim}]")
    v_dim = k_dim if v_dim is None else v_dim
    kv_tokens = len(blocks) * block_tokens if kv_tokens is None else kv_tokens
    q_position = kv_position + kv_tokens - shape[0] if q_position is None else q_position
    out, lse = _floats((shape[0], shape[1], v_dim or MLA_LATENT)), _floats(shape[:2])
    _native.attend(q, blocks, out, lse, q_tokens=shape[0], q_heads=shape[1], layer=layer, layers=layers,
                   kv_heads=kv_heads, block_tokens=block_tokens, k_dim=k_dim, v_dim=v_dim, element_type=element_type,
                   kv_tokens=kv_tokens, kv_position=kv_position, q_position=q_position,
                   scale=1 / math.sqrt(k_dim) if scale is None else scale, soft_cap=soft_cap, window=window,
                   threads=threads)
    return out, lse


def key_diff(blocks: Sequence[Any], *, layer: int, layers: int, kv_heads: int, block_tokens: int, k_dim: int,
             element_type: Any, v_dim: int | None = None, kv_tokens: int | None = None) -> tuple[memoryview, memoryview]:
    """How like the others each key is (KeyDiff, arXiv 2504.15364), of one layer of consecutive `blocks`.

    Scores [kv_heads][tokens], each key's cosine to the mean of its head's unit keys, and of each block the mean of its
    tokens': what is largest is the most redundant. `kv_tokens`, v_dim: as attend's. Raises kvarve.Error.
    """
    tokens = len(blocks) * block_tokens if kv_tokens is None else kv_tokens
    scores, of_blocks = _floats((kv_heads, tokens)), _floats((-(-tokens // block_tokens),))
    _native.key_diff(blocks, scores, of_blocks, layer=layer, layers=layers, kv_heads=kv_heads, block_tokens=block_tokens,
                     k_dim=k_dim, v_dim=k_dim if v_dim is None else v_dim, element_type=element_type, tokens=tokens)
    return scores, of_blocks


def merge_states(outs: Sequence[Any], lses: Sequence[Any], *, bases: Sequence[str] | None = None,
                 sinks: Any = None) -> tuple[memoryview, memoryview]:
    """Joins the answers of the same queries over different parts of a context, [tokens][heads][dim] and [tokens][heads].

    `bases`: of each part's log-sum-exps, "e" (natural: kvarve's, FlashAttention's; the default) or "2" (FlashInfer's).
    `sinks`: fp32, a logit of each head that takes part once and has no value. The answer's are natural.
    """
    tokens, heads, dim = memoryview(outs[0]).shape
    bases = ["e"] * len(outs) if bases is None else bases
    if wrong := set(bases) - {"e", "2"}:
        raise ValueError(f"bases of log-sum-exps are 'e' or '2', not {sorted(wrong)}")
    out, lse = _floats((tokens, heads, dim)), _floats((tokens, heads))
    _native.merge_states(outs, lses, [base == "2" for base in bases], sinks, out, lse, tokens, heads, dim)
    return out, lse
