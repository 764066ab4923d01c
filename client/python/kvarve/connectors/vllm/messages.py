"""What the two halves tell each other."""

from collections import Counter
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata, KVConnectorMetadata, KVConnectorWorkerMetadata)

from kvarve.chain import Part

Rank = tuple[int, int]  # in the pipeline, in tensor parallelism


@dataclass
class Handshake(KVConnectorHandshakeMetadata):
    descriptor: dict | None  # the namespace of the rank's blocks
    reason: str | None  # why the worker is passive


@dataclass
class Job:
    req_id: str
    part: Part
    access: int  # of the request: one touch a block
    fault: dict
    first_token: int = 0  # of a load; the first block may hold earlier ones, whose pages stay
    end_token: int = 0
    grants: dict[Rank, bytes | None] = field(default_factory=dict)  # None: failed already


@dataclass
class Metadata(KVConnectorMetadata):
    loads: list[Job] = field(default_factory=list)
    saves: list[Job] = field(default_factory=list)
    salt: str = ""  # of the namespaces
    idle: bool = True  # the step computes nothing


@dataclass
class Report(KVConnectorWorkerMetadata):
    pending: dict[Rank, int]  # saves under way
    dropped: dict[str, int]  # by request, the first block that found no staging
    seconds: dict[str, float]  # of ended loads
    counts: Counter

    def aggregate(self, other: "Report") -> "Report":
        for mine, theirs, choose in ((self.dropped, other.dropped, min), (self.seconds, other.seconds, max)):
            mine.update({k: choose(v, mine.get(k, v)) for k, v in theirs.items()})
        self.pending.update(other.pending)
        self.counts.update(other.counts)
        return self
