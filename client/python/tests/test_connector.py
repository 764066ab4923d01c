"""The class: dispatch, being passive, settings, metrics; and the plugin."""

import logging
import types

import pytest
from conftest import FakeClient, make_request, step, worker_output
from prometheus_client import Counter, Gauge, Histogram
from test_identity import make_config, make_kv
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole, supports_hma

from kvarve.connectors import vllm as plugin
from kvarve.connectors.vllm import connector as module
from kvarve.connectors.vllm import scheduler as scheduler_module
from kvarve.connectors.vllm.connector import KvarveConnector
from kvarve.connectors.vllm.messages import Handshake, Report
from kvarve.connectors.vllm.metrics import PromMetrics


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(scheduler_module, "Client", FakeClient)

    def make(role=KVConnectorRole.SCHEDULER, kv=None, policy="fail", **settings):
        config = make_config()
        config.weight_transfer_config = None
        config.parallel_config.data_parallel_index = 0
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="KvarveConnector", kv_role="kv_both", kv_load_failure_policy=policy,
            kv_connector_extra_config=settings)
        return KvarveConnector(config, role, kv or make_kv())
    return make


def drive(connector):
    """Every hook of both halves, as an engine calls them."""
    request = make_request()
    connector.on_new_request(request)
    assert connector.get_num_new_matched_tokens(request, 0) == (0, False)
    connector.update_state_after_alloc(request, None, 0)
    meta = connector.build_connector_meta(step(new=[(request, 0, 100)], tables={"r": [1, 2, 3, 4]}))
    assert not meta.loads and not meta.saves
    connector.update_connector_output(worker_output())
    assert connector.request_finished(request, []) == (False, None)
    assert connector.has_pending_push_work() is False and connector.reset_cache() is True
    return meta


def test_the_class():
    assert not supports_hma(KvarveConnector) and KvarveConnector.requires_kv_delivery is False
    assert not KvarveConnector.__abstractmethods__
    assert KvarveConnector.requires_piecewise_for_cudagraph({}) is False


def test_active(make):
    connector = make()
    assert connector.passive is None and connector.scheduler.tokens == 128
    drive(connector)
    assert connector.get_block_ids_with_load_errors() == set()


def test_what_a_worker_cannot_register_makes_it_passive(make, monkeypatch):
    connector = make(KVConnectorRole.WORKER)

    def fail(*_):
        raise ValueError("no pages")
    monkeypatch.setattr(module, "Worker", fail)
    connector.register_kv_caches({})
    assert connector.get_handshake_metadata() == Handshake(None, "no pages")
    connector.start_load_kv(None)
    connector.wait_for_save()
    assert not connector.get_transfer_results(set()).finished_recving


@pytest.mark.parametrize("role", list(KVConnectorRole))
def test_passive_is_quiet_and_counted(make, role, caplog, monkeypatch):
    monkeypatch.setattr(module.logger, "propagate", True)
    with caplog.at_level(logging.WARNING):
        connector = make(role, kv=make_kv(groups=2))
    assert connector.passive == "several KV cache groups"
    meta = drive(connector)
    connector.register_kv_caches({})
    connector.handle_preemptions(meta)
    connector.bind_connector_metadata(meta)
    connector.start_load_kv(None)
    connector.wait_for_layer_load("layer")
    connector.save_kv_layer("layer", None, None)
    connector.wait_for_save()
    results = connector.get_transfer_results(set())
    assert not (results.finished_recving or results.failed_recving or results.finished_sending)
    assert connector.build_connector_worker_meta() is None
    connector.clear_connector_metadata()
    connector.shutdown()
    warnings = [r for r in caplog.records if "passive" in r.getMessage()]
    if role == KVConnectorRole.SCHEDULER:
        assert len(warnings) == 1
        assert connector.get_kv_connector_stats().data == {"passive|several KV cache groups": 1}
        assert connector.get_kv_connector_stats().is_empty()
    else:
        assert not warnings and connector.get_kv_connector_stats() is None
        assert connector.get_handshake_metadata() == Handshake(None, "several KV cache groups")


