"""kvarve.Engine against a real kvarved: what an engine saved comes back into other pages, and only there."""

import random
import sys
import time
from pathlib import Path

import pytest
import torch

import kvarve

sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "engine"))
from daemon import Daemon  # noqa: E402

LAYERS, HEADS, PAGE, DIM, BLOCK, PAGES = 3, 2, 32, 16, 64, 40
FIELDS = dict(model="m", model_digest="d", element_type=kvarve.ElementType.BF16, layer_count=LAYERS, layer_total=LAYERS,
              kv_head_count=HEADS, kv_head_total=HEADS, k_dim=DIM, v_dim=DIM, block_tokens=BLOCK,
              block_bytes=LAYERS * HEADS * BLOCK * 2 * DIM * 2, hash_version=kvarve.CHAIN_HASH_VERSION)
WAIT_SECONDS_MAX = 20


@pytest.fixture(scope="module")
def daemon():
    with Daemon(capacity="256MiB") as daemon:
        yield daemon


class Rig:
    """An engine of two processes in one: a scheduling client, and pages with their Engine."""

    def __init__(self, daemon, name, pages=PAGES, page_tokens=PAGE, order=(0, 1, 2, 3, 4), fields=FIELDS,
                 remote=False, **options):
        shape = [LAYERS, pages, HEADS, page_tokens, 2 * DIM]
        memory = torch.randint(-30000, 30000, [shape[axis] for axis in order], dtype=torch.int16)
        self.memory = memory.permute([order.index(axis) for axis in range(5)])  # [layer, page, head, token, dim]
        self.engine_id = f"{name}-{random.getrandbits(32)}"
        self.fields = fields | {"client_salt": name}
        where = (dict(endpoint=daemon.remote_endpoint, token_file=daemon.token_file) if remote
                 else dict(endpoint=daemon.endpoint))
        self.scheduler = kvarve.Client(engine_id=self.engine_id, role="scheduler", staging_bytes=0, timeout=2.0, **where)
        self.scheduler.wait_ready(10)
        self.space = self.scheduler.namespace(**self.fields)
        layers = [(layer.data_ptr(), layer.untyped_storage().data_ptr(), layer.untyped_storage().nbytes(), layer.shape,
                   [2 * stride for stride in layer.stride()]) for layer in self.memory]
        self.engine = kvarve.Engine(**dict(
            **where, engine_id=self.engine_id, ranks=(0, 0, 0), name="rig", staging_bytes=8 << 20,
            timeout=2.0, put_timeout=5.0, layers=layers, pages=PAGES, descriptor=self.fields) | options)
        self.engine.wait_ready(10)

    def rows(self, pages, split=1):
        """[layer, head, token, dim] of these pages of the engine."""
        ids = [page * split + i for page in pages for i in range(split)]
        return torch.cat([self.memory[:, i] for i in ids], dim=2)

    def save(self, keys, pages, parent=None, first=0):
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        taken = self.engine.save(keys, parent, first, pages, 1)
        while self.engine.pending_saves and time.monotonic() < deadline:
            self.engine.results(0.01)
        assert self.engine.pending_saves == 0
        return taken

    def load(self, keys, pages, first_token=0, end_token=None, request="r"):
        grants = self.space.acquire(keys)
        assert len(grants) == len(keys)
        self.engine.load(request, keys, grants.to_bytes(), pages, first_token, end_token or len(keys) * BLOCK)
        return grants.lease

    def result(self):
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < deadline:
            if results := self.engine.results(0.05):
                [(request, error, seconds)] = results
                assert seconds >= 0 and self.engine.results() == []
                return request, error
        raise AssertionError("a load has no end")


