"""A real vLLM in this process, so that a test sees everything: the scheduler, the pages, the connector.

An engine starts in 5 s once vLLM is imported (20 s), so many checks share one process. Settings are those under which
bf16 is exact: a loaded and a computed prefix give the same bits only when both runs compute in the same shapes, hence
chunks of 1,024 tokens and one request at a time where outputs are compared.
"""
import dataclasses
import gc
import hashlib
import os
import time

os.environ.update({
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
    "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    "VLLM_NO_USAGE_STATS": "1",
})

import torch  # noqa: E402
from kvarve._native import ChainHasher  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402
from vllm.distributed.kv_transfer import get_kv_transfer_group  # noqa: E402

REPOSITORY = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
MODELS = os.environ.get("KVARVE_MODELS", os.path.join(REPOSITORY, "build", "engine", "models"))
SMOLLM2 = os.path.join(MODELS, "smollm2-135m")
GEMMA3 = os.path.join(MODELS, "gemma3-270m")
PAGE_TOKENS = 128
STEPS_MAX = 200_000
SAVE_SECONDS_MAX = 30


@dataclasses.dataclass
class Answer:
    tokens: list[int]
    logprobs: list[tuple[int, float]]  # of the first token, most likely first
    loaded: int  # prompt tokens that were not computed
    ttft: float  # seconds from arrival to the first token
    finish_reason: str
    pages: list[int]  # block ids that the request held when it ended
    report: dict | None  # what the connector answered