def test_strict_is_an_error(make):
    with pytest.raises(RuntimeError, match="several KV cache groups"):
        make(kv=make_kv(groups=2), strict=True)


def test_strict_sees_what_the_workers_say(make):
    connector = make(strict=True)
    with pytest.raises(RuntimeError, match="a GPU"):
        connector.set_xfer_handshake_metadata_pp_aware({(0, 0): Handshake(None, "a GPU")})
    connector = make()
    connector.set_xfer_handshake_metadata_pp_aware({(0, 0): Handshake(None, "a GPU")})
    assert connector.passive == "a GPU" and connector.scheduler is None
    drive(connector)


def test_an_unknown_vllm_is_passive_and_says_why(make, monkeypatch):
    monkeypatch.setattr(module.identity, "version_difference", lambda: ("vLLM 9 differs in Request: x", False))
    assert make().passive == "vLLM 9 differs in Request: x"


def test_a_block_that_cannot_be_is_passive(make):
    assert "multiple" in make(block_tokens=100).passive


def test_an_unknown_setting_is_an_error(make):
    with pytest.raises(ValueError, match="did you mean 'endpoint'"):
        make(endpont="unix:///x")


def test_the_failure_policy_is_recompute_unless_told_otherwise(make):
    assert make()._kv_transfer_config.kv_load_failure_policy == "recompute"
    assert make(allow_fail_policy=True)._kv_transfer_config.kv_load_failure_policy == "fail"


def test_the_settings_are_logged_once(make, caplog, monkeypatch):
    monkeypatch.setattr(module.logger, "propagate", True)
    with caplog.at_level(logging.INFO):
        make(hold_ms=77)
        make(KVConnectorRole.WORKER, kv=make_kv(groups=2), hold_ms=77)
    assert len([r for r in caplog.records if "hold_ms=77" in r.getMessage()]) == 1


def test_numbers_are_given_once_and_gauges_when_they_change(make):
    connector = make()
    assert connector.get_kv_connector_stats().data == {"pending_saves": 0}
    report = Report({(0, 0): 2}, {}, {}, {"save_blocks": 3, "save_bytes": 300})
    connector.update_connector_output(worker_output(report))
    assert connector.get_kv_connector_stats().data == {"pending_saves": 2, "save_blocks": 3, "save_bytes": 300}
    assert connector.get_kv_connector_stats().is_empty()
    connector.update_connector_output(worker_output(Report({(0, 0): 0}, {}, {}, {})))
    assert connector.get_kv_connector_stats().data == {"pending_saves": 0}


def test_aggregation_adds_counters_and_replaces_gauges():
    total = KvarveConnector.build_kv_connector_stats({"lookups": 2, "pending_saves": 5, "bypass|lora": 1})
    total = total.aggregate(KvarveConnector.build_kv_connector_stats({"lookups": 3, "pending_saves": 1}))
    assert total.reduce() == {"lookups": 5, "pending_saves": 1, "bypass|lora": 1}


def test_prometheus():
    types = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
    config = make_config()
    config.kv_transfer_config = None
    prom = PromMetrics(config, types, ["model_name", "engine"], {0: ["m", "0"], 1: ["m", "1"]})
    prom.observe({"lookups": 2, "bypass|lora": 1, "pending_saves": 4, "passive|x": 1}, 1)
    prom.observe({"lookups": 3, "pending_saves": 0}, 1)
    from prometheus_client import REGISTRY
    labels = {"model_name": "m", "engine": "1"}
    assert REGISTRY.get_sample_value("kvarve_connector_lookups_total", labels) == 5
    assert REGISTRY.get_sample_value("kvarve_connector_pending_saves", labels) == 0
    assert REGISTRY.get_sample_value("kvarve_connector_bypass_total", labels | {"reason": "lora"}) == 1
    assert REGISTRY.get_sample_value("kvarve_connector_passive", labels | {"reason": "x"}) == 1