ORDERS = [(0, 1, 2, 3, 4), (0, 1, 3, 2, 4), (1, 0, 2, 3, 4), (1, 2, 0, 3, 4)]


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_round_trip(daemon, request, order, remote):
    rig = Rig(daemon, request.node.name, order=order, remote=remote)
    keys = kvarve.chain_keys(list(range(256)), BLOCK)
    source, target = [7, 3, 30, 1, 2, 21, 22, 5], [10, 11, 39, 13, 0, 14, 15, 16]
    before = rig.memory.clone()
    assert rig.save(keys, source) == 4
    assert rig.engine.take_counts() == {"save_blocks": 4, "save_bytes": 4 * FIELDS["block_bytes"]}
    assert torch.equal(rig.memory, before)
    lease = rig.load(keys, target)
    assert rig.result() == ("r", "")
    rig.scheduler.release(lease)
    assert torch.equal(rig.rows(target), rig.rows(source))
    others = [page for page in range(PAGES) if page not in target]
    assert torch.equal(rig.rows(others), torch.cat([before[:, page] for page in others], dim=2))
    assert rig.engine.take_counts()["load_blocks"] == 4
    # Another engine, of another layout, reads the same bytes.
    other = Rig(daemon, request.node.name, order=ORDERS[(ORDERS.index(order) + 1) % len(ORDERS)])
    other.load(keys, target)
    assert other.result() == ("r", "")
    assert torch.equal(other.rows(target), rig.rows(source))
    rig.engine.close(1.0)
    other.engine.close(1.0)


def test_a_part_of_the_first_block(daemon, request):
    rig = Rig(daemon, request.node.name)
    keys = kvarve.chain_keys(list(range(128)), BLOCK)
    rig.save(keys, [1, 2, 3, 4])
    before = rig.memory.clone()
    rig.load(keys, [10, 11, 12], first_token=PAGE)
    assert rig.result() == ("r", "")
    assert torch.equal(rig.rows([10, 11, 12]), rig.rows([2, 3, 4]))
    others = [page for page in range(PAGES) if page not in (10, 11, 12)]
    assert torch.equal(rig.rows(others), torch.cat([before[:, page] for page in others], dim=2))


