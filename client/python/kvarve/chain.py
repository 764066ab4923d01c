"""One request's chain of blocks against the namespaces of all ranks of its engine.

For connectors: what the scheduling process of an engine asks of kvarve, whatever the engine.
"""

import random
import time
from dataclasses import dataclass
from typing import Any, Sequence

from kvarve._native import ChainHasher, Error

MAX_LOOKUP_BLOCKS = 8192  # of the data plane
MAX_ACQUIRE_BLOCKS = 4096
RETRY_SECONDS = 0.1  # before blocks that found no staging, or no daemon, are handed out again
RECHECK_SECONDS = 0.1  # an engine may ask about a waiting request in every step
LOADING_RECHECK_SECONDS = 0.006  # the first time while blocks come from a device; doubled each time,
LOADING_RECHECK_SECONDS_MAX = 0.2  # up to this: ten lookups in the first second, five in those after it
LOADING_SECONDS = 5.0  # then what is in memory has to do


@dataclass
class Part:
    """Blocks [first, last) of a chain and the engine's pages that they lie in."""

    first: int
    last: int
    keys: Any
    pages: list[int]
    parent: bytes | None = None


def identities(**named: str | None) -> list[str]:
    """What a chain's keys depend on beside its tokens: those that are there."""
    return [f"{name}={value}" for name, value in named.items() if value]


