import enum
from collections.abc import Sequence
from types import TracebackType
from typing import Any, overload

from kvarve.outcomes import Outcomes

CHAIN_HASH_VERSION: str

class Error(RuntimeError):
    code: str

class ElementType(enum.Enum):
    OPAQUE = 0
    BF16 = 1
    FP16 = 2
    FP32 = 3
    FP8_E4M3 = 4
    FP8_E5M2 = 5
    INT8 = 6

class Keys(Sequence[bytes]):
    def __init__(self, keys: Sequence[bytes]) -> None: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Keys: ...

class ChainHasher:
    def __init__(self, block_tokens: int, extras: Sequence[str | bytes] = ..., key_bytes: int = ...) -> None: ...
    def extend(self, tokens: Sequence[int]) -> int: ...
    def keys(self, begin: int, end: int) -> Keys: ...
    @property
    def tokens(self) -> int: ...
    @property
    def blocks(self) -> int: ...

def chain_keys(
    tokens: Sequence[int], block_tokens: int, extras: Sequence[str | bytes] = ..., key_bytes: int = ...
) -> Keys: ...
def block_bytes(**descriptor: Any) -> int: ...
def namespace_id(**descriptor: Any) -> bytes: ...

class Block:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class View:
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> memoryview: ...
    def checksum(self, index: int) -> int: ...
    @property
    def over_lease_cap(self) -> bool:
        """More was found than may be read in place now: `get` copies it."""
    def release(self) -> None: ...
    def __enter__(self) -> View: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Grants:
    def __len__(self) -> int: ...
    @property
    def lease(self) -> int: ...
    @property
    def over_lease_cap(self) -> bool: ...
    def to_bytes(self) -> bytes: ...
    @staticmethod
    def from_bytes(data: bytes) -> Grants: ...

