"""The package against a real kvarved."""

import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import pytest

import kvarve

sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "engine"))
from daemon import Daemon  # noqa: E402

FIELDS = dict(model="m", model_digest="d", element_type=kvarve.ElementType.BF16, layer_count=2, layer_total=2,
              kv_head_count=2, kv_head_total=2, k_dim=64, v_dim=64, block_tokens=16,
              block_bytes=2 * 2 * 2 * 16 * 64 * 2, hash_version=kvarve.CHAIN_HASH_VERSION)
BYTES = FIELDS["block_bytes"]


@pytest.fixture(scope="module")
def daemon():
    with Daemon(capacity="256MiB") as daemon:
        yield daemon


@pytest.fixture(params=["same_host", "remote"])
def client(daemon, request):
    if request.param == "remote":
        client = kvarve.Client(daemon.remote_endpoint, token_file=daemon.token_file, timeout=2.0)
    else:
        client = kvarve.Client(daemon.endpoint, timeout=2.0)
    client.wait_ready(10)
    return client


@pytest.fixture
def space(client, request):
    return client.namespace(**FIELDS | {"client_salt": request.node.name})


def blocks(count, seed=0):
    return [bytes([(seed + i) % 256]) * BYTES for i in range(count)]


@pytest.mark.parametrize("name", ["first_depth", "request_id", "recompute_us"])
def test_a_wrong_number_does_not_print_the_blocks(space, name):
    with pytest.raises(ValueError, match=name) as raised:
        space.put(kvarve.chain_keys(list(range(16)), 16), blocks(1), **{name: -1})
    assert len(str(raised.value)) < 200


def test_put_lookup_get(space):
    keys = kvarve.chain_keys(list(range(100)), 16)
    assert len(keys) == 6 and space.lookup(keys) == (0, 0, 0) and space.get(keys) == []
    data = blocks(4)
    assert space.put(keys[:4], data) == ["stored"] * 4
    assert space.put(keys[:4], data) == ["exists"] * 4
    assert space.lookup(keys)[:2] == (4, 4)
    assert space.get(keys) == data
    assert space.get(list(keys)[:2]) == data[:2]  # keys may be plain bytes
    assert space.put(keys[4:], blocks(2, 4), parent=keys[3], first_depth=4) == ["stored"] * 2
    assert space.get(keys) == blocks(6)
    assert space.touch(keys) == 6 and space.block_bytes == BYTES


def test_blocks_may_be_any_buffer(space):
    keys = kvarve.chain_keys(list(range(32)), 16)
    assert space.put(keys, [bytearray(b"a" * BYTES), memoryview(b"b" * BYTES)]) == ["stored"] * 2
    assert space.get(keys) == [b"a" * BYTES, b"b" * BYTES]


def test_a_view_is_read_only_and_keeps_its_lease(space, client):
    keys = kvarve.chain_keys(list(range(48)), 16)
    space.put(keys, blocks(3))
    with space.view(keys) as view:
        assert len(view) == 3 and view[1].readonly and bytes(view[1]) == blocks(3)[1]
        assert view.checksum(0) != view.checksum(1)
        kept = view[2]
    with pytest.raises(IndexError):
        view[0]
    assert space.invalidate() == 3  # the memory of what is leased stays
    for seed in range(20):
        space.put(kvarve.chain_keys([seed] * 160, 16), blocks(10, seed))
    assert bytes(kept) == blocks(3)[2]
    with pytest.raises(TypeError):
        kept[0] = 1


