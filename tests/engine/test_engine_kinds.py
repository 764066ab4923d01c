"""Other engines than the plain one: other checkpoints, odd page sizes, too little memory, sliding windows."""
import json
import os
import shutil

import numpy as np
import pytest

from compare import assert_same_answer, differing
from engine import GEMMA3, SMOLLM2
from prompts import Prompts

BLOCK, TAIL = 128, 32


def checkpoint_with(folder, change) -> str:
    """A copy of SmolLM2 whose weights `change` has edited in place."""
    import torch
    from safetensors.torch import load_file, save_file

    os.makedirs(folder)
    for name in os.listdir(SMOLLM2):
        if name != "model.safetensors":
            shutil.copy(os.path.join(SMOLLM2, name), folder)
    weights = load_file(os.path.join(SMOLLM2, "model.safetensors"))
    with torch.no_grad():
        change(weights)
    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    return str(folder)


def one_norm_vector(weights):
    weights["model.layers.17.post_attention_layernorm.weight"][100] *= 1.25


def last_layer_only(weights):
    weights["model.layers.29.mlp.down_proj.weight"][-1, -1] += 0.5


def test_checkpoints_that_differ_share_nothing(start, prompts, tmp_path):
    prompt = prompts.take(4 * BLOCK + TAIL)
    engine = start()
    engine.ask(prompt)
    engine.wait_saved()
    assert engine.ask(prompt).loaded == 4 * BLOCK
    for change in (one_norm_vector, last_layer_only):
        engine = start(model=checkpoint_with(tmp_path / change.__name__, change))
        cold = engine.ask(prompt)
        assert cold.loaded == 0, change.__name__
        engine.wait_saved()
        warm = engine.ask(prompt)
        assert warm.loaded == 4 * BLOCK
        assert warm.tokens[0] == cold.tokens[0]
    engine = start()  # the first checkpoint's blocks are still there
    assert engine.ask(prompt).loaded == 4 * BLOCK


def test_blocks_of_256_over_pages_of_32_with_a_local_hit(start, prompts):
    """The engine's own cache has 96 tokens, kvarve 512: only pages from token 96 on may be written."""
    local, stored = 96, 512
    engine = start({"block_tokens": 256}, dtype="float32", block_size=32, max_num_batched_tokens=256,
                   enable_prefix_caching=True)

    def ask_with_local_hit(prompt, mark):
        assert engine.llm.reset_prefix_cache()
        pages = engine.ask_cold(prompt[:local + 4], max_tokens=1).pages[:local // 32]
        if mark:  # bytes that no load and no forward pass would write
            for page in pages:
                for kv in engine.runner.kv_caches:
                    kv[page].fill_(7.0)
        before = [engine.page_bytes(page) for page in pages]
        got = engine.ask(prompt)
        assert got.pages[:local // 32] == pages
        assert [engine.page_bytes(page) for page in pages] == before
        assert got.loaded == stored  # local and external together
        return got

    prompt = prompts.take(stored + TAIL)
    cold = engine.ask(prompt)
    digests = engine.page_digests(cold, stored)
    assert len(engine.stored_blocks(prompt)) == stored // 256
    warm = ask_with_local_hit(prompt, mark=False)
    assert_same_answer(warm, cold)
    assert differing(engine.page_digests(warm, stored)[local // 32:], digests[local // 32:]) == []
    ask_with_local_hit(prompt, mark=True)


def test_preempted_requests_resume_right(start, prompts):
    """15 pages for three growing requests. fp32, because the batch alone changes what bf16 answers."""
    engine = start(dtype="float32", num_gpu_blocks_override=15, max_model_len=1024)
    asked = [prompts.take(500) for _ in range(3)]

    def stored():
        return [[np.frombuffer(block, np.float32) for block in engine.stored_blocks(prompt + answer.tokens)]
                for prompt, answer in zip(asked, alone)]

    alone = [engine.ask(prompt, max_tokens=100) for prompt in asked]
    want = stored()
    assert [len(blocks) for blocks in want] == [4, 4, 4]
    engine.invalidate()
    for _ in range(2):  # nothing stored before, then everything
        before = engine.metric("vllm:num_preemptions")
        together = engine.run([engine.submit(prompt, max_tokens=100) for prompt in asked])
        assert engine.metric("vllm:num_preemptions") > before
        assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
        for blocks, wanted in zip(stored(), want):
            assert len(blocks) == len(wanted)
            for block, right in zip(blocks, wanted):
                np.testing.assert_allclose(block, right, atol=2e-4, rtol=2e-4)


def test_gemma3_with_sliding_windows(start):
    """vLLM turns its hybrid manager off for a connector without group support, which leaves one group."""
    engine = start(model=GEMMA3)
    bos = engine.tokenizer.bos_token_id
    prompt = [bos, *Prompts(engine.tokenizer).take(2048 + TAIL - 1)]
    cold = engine.ask(prompt)
    digests = engine.page_digests(cold, 2048)
    assert cold.loaded == 0
    engine.wait_saved()
    warm = engine.ask(prompt)
    assert warm.loaded == 2048
    assert_same_answer(warm, cold)
    assert differing(engine.page_digests(warm, 2048), digests) == []
    assert_same_answer(engine.ask_cold(prompt), cold)


def test_a_hybrid_model_starts_without_the_cache(start, tmp_path):
    """Mamba and attention layers: several groups, whatever vLLM does, and no start at all with a connector that knows no
    groups. Random weights; it is only started, since vLLM's Mamba layers compute nothing on CPU."""
    config = {"architectures": ["JambaForCausalLM"], "model_type": "jamba", "num_hidden_layers": 4, "attn_layer_offset": 1,
              "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2, "num_experts": 1,
              "num_experts_per_tok": 1, "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": 512, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
              "mamba_dt_rank": 8, "use_mamba_kernels": False, "torch_dtype": "bfloat16", "max_position_embeddings": 4096,
              "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = dict(model=str(tmp_path), load_format="dummy", skip_tokenizer_init=True, block_size=None, max_model_len=1024,
                   disable_hybrid_kv_cache_manager=None)
    engine = start({"strict": False, "model_digest": "random"}, **options)
    assert engine.scheduler.connector is None
    assert len(engine.scheduler.kv_cache_config.kv_cache_groups) > 1
    with pytest.raises(RuntimeError, match="hybrid KV cache manager"):
        start({"strict": True, "model_digest": "random"}, **options)
