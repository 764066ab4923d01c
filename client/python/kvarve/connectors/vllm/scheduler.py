"""The scheduler's half: what is stored, what a step loads and saves, when leases end."""

import secrets
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from vllm.logger import init_logger

from kvarve import Client, Error
from kvarve.chain import Chain, identities
from kvarve.connectors.vllm.messages import Handshake, Job, Metadata, Rank
from kvarve.prefill import PrefillSpeed

logger = init_logger("vllm.kvarve.scheduler")

DRAIN_SECONDS = 10.0  # how long saves that make no progress keep an idle engine stepping


@dataclass
class _Request:
    request: Any
    chain: Chain
    params: dict
    bypass: str | None  # why its KV is neither read nor written
    read: bool
    write: bool
    loading: int = 0  # tokens of the load under way
    tainted: bool = False  # its pages hold KV of earlier weights
    finished: bool = False
    loaded: int = 0
    load_seconds: float = 0.0


def bypass_reason(request) -> str | None:
    """An allow-list: whatever else there is is computed and never stored."""
    kinds = {"prompt_embeds": request.prompt_embeds is not None, "resumable": request.resumable,
             "mixed_prompt": request.prompt_is_token_ids is not None,
             "pooling": request.pooling_params is not None,
             "multimodal": bool(request.mm_features), "lora": request.lora_request is not None}
    return next((kind for kind, is_one in kinds.items() if is_one), None)


