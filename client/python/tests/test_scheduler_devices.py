"""The scheduler's half while blocks are on their way from a device."""

from conftest import BLOCK, make_request, store


def test_a_request_whose_blocks_come_from_a_device_waits_for_them(half, monkeypatch):
    request = make_request(tokens=1000)
    store(half, request, 5)
    in_memory, now = [2], [100.0]
    [space] = half.spaces
    lookup = space.lookup
    monkeypatch.setattr(space, "lookup", lambda keys, hold, cost: (lookup(keys, hold)[0], in_memory[0], lookup(keys, hold)[2]))
    monkeypatch.setattr("kvarve.chain.time.monotonic", lambda: now[0])
    asked = []
    for _ in range(1000):  # a step each millisecond: few lookups
        assert half.get_num_new_matched_tokens(request, 0) == (None, False)
        asked.append(half.requests["r"].chain.lookups)
        now[0] += 0.001
    assert asked[60] == 4  # at 0, 6, 18 and 42 ms
    assert 9 <= asked[-1] <= 10
    in_memory[0] = 5
    now[0] += 0.2
    assert half.get_num_new_matched_tokens(request, 0) == (5 * BLOCK, True)


def test_a_device_that_takes_too_long_costs_what_it_has(half, monkeypatch):
    request = make_request(tokens=1000)
    store(half, request, 5)
    now = [100.0]
    [space] = half.spaces
    lookup = space.lookup
    monkeypatch.setattr(space, "lookup", lambda keys, hold, cost: (lookup(keys, hold)[0], 2, 0))
    monkeypatch.setattr("kvarve.chain.time.monotonic", lambda: now[0])
    assert half.get_num_new_matched_tokens(request, 0) == (None, False)
    now[0] += 4.9
    assert half.get_num_new_matched_tokens(request, 0) == (None, False)
    now[0] += 0.3
    for _ in range(30):  # however long the engine has no room for it
        assert half.get_num_new_matched_tokens(request, 0) == (2 * BLOCK, True)
        now[0] += 0.3


def test_what_the_engine_has_itself_is_not_waited_for(half, monkeypatch):
    request = make_request(tokens=1000)
    store(half, request, 5)
    [space] = half.spaces
    lookup = space.lookup
    monkeypatch.setattr(space, "lookup", lambda keys, hold, cost: (lookup(keys, hold)[0], 2, 0))
    assert half.get_num_new_matched_tokens(request, 5 * BLOCK) == (0, False)
    assert half.get_num_new_matched_tokens(request, 4 * BLOCK) == (None, False)