def test_pages_that_the_runner_splits(daemon, request):
    """The engine's pages of 32 tokens are two of the tensors'."""
    rig = Rig(daemon, request.node.name, pages=2 * PAGES, page_tokens=PAGE // 2)
    keys = kvarve.chain_keys(list(range(128)), BLOCK)
    rig.save(keys, [1, 2, 3, 4])
    rig.load(keys, [10, 11, 12, 13])
    assert rig.result() == ("r", "")
    assert torch.equal(rig.rows([10, 11, 12, 13], 2), rig.rows([1, 2, 3, 4], 2))
    rig.load(keys, [20, 21, 22], first_token=PAGE)
    assert rig.result() == ("r", "")
    assert torch.equal(rig.rows([20, 21, 22], 2), rig.rows([2, 3, 4], 2))


def test_every_block_can_fail(daemon, request):
    rig = Rig(daemon, request.node.name)
    keys = kvarve.chain_keys(list(range(256)), BLOCK)
    rig.save(keys, list(range(1, 9)))
    for block in range(4):
        rig.engine.inject("fail_load", keys[block])
        rig.load(keys, list(range(10, 18)))
        name, error = rig.result()
        assert name == "r" and error
        rig.load(keys, list(range(20, 28)))  # the fault is gone, the block is not
        assert rig.result() == ("r", "")
        assert torch.equal(rig.rows(list(range(20, 28))), rig.rows(list(range(1, 9))))


def test_a_flipped_bit_in_what_is_stored_shows(daemon, request):
    rig = Rig(daemon, request.node.name)
    keys = kvarve.chain_keys(list(range(128)), BLOCK)
    rig.engine.inject("flip_save", keys[1])
    rig.save(keys, [1, 2, 3, 4])
    rig.load(keys, [10, 11, 12, 13])
    assert rig.result() == ("r", "")
    differs = (rig.rows([10, 11, 12, 13]) != rig.rows([1, 2, 3, 4])).nonzero()
    assert len(differs) == 1 and differs[0][2] >= BLOCK


def test_a_load_runs_beside_the_caller(daemon, request):
    rig = Rig(daemon, request.node.name)
    keys = kvarve.chain_keys(list(range(64)), BLOCK)
    rig.save(keys, [1, 2])
    rig.engine.inject("delay_load", keys[0], 0.3)
    begin = time.monotonic()
    rig.load(keys, [10, 11])
    assert rig.engine.results() == [] and time.monotonic() - begin < 0.3
    assert rig.result() == ("r", "")


def test_without_staging_the_end_of_a_chain_is_dropped(daemon, request):
    rig = Rig(daemon, request.node.name, staging_bytes=2 * FIELDS["block_bytes"])
    keys = kvarve.chain_keys(list(range(400 * BLOCK)), BLOCK)
    taken = rig.save(keys, [page % PAGES for page in range(800)])
    assert taken < len(keys) and rig.engine.take_counts()["save_dropped_blocks"] == len(keys) - taken
    assert rig.space.lookup(keys)[0] == taken


def test_what_reaches_outside_is_refused(daemon, request):
    rig = Rig(daemon, request.node.name)
    keys = kvarve.chain_keys(list(range(64)), BLOCK)
    for pages in ([1, PAGES], [-1, 1], [1], [1, 2, 3]):
        with pytest.raises(kvarve.Error) as caught:
            rig.engine.save(keys, None, 0, pages, 1)
        assert caught.value.code == "INVALID_ARGUMENT"
    rig.save(keys, [1, 2])
    before = rig.memory.clone()
    for pages in ([1, PAGES], [1], [1, 2, 3]):
        rig.load(keys, pages)
        assert rig.result()[1]
    assert torch.equal(rig.memory, before)
    with pytest.raises(kvarve.Error):
        rig.engine.load("r", keys, b"grants", [1, 2], 0, 64)


@pytest.mark.parametrize("change", [dict(pages=7), dict(layers=[]), dict(descriptor=FIELDS | {"block_tokens": 48}),
                                    dict(threads=0)])
def test_what_does_not_fit_is_refused(daemon, request, change):
    with pytest.raises(kvarve.Error) as caught:
        Rig(daemon, "refused", **change)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_saves_that_fail_are_counted(request):
    with Daemon(capacity="64MiB") as daemon:
        rig = Rig(daemon, request.node.name, put_timeout=0.5)
        keys = kvarve.chain_keys(list(range(256)), BLOCK)
        daemon.pause()
        try:
            assert rig.save(keys, list(range(8))) == 4
        finally:
            daemon.resume()
        deadline, counts = time.monotonic() + WAIT_SECONDS_MAX, {}
        while not counts and time.monotonic() < deadline:
            counts = rig.engine.take_counts()
        assert counts == {"save_failed_blocks": 4}


def test_another_salt_is_another_namespace(daemon, request):
    rig = Rig(daemon, request.node.name)
    keys = kvarve.chain_keys(list(range(64)), BLOCK)
    rig.engine.use_salt("private")
    rig.save(keys, [1, 2])
    assert rig.space.lookup(keys)[0] == 0
    rig.space = rig.scheduler.namespace(**rig.fields | {"client_salt": "private"})
    rig.load(keys, [10, 11])
    assert rig.result() == ("r", "")


def test_grants_of_a_daemon_that_is_gone_fail(request):
    with Daemon(capacity="64MiB") as daemon:
        rig = Rig(daemon, request.node.name)
        keys = kvarve.chain_keys(list(range(64)), BLOCK)
        rig.save(keys, [1, 2])
        grants = rig.space.acquire(keys).to_bytes()
        daemon.kill()
        daemon.start()
        rig.scheduler.wait_ready(20)
        rig.engine.load("r", keys, grants, [10, 11], 0, BLOCK)
        assert rig.result()[1]


def test_a_namespace_that_cannot_be_opened_stops_saves_and_loads(daemon, request):
    """More resets than a connection has namespaces: nothing may go into the one before."""
    rig = Rig(daemon, request.node.name)
    keys = kvarve.chain_keys(list(range(64)), BLOCK)
    for salt in range(1100):
        rig.engine.use_salt(f"{request.node.name} {salt}")
    with pytest.raises(kvarve.Error) as caught:
        rig.engine.save(keys, None, 0, [1, 2], 1)
    assert caught.value.code == "FAILED_PRECONDITION"
    assert rig.space.lookup(keys)[0] == 0
