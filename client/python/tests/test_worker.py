"""The worker's half, with tensors in host memory and an engine side that only remembers."""

import types

import pytest
import torch
from test_identity import make_config, make_kv
from vllm.v1.kv_cache_interface import FullAttentionSpec

from kvarve import Error
from kvarve.chain import Part
from kvarve.connectors.vllm import worker as module
from kvarve.connectors.vllm.messages import Job, Metadata
from kvarve.connectors.vllm.settings import Settings
from kvarve.devices import device_name, stream_source

SPEC = FullAttentionSpec(block_size=32, num_kv_heads=4, head_size=64, dtype=torch.bfloat16)


class FakeEngine:
    def __init__(self, **options):
        self.options = options
        self.started, self.ended, self.saved, self.salts, self.waits, self.faults = [], [], [], [], [], []
        self.staging, self.pending_saves, self.counts = 100, 0, {}

    def use_salt(self, salt):
        self.salts.append(salt)

    def load(self, request, *arguments):
        if arguments[1] == b"bad":
            raise Error("grants")
        self.started.append((request, *arguments))

    def results(self, wait=0.0):
        self.waits.append(wait)
        ended, self.ended = self.ended, []
        return ended

    def save(self, keys, parent, first, pages, access, stream):
        assert stream == 0
        if parent == "bad":
            raise Error("gather")
        taken = min(len(keys), self.staging)
        self.staging -= taken
        self.saved.append((first, taken))
        return taken

    def inject(self, *fault):
        self.faults.append(fault)

    def take_counts(self):
        counts, self.counts = self.counts, {}
        return counts


@pytest.fixture
def make(monkeypatch):
    group = types.SimpleNamespace(rank_in_group=0)
    monkeypatch.setattr(module, "get_pp_group", lambda: group)
    monkeypatch.setattr(module, "get_tp_group", lambda: group)
    monkeypatch.setattr(module, "Engine", FakeEngine)
    config = make_config()
    config.kv_transfer_config = types.SimpleNamespace(engine_id="e")
    config.parallel_config.data_parallel_index = 0
    return lambda tensors: module.Worker(config, make_kv(SPEC), Settings(model_digest="d"), tensors)


@pytest.fixture
def worker(make):
    return make(caches())


def caches(pages=10, names=range(8)):
    memory = torch.zeros(len(names), pages, 4, 32, 128, dtype=torch.bfloat16)
    return {f"model.layers.{i}.self_attn.attn": memory[n] for n, i in enumerate(names)}


def load(req_id, grants=b"g", **fault):
    return Job(req_id, Part(1, 4, ["k1", "k2", "k3"], [5, 6]), 7, fault, 160, 512, {(0, 0): grants})


def step(worker, **fields):
    meta = Metadata(**fields)
    worker.start_load_kv(meta)
    worker.wait_for_save(meta)
    return worker.transfer_results(meta)


def test_registering(worker):
    layers = worker.engine.options["layers"]
    assert len(layers) == 8 and worker.engine.options["pages"] == 10
    address, storage, size, shape, strides = layers[1]
    assert tuple(shape) == (10, 4, 32, 128) and strides == [4 * 32 * 128 * 2, 32 * 128 * 2, 128 * 2, 2]
    assert address - storage == 10 * 4 * 32 * 128 * 2 and size == 8 * 10 * 4 * 32 * 128 * 2
    assert worker.descriptor["layer_count"] == 8 and worker.descriptor["model_digest"]


@pytest.mark.parametrize("tensors, reason", [
    (caches(names=range(7)), "not the KV group's"),
    (caches(names=range(9)), "not the KV group's"),
    (dict.fromkeys(caches(), caches()["model.layers.0.self_attn.attn"]), "not the KV group's"),
    ({name: torch.empty(10, 4, 32, 128, device="meta") for name in caches()}, "KV group's"),
])
def test_what_cannot_be_registered(make, tensors, reason):
    with pytest.raises(ValueError, match=reason):
        make(tensors)