class Scheduler:
    def __init__(self, config, settings, page_tokens: int, block_tokens: int):
        transfer, parallel = config.kv_transfer_config, config.parallel_config
        self.engine_id, self.settings = transfer.engine_id, settings
        self.page, self.tokens = page_tokens, block_tokens
        self.reads, self.writes = transfer.is_kv_consumer, transfer.is_kv_producer
        self.ranks = [(p, t) for p in range(parallel.pipeline_parallel_size)
                      for t in range(parallel.tensor_parallel_size)]
        self.client = Client(settings.endpoint, engine_id=self.engine_id, role="scheduler", staging_bytes=0,
                             ranks=(parallel.data_parallel_index, 0, 0), name="vllm scheduler",
                             timeout=settings.lookup_timeout_ms / 1e3, **settings.remote())
        self.descriptors: list[dict] = []
        self.spaces: list[Any] = []  # none until the workers have told their geometry
        self.space_of: dict[Rank, int] = {}
        self.requests: dict[str, _Request] = {}
        self.loads: list[Job] = []
        self.counts: Counter = Counter()
        self.pending: dict[Rank, int] = {}
        self.progress_at, self.speed = time.monotonic(), PrefillSpeed(settings.prefer_recompute)
        self.salt = self.reset = ""  # of the namespaces, and of the chains in them
        if config.weight_transfer_config is not None:
            self.reset_cache()

    # ---- Start.
    def connect(self, handshakes: dict[Rank, Handshake]) -> str | None:
        """Opens every rank's namespace; answers why the engine must be passive."""
        if sorted(handshakes) != self.ranks:
            return "not every rank has told its geometry"
        if reason := next((h.reason for h in handshakes.values() if h.reason), None):
            return reason
        expected = handshakes[0, 0].descriptor | {"block_tokens": self.tokens}
        for rank in self.ranks:
            descriptor = handshakes[rank].descriptor
            for name in ("model_digest", "hash_version", "element_type", "block_tokens"):
                if descriptor[name] != expected[name]:
                    return f"rank {rank} differs in {name}"
            if descriptor not in self.descriptors:  # ranks with the same heads share a namespace
                self.descriptors.append(descriptor)
            self.space_of[rank] = self.descriptors.index(descriptor)
        self._open()
        return None

    def _open(self) -> None:
        try:
            self.spaces = [self.client.namespace(**descriptor | {"client_salt": self.salt})
                           for descriptor in self.descriptors]
        except Error as error:  # kvarved or the client refuses: the engine goes on without the cache
            self.spaces = []
            logger.warning("kvarve is not used any more: %s", error)

    # ---- Before a request runs.
    def on_new_request(self, request) -> _Request:
        params, bypass = request.kv_transfer_params or {}, bypass_reason(request)
        self.counts[f"bypass|{bypass}"] += bypass is not None
        extras = identities(cache_salt=request.cache_salt, reset=self.reset)
        state = self.requests[request.request_id] = _Request(
            request, Chain(self.client, self.tokens, self.page, extras), params, bypass,
            read=self.reads and not bypass and not params.get("kvarve.skip_read"),
            write=self.writes and not bypass and not params.get("kvarve.skip_write"))
        return state

    def get_num_new_matched_tokens(self, request, computed: int) -> tuple[int | None, bool]:
        state = self.requests.get(request.request_id) or self.on_new_request(request)
        state.tainted = False  # asked only about a request that starts from nothing
        if not self.spaces or not state.read or request.skip_reading_prefix_cache:
            return 0, False
        offered = state.chain.offer(request.all_token_ids, computed, self.spaces,
                                    self.settings.hold_ms / 1e3, self.speed.micros(self.tokens))
        return offered, bool(offered)  # None: asked again in a later step

    def update_state_after_alloc(self, request, blocks, external: int) -> None:
        if external == 0:  # nothing to load, or the second call, after the load
            return
        state = self.requests[request.request_id]
        part, grants = state.chain.acquire(external, blocks.get_block_ids()[0], self.spaces)
        state.loading = external
        self.loads.append(Job(
            request.request_id, part, state.chain.access, self._fault(state), state.chain.computed,
            state.chain.computed + external, {rank: grants[space] for rank, space in self.space_of.items()}))

    def _fault(self, state: _Request) -> dict:
        return state.params.get("kvarve.fault", {}) if self.settings.faults else {}

    # ---- A step.
    def build_connector_meta(self, output) -> Metadata:
        self.speed.begin(output.total_num_scheduled_tokens)
        meta = Metadata(self.loads, [], self.salt, output.total_num_scheduled_tokens == 0)
        self.loads = []
        cached = output.scheduled_cached_reqs
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        computed.update(zip(cached.req_ids, cached.num_computed_tokens))
        for req_id, scheduled in output.num_scheduled_tokens.items():
            state = self.requests.get(req_id)
            if state and state.write and self.spaces and not (state.loading or state.tainted):
                drafts = len(output.scheduled_spec_decode_tokens.get(req_id, ()))
                table = output.kv_connector_block_state.get_block_ids(req_id)[0]
                if part := state.chain.unsaved(computed[req_id] + scheduled - drafts,
                                               state.request.all_token_ids, table):
                    meta.saves.append(Job(req_id, part, state.chain.access, self._fault(state)))
        return meta

    def update_connector_output(self, output) -> None:
        self.speed.end()
        if report := output.kv_connector_worker_meta:
            if report.counts or report.pending != self.pending:
                self.progress_at = time.monotonic()
            self.pending.update(report.pending)
            self.counts.update(report.counts)
            for req_id in self.requests.keys() & report.dropped.keys():
                self.requests[req_id].chain.not_saved(report.dropped[req_id])
            for req_id in self.requests.keys() & report.seconds.keys():
                self.requests[req_id].load_seconds = report.seconds[req_id]
        for req_id in output.finished_recving or ():
            state = self.requests.get(req_id)
            if state and state.loading:  # else another connector's
                self._load_ended(req_id, state, req_id in output.failed_recving)

    def _load_ended(self, req_id: str, state: _Request, failed: bool) -> None:
        state.chain.release()
        if failed:  # computed from its first token; saved again, which replaces what was bad
            state.read = False
            state.chain.forget()
            self.counts["load_failures"] += 1
        else:
            state.loaded += state.loading
            self.counts["loaded_tokens"] += state.loading
        state.loading = 0
        if state.finished:
            self._drop(req_id, state)

    # ---- Ends.
    def request_finished(self, request, block_ids) -> tuple[bool, dict | None]:
        state = self.requests.get(request.request_id)
        if state is None:
            return False, None
        state.chain.unhold()
        state.finished = True
        if not state.loading:  # else the leases stay until the workers have reported
            self._drop(request.request_id, state)
        lookup_ms, load_ms = state.chain.seconds * 1e3, state.load_seconds * 1e3
        logger.debug("kvarve: request %s of %d tokens: loaded %d, saved to block %d, lookup %.2f ms, "
                     "load %.2f ms, bypass: %s %s", request.request_id, request.num_tokens, state.loaded,
                     state.chain.saved, lookup_ms, load_ms, state.bypass, state.chain.error)
        if not (state.params.get("kvarve.report") or state.params.get("report")):
            return False, None
        return False, {"kvarve.report": dict(
            hit_tokens=state.loaded, tier="host" if state.loaded else None, bypass=state.bypass,
            milliseconds=round(lookup_ms + load_ms, 3), lookup_ms=round(lookup_ms, 3),
            load_ms=round(load_ms, 3))}

    def _drop(self, req_id: str, state: _Request) -> None:
        del self.requests[req_id]
        self.counts["lookups"] += state.chain.lookups
        self.counts["lookup_failures"] += state.chain.failures

    def has_pending_push_work(self) -> bool:
        return any(self.pending.values()) and time.monotonic() - self.progress_at < DRAIN_SECONDS

    def reset_cache(self) -> bool:
        """From now on the namespace is this engine's own, and of this reset: the weights may be others."""
        if self.settings.on_reset == "isolate":
            self.reset = secrets.token_hex(16)
            for state in self.requests.values():
                state.chain.forget(identities(cache_salt=state.request.cache_salt, reset=self.reset))
                state.tainted = True
            if not self.salt:  # one is enough for all resets: nothing closes a namespace
                self.salt = f"{self.engine_id}/{self.reset}"  # never that of an engine before
                self._open()
        return True