def test_a_view_raises_in_a_forked_child_and_crashes_nothing(space):
    keys = kvarve.chain_keys(list(range(32)), 16)
    space.put(keys, blocks(2))
    with space.view(keys) as view:
        block = view[0].obj
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            seen = []
            for use in (lambda: view[1], lambda: view.checksum(0), lambda: space.view(keys)):
                try:
                    use()
                    seen.append("no error")
                except kvarve.Error as error:
                    seen.append(error.code)
            seen.append(str(len(bytes(block))))
            del view  # ends nothing of the parent's
            os.write(writer, " ".join(seen).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            assert answer.read() == "FAILED_PRECONDITION FAILED_PRECONDITION FAILED_PRECONDITION 0"
        assert os.waitpid(child, 0)[1] == 0
        assert bytes(view[1]) == blocks(2)[1] and bytes(block) == blocks(2)[0]


def test_keys_of_two_lengths_are_refused(space):
    short, long = b"s" * 16, b"l" * 32
    for keys in ([short, long], [long, short]):
        with pytest.raises(ValueError, match="16 and of 32 bytes"):
            space.lookup(keys)
        with pytest.raises(ValueError, match="16 and of 32 bytes"):
            kvarve.Keys(keys)
    with pytest.raises(ValueError, match="keys of 16 bytes; this namespace's have 32"):
        space.put([short], blocks(1))
    with pytest.raises(ValueError, match="keys of 16 bytes; this namespace's have 32"):
        space.put([long], blocks(1), parent=short)


def test_a_view_says_when_more_was_found_than_may_be_leased(daemon):
    client = kvarve.Client(daemon.endpoint, timeout=2.0)
    client.wait_ready(10)
    size = 4 << 20  # a process may lease a quarter of 256 MiB: 16 of them
    space = client.namespace(model="large", model_digest="d", element_type=kvarve.ElementType.OPAQUE, layer_count=1,
                             layer_total=1, kv_head_count=1, kv_head_total=1, block_tokens=16, block_bytes=size,
                             hash_version="h")
    keys = kvarve.chain_keys(list(range(16 * 18)), 16)
    assert space.put(keys, [bytes([i]) * size for i in range(18)]) == ["stored"] * 18
    with space.view(keys[:16]) as view:
        assert len(view) == 16 and not view.over_lease_cap
    with space.view(keys) as view:
        assert len(view) == 16 and view.over_lease_cap
    assert len(space.get(keys)) == 18
    space.invalidate()


def test_grants_travel(space, client):
    keys = kvarve.chain_keys(list(range(48)), 16)
    space.put(keys, blocks(3))
    grants = space.acquire(keys)
    copy = kvarve.Grants.from_bytes(grants.to_bytes())
    assert len(grants) == len(copy) == 3 and grants.lease == copy.lease != 0
    client.release(grants.lease)
    with pytest.raises(kvarve.Error):
        kvarve.Grants.from_bytes(b"x")


def test_invalidate(space):
    keys = kvarve.chain_keys(list(range(96)), 16)
    space.put(keys, blocks(6))
    assert space.invalidate([]) == 0 and space.lookup(keys)[0] == 6
    assert space.invalidate(keys[5:]) == 1 and space.lookup(keys)[0] == 5
    space.invalidate()
    assert space.lookup(keys)[0] == 0


def test_prefetch_says_what_is_there(space):
    keys = kvarve.chain_keys(list(range(96)), 16)
    assert space.prefetch(keys) == (0, 0)
    space.put(keys[:4], blocks(4))
    assert space.prefetch(keys) == (4, 0) and space.prefetch(list(keys)[:2], request_id=7) == (2, 0)


def test_a_tenants_statistics_and_events_are_told_over_grpc(daemon, request):
    client = kvarve.Client(daemon.remote_endpoint, token_file=daemon.token_file, timeout=5.0)
    client.wait_ready(10)
    space = client.namespace(**FIELDS | {"client_salt": request.node.name})
    keys = kvarve.chain_keys(list(range(48)), 16)
    before = client.tenant_stats()
    with client.events(timeout=60) as events:
        begin = events.cursor
        assert begin[0] == client.state()["incarnation"] == before["incarnation"]
        assert space.put(keys, blocks(3)) == ["stored"] * 3
        assert space.invalidate(keys[2:]) == 1
        seen = [next(events) for _ in range(4)]
        assert [(event.kind, event.key, event.depth, event.tier) for event in seen] == [
            *(("stored", keys[i], i, "host") for i in range(3)), ("removed", keys[2], 2, "")]
    assert list(events) == []  # cancelled by the with
    with client.events(since=begin, timeout=60) as again:
        assert next(again) == seen[0] and again.cursor == (begin[0], seen[0].sequence + 1)
    assert [event.kind for event in client.events(since=(begin[0], seen[2].sequence), timeout=2)] == ["stored", "removed"]
    after = client.tenant_stats()
    assert after["stored_blocks"] - before["stored_blocks"] == 3
    assert after["stored_bytes"] - before["stored_bytes"] == 3 * BYTES
    assert seen[0].ns in [ns["ns"] for ns in after["namespaces"]]
    with pytest.raises(kvarve.Error, match="events were missed") as caught:
        client.events(since=(begin[0] ^ 1, begin[1]))
    assert caught.value.code == "OUT_OF_RANGE"


def test_the_daemon_logs_the_trace_that_a_call_carries():
    traces = [f"{i:032x}-{i:016x}" for i in range(1, 9)]
    with Daemon(capacity="64MiB", log__slow_request="1us") as daemon:
        client = kvarve.Client(daemon.remote_endpoint, token_file=daemon.token_file, timeout=5.0)
        client.wait_ready(10)
        space = client.namespace(**FIELDS)
        keys = kvarve.chain_keys(list(range(16)), 16)
        more = [dict(traceparent=f"00-{trace}-01") for trace in traces]
        space.put(keys, blocks(1), **more[0])
        space.lookup(keys, **more[1])
        space.get(keys, **more[2])
        space.view(keys, **more[3]).release()
        client.release(space.acquire(keys, **more[4]).lease)
        space.touch(keys, **more[5])
        space.prefetch(keys, **more[6])
        space.invalidate(**more[7])
        with pytest.raises(ValueError, match="traceparent"):
            space.lookup(keys, traceparent="00-none")
        end = time.monotonic() + 30
        while missing := [trace for trace in traces if trace not in daemon.log()]:
            assert time.monotonic() < end, missing
            time.sleep(0.02)


def test_another_thread_ends_a_watch(daemon):
    client = kvarve.Client(daemon.remote_endpoint, token_file=daemon.token_file, timeout=5.0)
    client.wait_ready(10)
    events = client.events()
    ended = threading.Thread(target=lambda: list(events))
    ended.start()
    events.cancel()
    ended.join(30)
    assert not ended.is_alive()


def test_the_socket_says_where_events_are_told(daemon):
    client = kvarve.Client(daemon.endpoint, timeout=2.0)
    client.wait_ready(10)
    for call in (client.tenant_stats, client.events):
        with pytest.raises(kvarve.Error, match="use the gRPC endpoint") as caught:
            call()
        assert caught.value.code == "UNIMPLEMENTED"


def test_wrong_calls_are_refused(space, client):
    keys = kvarve.chain_keys(list(range(32)), 16)
    with pytest.raises(ValueError, match="has 16384 bytes"):
        space.put(keys, [b"short", b"short"])
    with pytest.raises(ValueError, match="as many blocks"):
        space.put(keys, blocks(1))
    with pytest.raises(kvarve.Error) as caught:
        client.namespace(**FIELDS | {"block_bytes": 5})
    assert caught.value.code == "INVALID_ARGUMENT"
    with pytest.raises(ValueError, match="role"):
        kvarve.Client(role="boss")
    with pytest.raises(kvarve.Error):
        kvarve.Client("ftp://x")


def test_both_planes_share_their_blocks(daemon, request):
    near, far = (kvarve.Client(daemon.endpoint, timeout=2.0),
                 kvarve.Client(daemon.remote_endpoint, token_file=daemon.token_file, timeout=2.0))
    for client in (near, far):
        client.wait_ready(10)
    keys, fields = kvarve.chain_keys(list(range(96)), 16), FIELDS | {"client_salt": request.node.name}
    assert near.namespace(**fields).put(keys[:3], blocks(3)) == ["stored"] * 3
    assert far.namespace(**fields).get(keys) == blocks(3)
    assert far.namespace(**fields).put(keys, blocks(6)) == ["exists"] * 3 + ["stored"] * 3
    assert near.namespace(**fields).get(keys) == blocks(6)


def test_a_put_says_which_quota_kept_a_part_out(request):
    with Daemon(capacity="256MiB", tenant__quotas="default=entries:..2") as small:
        keys, fields = kvarve.chain_keys(list(range(64)), 16), FIELDS | {"client_salt": request.node.name}
        for endpoint, token, reason in ((small.remote_endpoint, small.token_file, "quota of entries: 2 in use of at most 2"),
                                        (small.endpoint, "", "")):
            client = kvarve.Client(endpoint, token_file=token, timeout=2.0)
            client.wait_ready(10)
            space = client.namespace(**fields)
            assert space.put(keys[:2], blocks(2)).reason == ""
            outcomes = space.put(keys, blocks(4))
            assert isinstance(outcomes, kvarve.Outcomes)
            assert outcomes == ["exists"] * 2 + ["rejected_quota", "rejected_parent"]
            assert reason in outcomes.reason and bool(reason) == bool(outcomes.reason)


def test_another_host_wants_its_token(daemon):
    with pytest.raises(kvarve.Error) as caught:
        kvarve.Client(daemon.remote_endpoint).wait_ready(10)
    assert caught.value.code == "UNAUTHENTICATED"
    with pytest.raises(kvarve.Error) as caught:
        kvarve.Client(daemon.remote_endpoint, token_file="/nowhere/token")
    assert caught.value.code == "NOT_FOUND"


def test_without_an_endpoint_it_is_the_environments(daemon, monkeypatch):
    for endpoint, token in ((daemon.endpoint, ""), (daemon.remote_endpoint, daemon.token_file)):
        monkeypatch.setenv("KVARVE_ENDPOINT", endpoint)
        monkeypatch.setenv("KVARVE_TOKEN_FILE", token)
        client = kvarve.Client(timeout=2.0)
        client.wait_ready(10)
        assert client.state()["connected"]
    with pytest.raises(kvarve.Error) as caught:  # a named one is not shown the environment's token
        kvarve.Client(daemon.remote_endpoint).wait_ready(10)
    assert caught.value.code == "UNAUTHENTICATED"


def test_another_host_in_plaintext_is_refused_unless_allowed_by_name(daemon):
    with pytest.raises(kvarve.Error, match="insecure_plaintext_off_loopback"):
        kvarve.Client("kvarve://192.0.2.1:7410")
    kvarve.Client("kvarve://192.0.2.1:7410", insecure_plaintext_off_loopback=True)
    with pytest.raises(kvarve.Error, match="tls_ca_file"):
        kvarve.Client("kvarves://192.0.2.1:7410")
    with pytest.raises(kvarve.Error, match="/nowhere/ca"):
        kvarve.Client("kvarves://192.0.2.1:7410", tls_ca_file="/nowhere/ca")
    with pytest.raises(TypeError, match="tls_cafile"):
        kvarve.Client("kvarves://192.0.2.1:7410", tls_cafile="/nowhere/ca")


def test_administration(daemon, request):
    client = kvarve.Client(daemon.endpoint, timeout=2.0)
    client.wait_ready(10)
    space = client.namespace(**FIELDS | {"client_salt": request.node.name})
    assert client.state()["connected"] and client.state()["daemon_version"]
    assert isinstance(client.status(), dict) and isinstance(client.stats(), dict)
    space.put(kvarve.chain_keys(list(range(16)), 16), blocks(1))
    assert client.namespaces()
    with pytest.raises(kvarve.Error):
        client.admin("dance")


def test_no_daemon_is_unavailable_at_once():
    client = kvarve.Client("unix:///nowhere/kvarved.sock")
    space = client.namespace(**FIELDS)
    begin = time.monotonic()
    with pytest.raises(kvarve.Error) as caught:
        space.lookup(kvarve.chain_keys([1] * 16, 16))
    assert caught.value.code == "UNAVAILABLE" and time.monotonic() - begin < 5
    with pytest.raises(kvarve.Error) as caught:
        client.wait_ready(0.1)
    assert caught.value.code == "DEADLINE_EXCEEDED"


def test_it_joins_a_daemon_that_comes_later_and_again_after_a_restart():
    daemon = Daemon(capacity="64MiB")
    client = kvarve.Client(daemon.endpoint, timeout=2.0)
    space = client.namespace(**FIELDS)
    keys = kvarve.chain_keys([1] * 16, 16)
    with daemon:
        client.wait_ready(20)
        assert space.put(keys, blocks(1)) == ["stored"]
        daemon.kill()
        daemon.start()
        client.wait_ready(20)
        assert space.lookup(keys)[0] == 0 and space.put(keys, blocks(1)) == ["stored"]


def _child(client, space, keys, answers):
    try:
        space.lookup(keys)
        answers.put("answered")
    except kvarve.Error as error:
        answers.put(error.code)
    mine = kvarve.Client(os.environ["TEST_ENDPOINT"], timeout=2.0)
    mine.wait_ready(10)
    answers.put(mine.namespace(**FIELDS | {"client_salt": "fork"}).lookup(keys)[0])


def test_a_fork_makes_its_own_client(daemon, client):
    os.environ["TEST_ENDPOINT"] = daemon.endpoint
    space = client.namespace(**FIELDS | {"client_salt": "fork"})
    keys = kvarve.chain_keys([1] * 32, 16)
    space.put(keys, blocks(2))
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_child, args=(client, space, keys, answers))
    child.start()
    child.join(30)
    assert child.exitcode == 0 and [answers.get(), answers.get()] == ["FAILED_PRECONDITION", 2]
    assert space.lookup(keys)[0] == 2  # the parent's goes on


def test_calls_let_other_threads_run(daemon):
    """A call that waits for a daemon that hangs does not hold the interpreter."""
    client = kvarve.Client(daemon.endpoint, timeout=1.0)
    client.wait_ready(10)
    space = client.namespace(**FIELDS)
    keys = kvarve.chain_keys([1] * 16, 16)
    space.lookup(keys)
    daemon.pause()
    try:
        ticks, done = [], threading.Event()

        def tick():
            while not done.is_set():
                ticks.append(1)
                done.wait(0.01)

        thread = threading.Thread(target=tick)
        thread.start()
        begin, ticks_before = time.monotonic(), len(ticks)
        with pytest.raises(kvarve.Error):
            space.lookup(keys)
        waited, ticks_during = time.monotonic() - begin, len(ticks) - ticks_before
        done.set()
        thread.join()
        assert waited < 0.5 or ticks_during > 0  # a call that holds the interpreter lets none happen
    finally:
        daemon.resume()