class Namespace:
    """`traceparent` (W3C trace context): of the call, over gRPC; empty: one of its own."""

    @property
    def handle(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    def lookup(self, keys: Keys | Sequence[bytes], hold: float = ..., recompute_us: int = ...,
               traceparent: str = ...) -> tuple[int, int, int]:
        """(leading blocks found, of them in host memory, hold); the hold keeps them for `hold` seconds.

        `recompute_us`: what computing one block costs; what a device would bring later than that is left out.
        """
    def get(self, keys: Keys | Sequence[bytes], request_id: int = ..., verify: bool = ...,
            traceparent: str = ...) -> list[bytes]: ...
    def view(self, keys: Keys | Sequence[bytes], request_id: int = ..., traceparent: str = ...) -> View: ...
    def acquire(self, keys: Keys | Sequence[bytes], request_id: int = ..., traceparent: str = ...) -> Grants: ...
    def put(
        self,
        keys: Keys | Sequence[bytes],
        blocks: Sequence[Any],
        parent: bytes | None = ...,
        first_depth: int = ...,
        request_id: int = ...,
        recompute_us: int = ...,
        traceparent: str = ...,
    ) -> Outcomes: ...
    def touch(self, keys: Keys | Sequence[bytes], request_id: int = ..., traceparent: str = ...) -> int: ...
    def prefetch(self, keys: Keys | Sequence[bytes], request_id: int = ..., traceparent: str = ...) -> tuple[int, int]:
        """(leading blocks found, of them on their way into memory); waits for none."""
    def invalidate(self, keys: Keys | Sequence[bytes] | None = ..., traceparent: str = ...) -> int: ...

class EventStream:
    def next(self, wait: float) -> tuple[int, int, list[tuple[int, str, bytes, bytes, int, str]]]:
        """(incarnation, sequence, events): where to go on, and what came within `wait`."""
    def cancel(self) -> None: ...

class Client:
    def __init__(
        self,
        endpoint: str = ...,
        engine_id: str = ...,
        role: str = ...,
        ranks: tuple[int, int, int] = ...,
        name: str = ...,
        staging_bytes: int = ...,
        timeout: float = ...,
        put_timeout: float = ...,
        token_file: str = ...,
        tls_ca_file: str = ...,
        tls_certificate_file: str = ...,
        tls_key_file: str = ...,
        tls_server_name: str = ...,
        insecure_plaintext_off_loopback: bool = ...,
        hedge_reads: bool = ...,
    ) -> None: ...
    def wait_ready(self, timeout: float = ...) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def namespace(self, **descriptor: Any) -> Namespace: ...
    def release(self, lease: int) -> None: ...
    def admin_json(self, request: str) -> str: ...
    def tenant_stats(self) -> dict[str, Any]:
        """What this client's tenant has and did since the daemon's start; of a gRPC endpoint."""
    def watch_events(self, timeout: float, incarnation: int = ..., sequence: int = ...) -> EventStream:
        """Use kvarve.Client.events."""

class Engine:
    """A worker's data path: pages, loader threads, the saver. One thread at a time; nothing waits but as said."""

    def __init__(
        self,
        *,
        endpoint: str,
        engine_id: str,
        ranks: tuple[int, int, int],
        name: str,
        staging_bytes: int,
        timeout: float,
        put_timeout: float,
        layers: Sequence[tuple[int, int, int, Sequence[int], Sequence[int]]],
        pages: int,
        descriptor: dict[str, Any],
        threads: int = ...,
        verify: bool = ...,
        token_file: str = ...,
        device: str = ...,
        load_staging_bytes: int = ...,
        tls_ca_file: str = ...,
        tls_certificate_file: str = ...,
        tls_key_file: str = ...,
        tls_server_name: str = ...,
        insecure_plaintext_off_loopback: bool = ...,
        hedge_reads: bool = ...,
    ) -> None:
        """Has two connections, for loads and for saves. layers: (address, address of the storage, its bytes,
        shape [pages, heads, tokens, K and V], strides in bytes), in the order of the descriptor's layers. `pages`
        are the engine's; one may be several of the tensors'. `device`: where the tensors lie, "cpu" or "cuda:UUID"; a
        CUDA engine makes this before its warm-up, and nothing is registered with the driver until its first load,
        save or results."""
    def wait_ready(self, timeout: float = ...) -> None: ...
    def use_salt(self, client_salt: str) -> None:
        """Another namespace from now on; what was gathered and not yet sent is dropped."""
    def load(
        self,
        request: str,
        keys: Keys,
        grants: bytes,
        pages: Sequence[int],
        first_token: int,
        end_token: int,
        stream: int = ...,
    ) -> None:
        """Starts a load of tokens [first_token, end_token) of the blocks of `keys` into `pages`, which hold these,
        behind what the engine's `stream` has."""
    def results(self, wait: float = ...) -> list[tuple[str, str, float]]:
        """(request, error or "", seconds) of each load that ended, once; waits up to `wait` for one or for a save."""
    def save(
        self,
        keys: Keys,
        parent: bytes | None,
        first_block: int,
        pages: Sequence[int],
        access: int,
        stream: int = ...,
    ) -> int:
        """Gathers whole blocks now, puts them later. How many found staging; of the others none is put."""
    @property
    def host_path(self) -> str:
        """How blocks come to the device: host, arena, staging or writable."""
    @property
    def pending_saves(self) -> int:
        """Blocks gathered whose put was not answered yet."""
    def take_counts(self) -> dict[str, int]:
        """Since the last call: "name" or "name|reason", as the connector's metrics are called. Nothing is left out but zeros."""
    def inject(self, kind: str, key: bytes, seconds: float = ...) -> None:
        """A fault, once, for tests: fail_load, delay_load, flip_save of the block of this key."""
    def close(self, wait: float = ...) -> None:
        """Waits for pending saves up to `wait`; ends everything."""

def attend(q: Any, blocks: Sequence[Any], out: Any, lse: Any, **shape: Any) -> None:
    """Use kvarve.attend."""
def key_diff(blocks: Sequence[Any], scores: Any, of_blocks: Any, **shape: Any) -> None:
    """Use kvarve.key_diff."""
def merge_states(outs: Sequence[Any], lses: Sequence[Any], base_two: Sequence[bool], sinks: Any, out: Any, lse: Any,
                 tokens: int, heads: int, dim: int) -> None:
    """Use kvarve.merge_states."""
