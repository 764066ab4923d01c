"""The connector's numbers on vLLM's own /metrics: kvarve_connector_<name>."""

from typing import Any

from prometheus_client import REGISTRY, Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

COUNTERS = {
    "lookups": "Lookups made.", "lookup_failures": "Lookups that kvarve did not answer.",
    "loaded_tokens": "Tokens not computed.", "load_failures": "Loads that ended in recomputing.",
    "load_blocks": "Blocks read.", "load_bytes": "Bytes read.", "save_blocks": "Blocks that kvarve took or had.",
    "save_bytes": "Bytes given to kvarve.", "save_dropped_blocks": "Blocks not saved for want of staging.",
    "save_failed_blocks": "Blocks that kvarve did not take.", "bypass": "Requests neither read nor written, by reason.",
    "host_path_blocks": "Blocks read, by how they came to the device: host, arena, staging, writable.",
    "device_moves": "Moves of a CUDA device's pages, by how: copies, kernel, staged.",
    "device_moves_without_room": "Moves that waited, or saves dropped, because as many as can be were under way.",
    "registration_failures": "Pieces of host memory that the CUDA driver refused to register."}
WITH_REASON = ("bypass", "device_moves", "host_path_blocks", "passive")
GAUGES = {"pending_saves": "Saves not yet answered.", "passive": "1: unused, for this reason."}


class Stats(KVConnectorStats):
    """data: "name" or "name|reason" -> number."""

    def reset(self) -> None:
        self.data.clear()

    def is_empty(self) -> bool:
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> "Stats":
        for key, value in other.data.items():
            self.data[key] = value if key.partition("|")[0] in GAUGES else self.data.get(key, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)


class PromMetrics(KVConnectorPromMetrics):
    def __init__(self, config, types, labels, engines):
        super().__init__(config, types, labels, engines)
        for collector in list(REGISTRY._collector_to_names):  # as vLLM does with its own: of an
            if getattr(collector, "_name", "").startswith("kvarve_connector_"):  # engine before
                REGISTRY.unregister(collector)
        self.metrics = {
            name: types[kind](name="kvarve_connector_" + name, documentation=text,
                              labelnames=labels + ["reason"] * (name in WITH_REASON))
            for kind, table in ((Counter, COUNTERS), (Gauge, GAUGES))
            for name, text in table.items()}

    def observe(self, data: dict[str, Any], engine_idx: int = 0) -> None:
        for key, value in data.items():
            name, _, reason = key.partition("|")
            metric = self.metrics[name].labels(*self.per_engine_labelvalues[engine_idx], *filter(None, [reason]))
            metric.set(value) if name in GAUGES else metric.inc(value)