class Engine:
    """`settings` go to the connector; `options` to LLM and win over the defaults here."""

    def __init__(self, settings: dict | None = None, *, model: str = SMOLLM2, connector: str | None = "KvarveConnector",
                 policy: str | None = None, **options):
        arguments = dict(
            model=model, dtype="bfloat16", enforce_eager=True, max_model_len=4096, max_num_seqs=4,
            max_num_batched_tokens=1024, block_size=PAGE_TOKENS, enable_prefix_caching=False,
            disable_hybrid_kv_cache_manager=True, seed=0, disable_log_stats=False)
        if connector:
            transfer = dict(kv_connector=connector, kv_role="kv_both", kv_connector_extra_config=settings or {})
            if policy:
                transfer["kv_load_failure_policy"] = policy
            arguments["kv_transfer_config"] = KVTransferConfig(**transfer)
        arguments.update(options)
        self.llm = LLM(**arguments)
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.runner = self.core.model_executor.driver_worker.worker.model_runner
        self._held = {}
        self._watch_frees()
        self._next_request = 0

    def _watch_frees(self) -> None:
        manager = self.scheduler.kv_cache_manager
        free = manager.free

        def watched(request):
            self._held[request.request_id] = list(manager.get_block_ids(request.request_id)[0])
            return free(request)

        manager.free = watched

    # ---- requests

    def submit(self, prompt, *, max_tokens: int = 16, prompt_fields: dict | None = None, skip_read: bool = False,
               skip_write: bool = False, report: bool = False, fault: dict | None = None, **sampling) -> str:
        """Adds a request and returns its id; `prompt` is token ids or a prompt dictionary."""
        wishes = {"kvarve.skip_read": skip_read, "kvarve.skip_write": skip_write, "kvarve.report": report,
                  "kvarve.fault": fault}
        transfer = {name: value for name, value in wishes.items() if value}
        fields = dict(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=5)
        fields.update(sampling)
        if transfer:
            fields["extra_args"] = {"kv_transfer_params": transfer}
        self._next_request += 1
        prompt = prompt if isinstance(prompt, dict) else {"prompt_token_ids": list(prompt), **(prompt_fields or {})}
        return self.llm.llm_engine.add_request(f"test{self._next_request}", prompt, SamplingParams(**fields))

    def step(self) -> list:
        return self.llm.llm_engine.step()

    def run(self, ids: list[str]) -> list[Answer]:
        """Steps until all of `ids` have ended; their answers in the same order."""
        ended = {}
        for _ in range(STEPS_MAX):
            for output in self.step():
                if output.finished:
                    ended[output.request_id] = output
            if len(ended) >= len(ids):
                break
        externals = [request_id.rsplit("-", 1)[0] for request_id in ids]
        return [self._answer(request_id, ended[external]) for request_id, external in zip(ids, externals)]

    def ask(self, prompt, **fields) -> Answer:
        """One request, alone in the engine."""
        return self.run([self.submit(prompt, **fields)])[0]

    def ask_cold(self, prompt, **fields) -> Answer:
        """What the engine answers without the cache: the oracle of every comparison."""
        return self.ask(prompt, skip_read=True, skip_write=True, **fields)

    def abort(self, request_id: str) -> None:
        self.llm.llm_engine.abort_request([request_id], internal=True)

    def _answer(self, request_id, output) -> Answer:
        first = output.outputs[0].logprobs[0] if output.outputs[0].logprobs else {}
        ranked = sorted(first.items(), key=lambda item: item[1].rank)
        return Answer(
            tokens=list(output.outputs[0].token_ids),
            logprobs=[(token, value.logprob) for token, value in ranked],
            loaded=output.num_cached_tokens or 0,
            ttft=output.metrics.first_token_latency if output.metrics else 0.0,
            finish_reason=output.outputs[0].finish_reason,
            pages=self._held.get(request_id, []),
            report=output.kv_transfer_params)

    # ---- what lies in the pages

    def page_bytes(self, block_id: int) -> bytes:
        """All layers of one page as they lie in memory."""
        return b"".join(kv[block_id].contiguous().view(torch.uint8).numpy().tobytes() for kv in self.runner.kv_caches)

    def page_digests(self, answer: Answer, tokens: int) -> list[str]:
        """Of the whole pages that hold the first `tokens` tokens of a request that has ended."""
        whole = tokens // self.page_tokens
        return [hashlib.sha256(self.page_bytes(b)).hexdigest() for b in answer.pages[:whole]]

    @property
    def page_tokens(self) -> int:
        return self.llm.llm_engine.vllm_config.cache_config.block_size

    @property
    def free_pages(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    # ---- what lies in kvarve

    def wait_saved(self) -> None:
        """Until no save is pending."""
        deadline = time.monotonic() + SAVE_SECONDS_MAX
        while self.worker_half.worker.engine.pending_saves:
            if time.monotonic() > deadline:
                raise TimeoutError(f"saves are still pending after {SAVE_SECONDS_MAX} s")
            time.sleep(0.002)

    def chain_keys(self, tokens: list[int], cache_salt: str | None = None):
        scheduler = self.scheduler_half.scheduler
        hasher = ChainHasher(scheduler.tokens, [f"cache_salt={cache_salt}"] if cache_salt else [])
        hasher.extend(list(tokens))
        return hasher.keys(0, hasher.blocks)

    def stored_blocks(self, tokens: list[int], cache_salt: str | None = None) -> list[bytes]:
        """The leading blocks of `tokens` that kvarve holds for this engine, as it holds them."""
        self.wait_saved()
        (space,) = self.scheduler_half.scheduler.spaces
        return space.get(self.chain_keys(tokens, cache_salt))

    def invalidate(self) -> None:
        """Empties this engine's namespace."""
        self.wait_saved()
        for space in self.scheduler_half.scheduler.spaces:
            space.invalidate()

    # ---- the connector's two halves

    @property
    def scheduler_half(self):
        return self.scheduler.connector

    @property
    def worker_half(self):
        return get_kv_transfer_group()

    def metric(self, name: str) -> float:
        """A counter or gauge of vLLM's own registry, summed over its labels."""
        return sum(metric.value for metric in self.llm.get_metrics() if metric.name == name)

    @property
    def tokenizer(self):
        return self.llm.get_tokenizer()

    def close(self) -> None:
        self.core.shutdown()
        self.llm = self.core = self.scheduler = self.runner = None
        gc.collect()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_) -> None:
        self.close()
