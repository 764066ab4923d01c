"""Goal: over a host tier that holds a third of what 30 multi-turn sessions need, the default policy finds at least as much
as plain LRU, and the engine needs no more seconds for their prompts. Long mode only: some minutes.

Method: the same requests in the same order, one at a time, each policy in a daemon and an engine of its own. Every turn of
a session sends all of it again and some pages more; every fifth request is a prompt that nobody sends again.
"""
import dataclasses
import os
import random

import pytest

from daemon import Daemon
from prompts import Prompts
from table import format_table

PAGE = 32
SESSIONS, TURNS, PAGES_A_TURN = 30, 8, (2, 5)
ONCE_IN, ONCE_PAGES = 5, (8, 16)
APART = 397  # tokens of the text between the beginnings of two prompts, so that no two have a prefix in common
BLOCK_BYTES = PAGE * 23_040  # of SmolLM2-135M in bf16


@dataclasses.dataclass
class Schedule:
    prompts: list[list[int]]  # in the order in which they are sent
    session_blocks: int


def schedule(prompts: Prompts, seed: int = 1) -> Schedule:
    rng = random.Random(seed)
    turns = [[sum(pages[:n + 1]) * PAGE for n in range(TURNS)]
             for pages in ([rng.randint(*PAGES_A_TURN) for _ in range(TURNS)] for _ in range(SESSIONS))]
    texts = [prompts.window(n * APART, lengths[-1]) for n, lengths in enumerate(turns)]
    blocks = sum(lengths[-1] for lengths in turns) // PAGE
    order, once = [], SESSIONS
    while waiting := [n for n in range(SESSIONS) if turns[n]]:
        if rng.randrange(ONCE_IN) == 0:
            order.append(prompts.window(once * APART, rng.randint(*ONCE_PAGES) * PAGE))
            once += 1
        else:
            n = rng.choice(waiting)
            order.append(texts[n][:turns[n].pop(0)])
    # A token more, to be computed whatever is loaded.
    return Schedule([prompt + [1] for prompt in order], blocks)


@dataclasses.dataclass
class Sum:
    prompt_tokens: int = 0
    loaded_tokens: int = 0
    seconds: float = 0

    @property
    def ratio(self) -> float:
        return self.loaded_tokens / self.prompt_tokens


def run(policy: str, sent: Schedule, start) -> Sum:
    capacity = sent.session_blocks // 3 * BLOCK_BYTES
    with Daemon(capacity=str(capacity), cache__policy=policy) as daemon:
        engine = start({"endpoint": daemon.endpoint, "block_tokens": PAGE}, block_size=PAGE)
        engine.ask_cold(sent.prompts[0][::-1], max_tokens=1)  # kernels and threads of a new process
        found = Sum()
        for prompt in sent.prompts:
            answer = engine.ask(prompt, max_tokens=1)
            engine.wait_saved()
            found.prompt_tokens += len(prompt)
            found.loaded_tokens += answer.loaded
            found.seconds += answer.ttft
        print(f"\n{policy}: {found.ratio:.4f}, {found.seconds:.1f} s", flush=True)
        return found


@pytest.mark.skipif("KVARVE_TEST_LONG" not in os.environ, reason="minutes a policy: ./dev test --long")
def test_the_default_policy_is_no_worse_than_lru(start, prompts):
    sent = schedule(prompts)
    # The first engine of a process is the slower one: not the one that is compared with.
    by_policy = {policy: run(policy, sent, start) for policy in ("hazard", "lru")}
    rows = [[policy, str(len(sent.prompts)), f"{of.prompt_tokens:,}", f"{of.loaded_tokens:,}", f"{of.ratio:.4f}",
             f"{of.seconds:.1f}"] for policy, of in by_policy.items()]
    print("\n" + format_table(["policy", "requests", "tokens", "loaded", "hit ratio", "prefill s"], rows))
    lru, hazard = by_policy["lru"], by_policy["hazard"]
    assert lru.ratio > 0.2
    assert hazard.ratio >= lru.ratio
    assert hazard.seconds <= lru.seconds
