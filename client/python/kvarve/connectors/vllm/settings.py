"""Settings of the connector: kv_connector_extra_config, else KVARVE_<NAME>, else the default."""

from dataclasses import dataclass, field
from typing import Any


def _in(default: int, low: int, high: int) -> Any:
    return field(default=default, metadata={"range": (low, high)})


def _of(default: str, *others: str) -> Any:
    return field(default=default, metadata={"choices": (default, *others)})


@dataclass(frozen=True)
class Settings:
    endpoint: str = "unix:///run/kvarve/kvarved.sock"
    # For the kvarved of another host, kvarves://HOST:PORT (kvarve://: plaintext, to this host only unless allowed).
    token_file: str = ""
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_server_name: str = ""  # that its certificate must have, when not the endpoint's
    insecure_plaintext_off_loopback: bool = False
    hedge_reads: bool = False  # a read that takes longer than most did is asked for once more
    block_tokens: int = _in(0, 0, 1 << 20)  # a multiple of the engine's block; 0: chosen
    model_digest: str = ""  # names the weights where they are not files
    digest: str = _of("full", "sampled")  # full: every byte of the weights
    strict: bool = False  # a reason to be passive is an error
    allow_fail_policy: bool = False  # leaves kv_load_failure_policy as it is
    on_reset: str = _of("isolate", "ignore")  # ignore: reset_cache() changes nothing
    verify: bool = True  # loaded blocks are checked against their checksums
    lookup_timeout_ms: int = _in(20, 1, 10_000)
    put_timeout_ms: int = _in(5000, 1, 600_000)
    hold_ms: int = _in(5000, 0, 60_000)  # what was found waits so long for room in the engine
    staging_bytes: int = _in(256 << 20, 1 << 20, 1 << 40)  # of a worker, for saves
    loader_threads: int = _in(2, 1, 16)
    device: str = _of("cpu", "cuda")  # where the pages may lie; elsewhere: passive
    load_staging_bytes: int = _in(256 << 20, 1 << 20, 1 << 40)  # of a CUDA worker that cannot read the arena in place
    faults: bool = False  # for tests: obeys `kvarve.fault` of requests

    def remote(self) -> dict[str, Any]:
        """What reaches another host, as arguments of Client and Engine."""
        return {name: value for name, value in vars(self).items()
                if name.startswith("tls_") or name in ("token_file", "insecure_plaintext_off_loopback", "hedge_reads")}
