"""The speed of prefill is the median of long steps, and nothing before there were enough of them."""

import pytest

from kvarve import prefill
from kvarve.prefill import MIN_TOKENS, SAMPLES, PrefillSpeed


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(prefill.time, "monotonic", lambda: now[0])
    return now


def step(speed, clock, tokens, seconds):
    speed.begin(tokens)
    clock[0] += seconds
    speed.end()


def test_nothing_is_said_before_three_long_steps(clock):
    speed = PrefillSpeed()
    for _ in range(2):
        step(speed, clock, 1000, 0.5)
        step(speed, clock, MIN_TOKENS - 1, 7)  # decoding
        assert speed.micros(16) == 0
    step(speed, clock, 1000, 0.5)
    assert speed.micros(16) == 8000


def test_a_pause_or_a_first_slow_step_does_not_count(clock):
    speed = PrefillSpeed()
    for seconds in (30, 0.2, 0.2, 0.2, 90):
        step(speed, clock, 1000, seconds)
    assert speed.micros(1000) == 200_000


def test_a_step_without_an_end_lasts_to_the_next(clock):
    speed = PrefillSpeed()
    for _ in range(4):
        speed.begin(1000)
        clock[0] += 0.1
    assert speed.micros(1000) == 100_000


def test_it_follows_the_engine(clock):
    speed = PrefillSpeed()
    for seconds in [0.1] * SAMPLES + [0.4] * (SAMPLES // 2 + 1):
        step(speed, clock, 1000, seconds)
    assert speed.micros(1000) == 400_000


def test_it_is_never_more_than_the_wire_takes_nor_nothing(clock):
    speed = PrefillSpeed()
    for _ in range(3):
        step(speed, clock, 128, 1e6)
    assert speed.micros(1 << 20) == 2**32 - 1
    for _ in range(SAMPLES):
        step(speed, clock, 128, 0)
    assert speed.micros(16) == 1
