"""Fixtures of the engine tests. vLLM is imported once (20 s); an engine starts in 5 s, so engines are shared."""
import pytest

from daemon import Daemon
from engine import SMOLLM2, Engine
from prompts import Prompts


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(SMOLLM2)


@pytest.fixture(scope="session")
def prompts(tokenizer):
    """Windows of the novel for SmolLM2; tests that call take() never share a prefix."""
    return Prompts(tokenizer)


@pytest.fixture(scope="module")
def daemon():
    with Daemon(capacity="1GiB") as running:
        yield running


@pytest.fixture(scope="module")
def start(daemon):
    """start(settings, **options) closes the engine started before and returns a new one."""
    running = []

    def start_engine(settings=None, **options):
        while running:
            running.pop().close()
        # A lookup waits long: on a busy machine a miss for want of time would look like a fault of the cache.
        defaults = {"endpoint": daemon.endpoint, "strict": True, "faults": True, "lookup_timeout_ms": 5000}
        running.append(Engine({**defaults, **(settings or {})}, **options))
        return running[-1]

    yield start_engine
    while running:
        running.pop().close()