def test_reports_of_ranks_are_joined():
    a = Report({(0, 0): 1}, {"r": 5, "s": 1}, {"r": 0.1}, {"load_blocks": 2})
    a.counts = __import__("collections").Counter(a.counts)
    joined = a.aggregate(Report({(0, 1): 2}, {"r": 3}, {"r": 0.2}, {"load_blocks": 2}))
    assert joined.pending == {(0, 0): 1, (0, 1): 2} and joined.dropped == {"r": 3, "s": 1}
    assert joined.seconds == {"r": 0.2} and joined.counts == {"load_blocks": 4}


# ---- The plugin.
@pytest.fixture
def engine_args(monkeypatch):
    from vllm.engine.arg_utils import EngineArgs
    original = EngineArgs.create_engine_config
    made = []

    def create(self):
        made.append(self.kv_transfer_config)
        return types.SimpleNamespace(model_config=types.SimpleNamespace(is_hybrid=getattr(self, "is_hybrid", False)))

    monkeypatch.setattr(EngineArgs, "create_engine_config", create)
    yield EngineArgs, made
    assert original is not None


def test_the_name_is_enough(monkeypatch):
    monkeypatch.delenv("KVARVE", raising=False)
    plugin.register()
    plugin.register()
    assert KVConnectorFactory.get_connector_class_by_name("KvarveConnector") is KvarveConnector
    transfer = KVTransferConfig(kv_connector="KvarveConnector", kv_role="kv_both",
                                kv_connector_module_path="kvarve.connectors.vllm.connector")
    assert KVConnectorFactory.get_connector_class(transfer) is KvarveConnector


@pytest.mark.parametrize("value, used", [("1", True), ("0", False), ("", False)])
def test_kvarve_1_makes_it_the_default(monkeypatch, engine_args, value, used):
    cls, made = engine_args
    monkeypatch.setenv("KVARVE", value)
    plugin.register()
    plugin.register()

    class Arguments:
        kv_transfer_config, kv_offloading_size = None, None

    cls.create_engine_config(Arguments())
    assert (made[0] is not None and made[0].kv_connector == "KvarveConnector") == used


def test_an_explicit_configuration_wins(monkeypatch, engine_args):
    cls, made = engine_args
    monkeypatch.setenv("KVARVE", "1")
    plugin.register()

    class Explicit:
        kv_transfer_config, kv_offloading_size = "mine", None

    class Offloading:
        kv_transfer_config, kv_offloading_size = None, 4.0

    cls.create_engine_config(Explicit())
    cls.create_engine_config(Offloading())
    assert made == ["mine", None]


def test_a_hybrid_model_gets_no_connector(monkeypatch, engine_args):
    """vLLM would turn its hybrid manager off for it, without which such a model does not start."""
    cls, made = engine_args
    monkeypatch.delenv("KVARVE_STRICT", raising=False)
    monkeypatch.setenv("KVARVE", "1")
    plugin.register()

    class Hybrid:
        kv_transfer_config, kv_offloading_size, is_hybrid = None, None, True

    cls.create_engine_config(Hybrid())
    assert [transfer and transfer.kv_connector for transfer in made] == ["KvarveConnector", None]
    explicit = Hybrid()
    explicit.kv_transfer_config = KVTransferConfig(kv_connector="KvarveConnector", kv_role="kv_both",
                                                   kv_connector_extra_config={"strict": True})
    with pytest.raises(RuntimeError, match="hybrid"):
        cls.create_engine_config(explicit)
    other = Hybrid()
    other.kv_transfer_config = types.SimpleNamespace(kv_connector="Other")
    cls.create_engine_config(other)
    assert made[-1].kv_connector == "Other"
