"""KvarveConnector: vLLM's hooks, each given to the half that it concerns."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorRole, KVConnectorTransferResults)
from vllm.logger import init_logger
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvarve import Error
from kvarve import settings as reader
from kvarve.connectors.vllm import identity, metrics
from kvarve.connectors.vllm.messages import Handshake, Metadata
from kvarve.connectors.vllm.scheduler import Scheduler
from kvarve.connectors.vllm.settings import Settings
from kvarve.connectors.vllm.worker import Worker

logger = init_logger("vllm.kvarve.connector")


def _hook(half: str, name: str, passive: Any = None, step: bool = False):
    """A hook of one half; `passive` is the answer, or its class, where the cache is not used.
    With `step` the half gets the bound metadata instead of what the engine gives."""
    def hook(self, *args, **kwargs):
        if (to := getattr(self, half)) is None:
            return passive() if isinstance(passive, type) else passive
        return getattr(to, name)(*([self._connector_metadata] if step else args))
    return hook


class KvarveConnector(KVConnectorBase_V1):
    requires_kv_delivery = False  # a cache: a save that is lost is a miss later
    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.settings = reader.read(Settings, self._kv_transfer_config.kv_connector_extra_config)
        self.scheduler = self.worker = None  # the half of this process; none: passive
        self.told: dict[str, float] = {}  # gauges, as they were given to the metrics
        differs, self.same_version = identity.version_difference()
        self.passive = differs or identity.passive_reason(vllm_config, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            try:
                self._start_scheduler(vllm_config, kv_cache_config)
            except ValueError as error:
                self._be_passive(str(error))

    def _start_scheduler(self, config, kv_cache_config) -> None:
        logger.info("kvarve: %s", reader.describe(self.settings))
        if not self.same_version and not self.passive:
            logger.warning("kvarve was not tried with this vLLM, whose interface is the same")
        transfer = self._kv_transfer_config
        if transfer.kv_load_failure_policy != "recompute" and not self.settings.allow_fail_policy:
            logger.info("kvarve: kv_load_failure_policy is 'recompute': a failed load is a miss")
            transfer.kv_load_failure_policy = "recompute"
        if self.passive:
            return self._be_passive(self.passive)
        spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
        tokens = identity.block_tokens(self.settings, config, spec)
        self.scheduler = Scheduler(config, self.settings, spec.block_size, tokens)

    def _be_passive(self, reason: str) -> None:
        self.passive, self.scheduler, self.worker = reason, None, None
        if self._role == KVConnectorRole.SCHEDULER:
            if self.settings.strict:
                raise RuntimeError(f"kvarve is set to strict and cannot be used: {reason}")
            logger.warning("kvarve is passive, the engine serves without it: %s", reason)

    # ---- The scheduler's hooks.
    on_new_request = _hook("scheduler", "on_new_request")
    get_num_new_matched_tokens = _hook("scheduler", "get_num_new_matched_tokens", (0, False))
    update_state_after_alloc = _hook("scheduler", "update_state_after_alloc")
    update_connector_output = _hook("scheduler", "update_connector_output")
    has_pending_push_work = _hook("scheduler", "has_pending_push_work", False)
    build_connector_meta = _hook("scheduler", "build_connector_meta", Metadata)
    request_finished = _hook("scheduler", "request_finished", (False, None))
    reset_cache = _hook("scheduler", "reset_cache", True)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        if self.scheduler and (reason := self.scheduler.connect(metadata)):
            self._be_passive(reason)

    # ---- The worker's hooks.
    shutdown = _hook("worker", "shutdown")
    build_connector_worker_meta = _hook("worker", "build_connector_worker_meta")
    start_load_kv = _hook("worker", "start_load_kv", step=True)
    wait_for_save = _hook("worker", "wait_for_save", step=True)
    get_transfer_results = _hook("worker", "transfer_results", KVConnectorTransferResults, step=True)

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        if not self.passive:
            try:
                self.worker = Worker(self._vllm_config, self._kv_cache_config, self.settings, kv_caches)
            except (ValueError, OSError, Error) as error:
                self._be_passive(str(error))

    def get_handshake_metadata(self) -> Handshake:
        return Handshake(self.worker.descriptor if self.worker else None, self.passive)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing waits: loads end between steps."""

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs) -> None:
        """Blocks hold all layers: saved by wait_for_save."""

    # ---- Metrics: the workers' numbers reach the scheduler's half with their reports.
    def get_kv_connector_stats(self) -> metrics.Stats | None:
        if self._role != KVConnectorRole.SCHEDULER:
            return None
        gauges = {f"passive|{self.passive}": 1} if self.passive else {}
        stats = metrics.Stats()
        if self.scheduler:
            gauges["pending_saves"] = sum(self.scheduler.pending.values())
            counts, self.scheduler.counts = self.scheduler.counts, type(self.scheduler.counts)()
            stats.data.update({key: n for key, n in counts.items() if n})
        stats.data.update({key: n for key, n in gauges.items() if self.told.get(key) != n})
        self.told = gauges
        return stats

    @classmethod
    def build_kv_connector_stats(cls, data=None) -> metrics.Stats:
        return metrics.Stats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return metrics.PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
