"""Through `vllm serve`, separate processes and HTTP: cold, warm, killed and started again, with the same answers."""
import json
import os

import pytest

from engine import GEMMA3, SMOLLM2
from prompts import Prompts
from vllm_server import VllmServer

PREFIX, TAIL = 2048, 32


def transfer_flag(endpoint: str) -> str:
    return json.dumps({"kv_connector": "KvarveConnector", "kv_role": "kv_both",
                       "kv_connector_extra_config": {"endpoint": endpoint, "strict": True}})


@pytest.fixture(scope="module")
def prompt(prompts):
    return prompts.take(PREFIX + TAIL)


def test_killed_server_answers_warm(daemon, prompt):
    server = VllmServer(SMOLLM2, "--kv-transfer-config", transfer_flag(daemon.endpoint))
    try:
        cold = server.complete(prompt)
        server.wait_saved()
        assert server.metric("vllm:external_prefix_cache_hits_total") == 0
        warm = server.complete(prompt)
        assert warm == {**cold, "index": warm["index"]}
        assert server.metric("vllm:external_prefix_cache_hits_total") == PREFIX
    finally:
        server.kill()

    # Another server, found by two environment variables and no flag at all.
    server = VllmServer(SMOLLM2, environment={"KVARVE": "1", "KVARVE_ENDPOINT": daemon.endpoint})
    try:
        again = server.complete(prompt)
        assert again["text"] == cold["text"]
        assert again["logprobs"] == cold["logprobs"]
        assert server.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == PREFIX
        assert server.metric("kvarve_connector_loaded_tokens_total") == PREFIX
        assert server.stop() == 0
    finally:
        server.kill()


def test_two_workers(daemon):
    """Tensor parallelism: each of two workers loads its own part (Gemma's one KV head is on both).

    Pipelines are left to fabricated configurations: vLLM 0.32 fails on CPU with two stages, with or without a connector.
    """
    from transformers import AutoTokenizer

    prompt = Prompts(AutoTokenizer.from_pretrained(GEMMA3)).take(PREFIX + TAIL)
    cpus = sorted(os.sched_getaffinity(0))
    server = VllmServer(GEMMA3, "--tensor-parallel-size", "2", "--kv-transfer-config", transfer_flag(daemon.endpoint),
                        environment={"VLLM_CPU_OMP_THREADS_BIND": f"{cpus[0]}|{cpus[-1]}"})
    try:
        cold = server.complete(prompt)
        server.wait_saved()
        warm = server.complete(prompt)
        assert warm["text"] == cold["text"]
        assert warm["logprobs"] == cold["logprobs"]
        assert server.metric("kvarve_connector_loaded_tokens_total") == PREFIX
        assert server.metric("kvarve_connector_load_failures_total") == 0
        assert server.metric("kvarve_connector_load_blocks_total") == 2 * PREFIX // 128
    finally:
        server.kill()