class Chain:
    """`spaces` are the namespaces of the engine's ranks: a block is found only when all have it.

    Whoever drops a Chain calls unhold() and release() first. Not thread-safe.
    """

    def __init__(self, client: Any, block_tokens: int, page_tokens: int, extras: Sequence[str] = ()):
        self._client, self._tokens, self._page = client, block_tokens, page_tokens
        self._hasher, self._extras = ChainHasher(block_tokens, list(extras)), list(extras)
        self._holds: list[int] = []
        self._leases: list[int] = []
        self._asked: tuple | None = None
        self._asked_at = 0.0
        self._loading_since: float | None = None  # blocks come from a device
        self._waited_out = False  # they took too long
        self._recheck = RECHECK_SECONDS
        self.computed = 0  # tokens that the engine had when it was asked about the last time
        self.offered = 0  # tokens that it could load after them
        self.hit = 0  # leading blocks known to be stored
        self.saved = 0  # leading blocks handed out to be saved
        self._save_after = 0.0
        self.access = random.getrandbits(63)  # one touch a block, however often it is asked for
        self.lookups = self.failures = 0
        self.seconds = 0.0  # spent waiting for kvarve
        self.error = ""  # the last one

    # ---- Reading.
    def offer(self, tokens: Sequence[int], computed: int, spaces: Sequence[Any],
              hold_seconds: float, recompute_us: int = 0) -> int | None:
        """How many tokens after the `computed` ones can be loaded. 0 when kvarve cannot answer.

        None: blocks are on their way from a device into memory; to be asked again.
        `recompute_us` is what computing a block costs: what would come later than that is not offered; 0: unknown.
        `tokens` are all of the request's. One lookup for equal arguments; again after 100 ms, or earlier
        while blocks are on their way.
        """
        now, asked = time.monotonic(), (len(tokens), computed)
        if self._asked != asked or now - self._asked_at >= self._recheck:
            if self._asked != asked:
                self._loading_since, self._waited_out = None, False
            self._asked, self._asked_at, self.computed = asked, now, computed
            self._extend(tokens)
            self.hit, in_memory = self._lookup(spaces, hold_seconds, recompute_us)
            self._note_loading(now, in_memory)
            most = computed // self._tokens + MAX_ACQUIRE_BLOCKS
            # The page of the last token is left to the engine, which computes that token in any case.
            end = min(min(self.hit, most) * self._tokens, (len(tokens) - 1) // self._page * self._page)
            self.offered = max(0, end - computed)
            if self.offered == 0:
                self.unhold()
        # What the engine has itself is not waited for.
        return self.offered if self._loading_since is None or self.offered == 0 else None

    def _note_loading(self, now: float, in_memory: int) -> None:
        if in_memory == self.hit or self._waited_out:
            self._loading_since, self._recheck, self.hit = None, RECHECK_SECONDS, in_memory
        elif self._loading_since is None:
            self._loading_since, self._recheck = now, LOADING_RECHECK_SECONDS
        elif now - self._loading_since < LOADING_SECONDS:
            self._recheck = min(2 * self._recheck, LOADING_RECHECK_SECONDS_MAX)
        else:
            self._loading_since, self._recheck, self.hit = None, RECHECK_SECONDS, in_memory
            self._waited_out = True

    def _extend(self, tokens: Sequence[int]) -> None:
        self._hasher.extend(tokens[self._hasher.tokens:])

    def _lookup(self, spaces: Sequence[Any], hold_seconds: float, recompute_us: int) -> tuple[int, int]:
        """Leading blocks that all spaces have, and how many of those are in memory."""
        self.unhold()
        keys, begin = self._hasher.keys(0, min(self._hasher.blocks, MAX_LOOKUP_BLOCKS)), time.perf_counter()
        self.lookups += 1
        in_memory = len(keys)
        try:
            for space in spaces:
                if len(keys) == 0:
                    break
                found, host, hold = space.lookup(keys, hold_seconds, recompute_us)
                recompute_us = 0  # one decides for all: their blocks come side by side
                if hold:
                    self._holds.append(hold)
                keys, in_memory = keys[:found], min(in_memory, host)
        except Error as error:
            self.failures, self.error, keys = self.failures + 1, str(error), keys[:0]
        self.seconds += time.perf_counter() - begin
        return len(keys), min(in_memory, len(keys))

    def acquire(self, external: int, table: Sequence[int],
                spaces: Sequence[Any]) -> tuple[Part, list[bytes | None]]:
        """Leases the blocks of the `external` tokens that were offered, whose pages are in `table`.

        Grants a namespace; None where a block is gone.
        """
        end = self.computed + external
        first, last = self.computed // self._tokens, -(-end // self._tokens)
        pages = list(table[self.computed // self._page : -(-end // self._page)])
        part = Part(first, last, self._hasher.keys(first, last), pages)
        grants: list[bytes | None] = []
        begin = time.perf_counter()
        for space in spaces:
            try:
                granted = space.acquire(part.keys, self.access)
                if len(granted) < last - first and self._holds:  # perhaps beside them over the lease cap
                    if granted.lease:
                        self._client.release(granted.lease)
                    self.unhold()
                    granted = space.acquire(part.keys, self.access)
                if granted.lease:
                    self._leases.append(granted.lease)
                grants.append(granted.to_bytes() if len(granted) == last - first else None)
            except Error as error:
                self.error = str(error)
                grants.append(None)
        self.unhold()
        self.seconds += time.perf_counter() - begin
        return part, grants

    def unhold(self) -> None:
        """Ends what the last lookup holds."""
        for hold in self._holds:
            self._client.release(hold)
        self._holds.clear()

    def release(self) -> None:
        """Ends the leases of acquire()."""
        for lease in self._leases:
            self._client.release(lease)
        self._leases.clear()

    # ---- Writing.
    def unsaved(self, end: int, tokens: Sequence[int], table: Sequence[int]) -> Part | None:
        """The whole blocks of the first `end` tokens that are neither stored nor handed out yet.

        Ends before a page 0 in the block table: the engine's null page. Hands them out.
        """
        first, last = max(self.saved, self.hit), min(end, len(tokens)) // self._tokens
        if last <= first or time.monotonic() < self._save_after:
            return None
        self._extend(tokens)
        ratio = self._tokens // self._page
        pages = list(table[first * ratio : last * ratio])
        whole = (pages.index(0) if 0 in pages else len(pages)) // ratio
        if whole == 0:
            return None
        self.saved = first + whole
        return Part(first, self.saved, self._hasher.keys(first, self.saved), pages[: whole * ratio],
                    self._hasher.keys(first - 1, first)[0] if first else None)

    def not_saved(self, first: int) -> None:
        """Block `first` and those after it were handed out in vain: unsaved() gives them again, a little later."""
        self.saved = min(self.saved, first)
        self._save_after = time.monotonic() + RETRY_SECONDS

    def forget(self, extras: Sequence[str] | None = None) -> None:
        """Nothing is known to be stored: after a failed load, or under other `extras` from now on."""
        self.unhold()
        if extras is not None and list(extras) != self._extras:
            self._hasher, self._extras = ChainHasher(self._tokens, list(extras)), list(extras)
        self._asked, self.hit, self.saved, self.offered = None, 0, 0, 0
        self._loading_since, self._waited_out = None, False
