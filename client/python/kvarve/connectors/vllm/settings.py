"""Settings of the connector: kv_connector_extra_config, else KVARVE_<NAME>, else the default."""

from dataclasses import dataclass

from kvarve.settings import RemoteSettings, in_range, one_of


@dataclass(frozen=True)
class Settings(RemoteSettings):
    endpoint: str = "unix:///run/kvarve/kvarved.sock"
    block_tokens: int = in_range(0, 0, 1 << 20)  # a multiple of the engine's block; 0: chosen
    model_digest: str = ""  # names the weights where they are not files
    digest: str = one_of("full", "sampled")  # full: every byte of the weights
    strict: bool = False  # a reason to be passive is an error
    allow_fail_policy: bool = False  # leaves kv_load_failure_policy as it is
    on_reset: str = one_of("isolate", "ignore")  # ignore: reset_cache() changes nothing
    verify: bool = True  # loaded blocks are checked against their checksums
    lookup_timeout_ms: int = in_range(20, 1, 10_000)
    put_timeout_ms: int = in_range(5000, 1, 600_000)
    hold_ms: int = in_range(5000, 0, 60_000)  # what was found waits so long for room in the engine
    prefer_recompute: bool = True  # says what computing a block costs: what comes later than that is computed
    staging_bytes: int = in_range(256 << 20, 1 << 20, 1 << 40)  # of a worker, for saves
    loader_threads: int = in_range(2, 1, 16)
    device: str = one_of("cpu", "cuda")  # where the pages may lie; elsewhere: passive
    load_staging_bytes: int = in_range(256 << 20, 1 << 20, 1 << 40)  # of a CUDA worker that cannot read the arena in place
    faults: bool = False  # for tests: obeys `kvarve.fault` of requests
