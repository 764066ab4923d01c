"""The worker's half: pages and transfers are C++; loads run beside the steps, saves are gathered in them."""

from collections import Counter
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.logger import init_logger

from kvarve import Engine, Error
from kvarve.chain import Part
from kvarve.connectors.vllm import identity
from kvarve.connectors.vllm.messages import Job, Metadata, Report
from kvarve.devices import device_name, layers_of, stream_source

logger = init_logger("vllm.kvarve.worker")

IDLE_WAIT_SECONDS = 0.002  # of a step that computes nothing while transfers run
SHUTDOWN_SECONDS = 2.0


class Worker:
    """ValueError, OSError or kvarve.Error: why the engine must be passive."""

    def __init__(self, config, kv_cache_config, settings, kv_caches: dict[str, Any]):
        self.rank = (get_pp_group().rank_in_group, get_tp_group().rank_in_group)
        names = identity.layer_order(kv_cache_config.kv_cache_groups[0].layer_names)
        caches = [kv_caches[name] for name in names if name in kv_caches]
        if not len(names) == len(kv_caches) == len({cache.data_ptr() for cache in caches}):
            raise ValueError("the registered layers are not the KV group's")
        self.descriptor = identity.descriptor(config, kv_cache_config, settings, *self.rank)
        self.stream = stream_source(caches[0])
        self.engine = Engine(
            layers=layers_of(caches), pages=kv_cache_config.num_blocks, descriptor=self.descriptor,
            threads=settings.loader_threads, verify=settings.verify, endpoint=settings.endpoint,
            engine_id=config.kv_transfer_config.engine_id, name="vllm worker", staging_bytes=settings.staging_bytes,
            ranks=(config.parallel_config.data_parallel_index, *self.rank), **settings.remote(),
            timeout=settings.lookup_timeout_ms / 1e3, put_timeout=settings.put_timeout_ms / 1e3,
            device=device_name(caches, settings.device), load_staging_bytes=settings.load_staging_bytes)
        self.salt, self.told = "", 0  # pending saves, as the scheduler knows
        self.loading: set[str] = set()
        self.failed: set[str] = set()  # loads that did not start
        self.dropped: dict[str, int] = {}
        self.times: dict[str, float] = {}

    def start_load_kv(self, meta: Metadata) -> None:
        if meta.salt != self.salt:  # a reset: what still waits to be stored is of before
            self.salt = meta.salt
            self.engine.use_salt(meta.salt)
        for load in meta.loads:
            self.loading.add(load.req_id)
            try:
                self._load(load)
            except (Error, ValueError) as error:
                logger.debug("kvarve: the load of %s did not start: %s", load.req_id, error)
                self.failed.add(load.req_id)

    def _load(self, load: Job) -> None:
        if (grants := load.grants[self.rank]) is None:
            raise ValueError("blocks that were found are gone")
        self._inject(load.fault, load.part, "load")
        skipped = load.part.first * self.descriptor["block_tokens"]
        self.engine.load(load.req_id, load.part.keys, grants, load.part.pages,
                         load.first_token - skipped, load.end_token - skipped, self.stream())

    def _inject(self, fault: dict, part: Part, step: str) -> None:
        """Faults of a test: {"fail_load": block, "delay_load_ms": ms, "flip_save": block}."""
        for kind, value in fault.items():
            block = part.first if kind == "delay_load_ms" else value
            if step in kind and part.first <= block < part.last:
                self.engine.inject(kind.removesuffix("_ms"), part.keys[block - part.first], value / 1e3)

    def wait_for_save(self, meta: Metadata) -> None:
        for save in meta.saves:
            part = save.part
            try:
                self._inject(save.fault, part, "save")
                taken = self.engine.save(part.keys, part.parent, part.first, part.pages, save.access, self.stream())
            except Error as error:
                logger.warning("kvarve: a save of %s failed: %s", save.req_id, error)
                continue
            if taken < part.last - part.first:
                self.dropped[save.req_id] = part.first + taken

    def transfer_results(self, meta: Metadata) -> KVConnectorTransferResults:
        waits = meta.idle and not self.failed and (self.loading or self.engine.pending_saves)
        ends = self.engine.results(IDLE_WAIT_SECONDS if waits else 0.0)
        failed, self.failed = self.failed | {req_id for req_id, error, _ in ends if error}, set()
        done = failed | {req_id for req_id, _, _ in ends}
        self.times.update({req_id: seconds for req_id, _, seconds in ends})
        self.loading -= done
        return KVConnectorTransferResults(finished_recving=done, failed_recving=failed)

    def build_connector_worker_meta(self) -> Report | None:
        counts, pending = Counter(self.engine.take_counts()), self.engine.pending_saves
        if not (counts or self.dropped or self.times or pending != self.told):
            return None
        report = Report({self.rank: pending}, self.dropped, self.times, counts)
        self.dropped, self.times, self.told = {}, {}, pending
        return report

    def shutdown(self) -> None:
        self.engine.close(SHUTDOWN_SECONDS)
