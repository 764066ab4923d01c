"""Fabricated vLLM objects and a kvarve that lives in a dictionary."""

import types

import pytest

from kvarve import Error
from kvarve.connectors.vllm import scheduler as scheduler_module
from kvarve.connectors.vllm.messages import Handshake
from kvarve.connectors.vllm.scheduler import Scheduler
from kvarve.connectors.vllm.settings import Settings

PAGE, BLOCK = 32, 64
DESCRIPTOR = dict(model_digest="d", hash_version="h", element_type=1, block_tokens=BLOCK, kv_head_begin=0)


class FakeGrants:
    def __init__(self, lease, keys):
        self.lease, self.keys = lease, keys

    def __len__(self):
        return len(self.keys)

    def to_bytes(self):
        return b"".join(self.keys)


class FakeNamespace:
    def __init__(self, client, descriptor):
        self.client, self.descriptor, self.stored, self.lookups = client, descriptor, set(), 0
        self.costs = []  # that were told, a lookup

    def _leading(self, keys):
        if self.client.down:
            error = Error("no daemon")
            error.code = "UNAVAILABLE"
            raise error
        hit = 0
        while hit < len(keys) and keys[hit] in self.stored:
            hit += 1
        return hit

    def lookup(self, keys, hold=0.0, recompute_us=0):
        self.lookups += 1
        self.costs.append(recompute_us)
        hit = self._leading(keys)
        if not hold:
            return hit, hit, 0
        hit = min(hit, self.client.room())
        return hit, hit, self.client.lease(hit) if hit else 0

    def acquire(self, keys, request_id=0):
        hit = min(self._leading(keys), self.client.room())
        return FakeGrants(self.client.lease(hit) if hit else 0, list(keys)[:hit])


class FakeClient:
    def __init__(self, *args, **options):
        self.options, self.spaces, self.down = options, {}, False
        self.live, self.next, self.cap = {}, 0, 1 << 20  # leases: their blocks; blocks that they may have

    def room(self):
        return self.cap - sum(self.live.values())

    def lease(self, blocks):
        self.next += 1
        self.live[self.next] = blocks
        return self.next

    def namespace(self, **descriptor):
        return self.spaces.setdefault(repr(sorted(descriptor.items())), FakeNamespace(self, descriptor))

    def release(self, lease):
        del self.live[lease]  # KeyError: released twice


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("kvarve.chain.time.monotonic", clock)
    return clock


def make_config(pp=1, tp=1, role="kv_both", **more):
    both = role == "kv_both"
    fields = dict(
        kv_transfer_config=types.SimpleNamespace(engine_id="e", is_kv_consumer=both or role == "kv_consumer",
                                                 is_kv_producer=both or role == "kv_producer"),
        parallel_config=types.SimpleNamespace(pipeline_parallel_size=pp, tensor_parallel_size=tp,
                                              data_parallel_index=0),
        weight_transfer_config=None)
    return types.SimpleNamespace(**fields | more)


def make_scheduler(monkeypatch, config=None, settings=None, ranks=((0, 0),), connect=True):
    monkeypatch.setattr(scheduler_module, "Client", FakeClient)
    half = Scheduler(config or make_config(), settings or Settings(), PAGE, BLOCK)
    if connect:
        assert half.connect({rank: Handshake(DESCRIPTOR | {"kv_head_begin": rank[1], "layer_begin": rank[0]}, None)
                             for rank in ranks}) is None
    return half


@pytest.fixture
def half(monkeypatch):
    return make_scheduler(monkeypatch)


def store(half, request, blocks, space=0):
    """As if the leading blocks of the request were stored."""
    from kvarve import chain_keys
    salt = [f"cache_salt={request.cache_salt}"] if request.cache_salt else []
    half.spaces[space].stored.update(chain_keys(list(request.all_token_ids), BLOCK, salt)[:blocks])


def make_request(req_id="r", tokens=1000, params=None, **more):
    from vllm import SamplingParams
    from vllm.v1.request import Request
    extra = {"kv_transfer_params": params} if params else None
    sampling = SamplingParams(max_tokens=16, extra_args=extra)
    ids = list(range(tokens)) if isinstance(tokens, int) else tokens
    return Request(req_id, ids, sampling, None, **more)


class Blocks:
    """What update_state_after_alloc gets."""

    def __init__(self, table):
        self.table = table

    def get_block_ids(self):
        return (self.table,)


def step(new=(), cached=(), tables=None, drafts=None, finished=(), v2=False, preempted=None):
    """A SchedulerOutput: `new` and `cached` are (request, computed, scheduled)."""
    from vllm.v1.core.sched.output import (CachedRequestData, KVConnectorBlockState, NewRequestData, SchedulerOutput)
    tables = tables or {}
    scheduled = {request.request_id: n for request, _, n in (*new, *cached)}
    rows = [NewRequestData(
        req_id=request.request_id, prompt_token_ids=request.prompt_token_ids, mm_features=[],
        sampling_params=request.sampling_params, pooling_params=None, block_ids=(tables.get(request.request_id, []),),
        num_computed_tokens=computed, lora_request=None,
        prefill_token_ids=list(request.all_token_ids) if v2 else None) for request, computed, _ in new]
    data = CachedRequestData(
        req_ids=[request.request_id for request, _, _ in cached], resumed_req_ids=set(), new_token_ids=[],
        all_token_ids={} if v2 else {r.request_id: list(r.all_token_ids) for r, _, _ in cached},
        new_block_ids=[None for _ in cached], num_computed_tokens=[computed for _, computed, _ in cached],
        num_output_tokens=[request.num_output_tokens for request, _, _ in cached])
    return SchedulerOutput(
        scheduled_new_reqs=rows, scheduled_cached_reqs=data, num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()), scheduled_spec_decode_tokens=drafts or {},
        scheduled_encoder_inputs={}, finished_req_ids=set(finished), free_encoder_mm_hashes=[],
        preempted_req_ids=preempted if v2 else None,
        kv_connector_block_state=KVConnectorBlockState(
            req_ids=set(scheduled), resolve_block_ids=lambda req_id: (tables[req_id],), boundary_state_offloads={}))


def worker_output(report=None, done=(), failed=()):
    from vllm.v1.outputs import KVConnectorOutput
    return KVConnectorOutput(finished_recving=set(done), failed_recving=set(failed), kv_connector_worker_meta=report)


