"""Events of a tenant's blocks, as an iterator."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from kvarve import _native

_WAIT_SECONDS = 0.2  # how long the interpreter hears of no signal


class Event(NamedTuple):
    sequence: int  # of all events of the node: those of other tenants are left out
    kind: str  # stored, removed, tier_changed, cleared (the whole namespace)
    ns: bytes
    key: bytes  # empty with cleared
    depth: int
    tier: str  # where it was stored or moved to: host, nvme


class Events(Iterator[Event]):
    """Ends at its time or by cancel(), which any thread may call; raises kvarve.Error with code OUT_OF_RANGE when events
    were missed. `cursor` is where another watch goes on behind the event that came last."""

    def __init__(self, stream: _native.EventStream) -> None:
        self._stream, self._pending, self._behind = stream, deque[Event](), (0, 0)
        self.cursor: tuple[int, int] = (0, 0)
        self._fetch(0.0)  # where it begins

    def _fetch(self, wait: float) -> None:
        incarnation, sequence, events = self._stream.next(wait)
        self._pending.extend(Event(*event) for event in events)
        self._behind = (incarnation, sequence)
        if not events:
            self.cursor = self._behind

    def __next__(self) -> Event:
        while not self._pending:
            try:
                self._fetch(_WAIT_SECONDS)
            except _native.Error as error:
                if error.code in ("DEADLINE_EXCEEDED", "CANCELLED"):
                    raise StopIteration from None
                raise
        event = self._pending.popleft()
        self.cursor = (self._behind[0], event.sequence + 1) if self._pending else self._behind
        return event

    def cancel(self) -> None:
        self._stream.cancel()

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *_: Any) -> None:
        self.cancel()
