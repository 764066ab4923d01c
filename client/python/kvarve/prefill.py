"""How long an engine takes to compute a prompt's tokens, told from the steps that it makes."""

import statistics
import time
from collections import deque

MIN_TOKENS = 128  # a step with fewer spends its time on something else
SAMPLES, LEAST_SAMPLES = 15, 3
UINT32_MAX = 2**32 - 1


class PrefillSpeed:
    """The median of the last steps that computed many tokens. Not thread-safe.

    A step lasts from its begin to its end, or to the begin of the next one.
    """

    def __init__(self, is_told: bool = True) -> None:
        self._is_told = is_told
        self._tokens, self._since = 0, 0.0
        self._samples: deque[float] = deque(maxlen=SAMPLES)  # seconds a token

    def begin(self, tokens: int) -> None:
        self.end()
        self._tokens, self._since = tokens, time.monotonic()

    def end(self) -> None:
        if self._tokens >= MIN_TOKENS:
            self._samples.append((time.monotonic() - self._since) / self._tokens)
        self._tokens = 0

    def micros(self, tokens: int) -> int:
        """What so many tokens cost; 0: not known yet, or not to be told."""
        if len(self._samples) < LEAST_SAMPLES or not self._is_told:
            return 0
        return min(max(1, round(statistics.median(self._samples) * tokens * 1e6)), UINT32_MAX)