def test_devices_that_are_known():
    cpu, meta = torch.empty(1), torch.empty(1, device="meta")
    assert device_name([cpu, cpu], "cpu") == "cpu" and stream_source(cpu)() == 0
    for tensors, wanted, reason in (([cpu], "cuda", "on cpu, where device is cuda"), ([meta], "cpu", "on meta"),
                                    ([cpu, meta], "cpu", "several devices")):
        with pytest.raises(ValueError, match=reason):
            device_name(tensors, wanted)


def test_a_load_is_reported_once(worker):
    assert not step(worker, loads=[load("a"), load("b")]).finished_recving
    [first, _] = worker.engine.started
    assert first[:6] == ("a", ["k1", "k2", "k3"], b"g", [5, 6], 32, 384)
    worker.engine.ended = [("a", "", 0.5)]
    results = step(worker)
    assert results.finished_recving == {"a"} and not results.failed_recving
    worker.engine.ended = [("b", "checksum", 0.5)]
    results = step(worker)
    assert results.finished_recving == results.failed_recving == {"b"}
    assert not step(worker).finished_recving and not worker.loading
    assert worker.build_connector_worker_meta().seconds == {"a": 0.5, "b": 0.5}
    assert worker.build_connector_worker_meta() is None


def test_loads_that_cannot_start_fail_at_once(worker):
    results = step(worker, loads=[load("a", None), load("b", b"bad"), load("c")])
    assert results.finished_recving == results.failed_recving == {"a", "b"}
    assert worker.loading == {"c"}
    assert not step(worker).finished_recving


def test_only_idle_steps_wait_and_only_for_something(worker):
    step(worker, idle=True)
    step(worker, loads=[load("a")], idle=False)
    step(worker, idle=True)
    worker.engine.ended = [("a", "", 0.1)]
    step(worker, idle=True)
    step(worker, idle=True)
    worker.engine.pending_saves = 1
    step(worker, idle=True)
    wait = module.IDLE_WAIT_SECONDS
    assert worker.engine.waits == [0.0, 0.0, wait, wait, 0.0, wait] and wait <= 0.002


def test_saves_are_gathered_within_the_step_and_drops_are_told(worker):
    worker.engine.staging = 5
    part = Part(2, 6, ["a", "b", "c", "d"], [1, 2, 3, 4])
    broken = Part(2, 6, ["a", "b", "c", "d"], [1, 2, 3, 4], "bad")
    step(worker, saves=[Job("r", part, 1, {}), Job("s", part, 1, {}), Job("t", broken, 1, {})], idle=False)
    assert worker.engine.saved == [(2, 4), (2, 1)]
    report = worker.build_connector_worker_meta()
    assert report.dropped == {"s": 3} and worker.build_connector_worker_meta() is None


def test_pending_saves_are_told_when_they_change(worker):
    worker.engine.pending_saves = 2
    assert worker.build_connector_worker_meta().pending == {(0, 0): 2} and worker.build_connector_worker_meta() is None
    worker.engine.pending_saves = 0
    assert worker.build_connector_worker_meta().pending == {(0, 0): 0} and worker.build_connector_worker_meta() is None


def test_a_reset_reaches_the_engine_side_once(worker):
    for _ in range(3):
        step(worker, salt="private")
    assert worker.engine.salts == ["private"]


def test_faults(worker):
    part = Part(2, 4, ["a", "b"], [1, 2])
    step(worker, loads=[load("a", fail_load=3, delay_load_ms=250), load("b"), load("c", fail_load=9)],
         saves=[Job("r", part, 1, {"flip_save": 3}), Job("s", part, 1, {"flip_save": 4})], idle=False)
    assert worker.engine.faults == [("fail_load", "k3", 0.003), ("delay_load", "k1", 0.25), ("flip_save", "b", 0.003)]
