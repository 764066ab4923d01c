"""The scheduler's half, with fabricated requests and steps of both model runners."""

import pytest
from conftest import (BLOCK, DESCRIPTOR, PAGE, Blocks, make_config, make_request, make_scheduler, step, store,
                      worker_output)

from kvarve import chain_keys
from kvarve.connectors.vllm.messages import Handshake, Report
from kvarve.connectors.vllm.settings import Settings

TABLE = list(range(1, 100))


def load(half, request, computed=0, table=TABLE):
    """Offer, allocation and the step that starts the load; answers the load."""
    offered, asynchronous = half.get_num_new_matched_tokens(request, computed)
    assert asynchronous and offered > 0
    half.update_state_after_alloc(request, Blocks(table), offered)
    [load] = half.build_connector_meta(step()).loads
    return load


# ---- Loads.
def test_a_miss_is_synchronous_zero(half):
    assert half.get_num_new_matched_tokens(make_request(), 0) == (0, False)
    assert not half.client.live


def test_a_hit_is_offered_asynchronously_and_held(half):
    request = make_request(tokens=1000)
    store(half, request, 5)
    assert half.get_num_new_matched_tokens(request, 0) == (5 * BLOCK, True)
    assert len(half.client.live) == 1  # the hold
    assert half.get_num_new_matched_tokens(request, 2 * BLOCK) == (3 * BLOCK, True)


def test_the_page_of_the_last_token_is_left_to_the_engine(half):
    """It computes that token in any case, and must not write into a page that others read."""
    request = make_request(tokens=4 * BLOCK)
    store(half, request, 4)
    job = load(half, request)
    assert job.end_token == 4 * BLOCK - PAGE and job.part.last == 4 and job.part.pages == TABLE[:7]
    half.update_connector_output(worker_output(done=["r"]))
    request.append_output_token_ids(1)
    assert half.get_num_new_matched_tokens(request, 0) == (4 * BLOCK, True)


def test_what_the_engine_has_is_not_offered(half):
    request = make_request(tokens=1000)
    store(half, request, 5)
    assert half.get_num_new_matched_tokens(request, 5 * BLOCK) == (0, False)
    assert half.get_num_new_matched_tokens(request, 6 * BLOCK) == (0, False)
    assert not half.client.live


def test_a_local_hit_inside_a_block_is_not_written(half):
    request = make_request(tokens=1000)
    store(half, request, 5)
    job = load(half, request, computed=3 * PAGE)  # one and a half blocks
    assert (job.first_token, job.end_token) == (3 * PAGE, 5 * BLOCK)
    assert job.part.first == 1 and len(job.part.keys) == 4
    assert job.part.pages == TABLE[3:10]


def test_the_lease_ends_when_the_workers_have_reported(half):
    request = make_request()
    store(half, request, 5)
    load(half, request)
    assert len(half.client.live) == 1  # the lease; the hold is gone
    half.update_state_after_alloc(request, Blocks(TABLE), 0)  # the second call changes nothing
    assert half.requests["r"].loading == 5 * BLOCK
    half.update_connector_output(worker_output(done=["r"]))
    assert not half.client.live and half.requests["r"].loaded == 5 * BLOCK


def test_a_block_that_is_gone_fails_the_load_at_once(half):
    request = make_request()
    store(half, request, 5)
    offered, _ = half.get_num_new_matched_tokens(request, 0)
    half.spaces[0].stored.clear()
    half.update_state_after_alloc(request, Blocks(TABLE), offered)
    [job] = half.build_connector_meta(step()).loads
    assert job.grants == {(0, 0): None}
    half.update_connector_output(worker_output(done=["r"], failed=["r"]))
    assert not half.client.live and half.counts["load_failures"] == 1


def test_after_a_failed_load_the_request_is_computed_and_saved_again(half):
    request = make_request(tokens=1000)
    store(half, request, 5)
    load(half, request)
    # Not rewound yet: nothing of it is saved.
    assert not half.build_connector_meta(step(new=[(request, 0, 640)], tables={"r": TABLE})).saves
    half.update_connector_output(worker_output(done=["r"], failed=["r"]))
    assert half.get_num_new_matched_tokens(request, 0) == (0, False)  # never asked again
    [save] = half.build_connector_meta(step(new=[(request, 0, 640)], tables={"r": TABLE})).saves
    assert (save.part.first, save.part.last) == (0, 10)


def test_an_abort_keeps_the_lease_until_the_load_has_ended(half):
    request = make_request()
    store(half, request, 5)
    load(half, request)
    assert half.request_finished(request, []) == (False, None)
    assert len(half.client.live) == 1
    half.update_connector_output(worker_output(done=["r"]))
    assert not half.client.live and not half.requests


def test_an_abort_before_a_load_ends_the_hold(half):
    request = make_request()
    store(half, request, 5)
    half.get_num_new_matched_tokens(request, 0)
    half.request_finished(request, [])
    assert not half.client.live and not half.requests


# ---- Lookups.
def test_a_blocked_request_is_looked_up_ten_times_a_second_at_most(half, clock):
    request = make_request()
    store(half, request, 5)
    for _ in range(1000):  # ten seconds of steps
        half.get_num_new_matched_tokens(request, 0)
        clock.now += 0.01
    assert half.spaces[0].lookups <= 101
    assert len(half.client.live) == 1


def test_another_question_is_looked_up_at_once(half, clock):
    request = make_request(tokens=1000)
    store(half, request, 5)
    half.get_num_new_matched_tokens(request, 0)
    half.get_num_new_matched_tokens(request, 64)
    request.append_output_token_ids(7)
    half.get_num_new_matched_tokens(request, 64)
    assert half.spaces[0].lookups == 3


def test_a_change_is_seen_after_100_ms(half, clock):
    request = make_request()
    store(half, request, 5)
    assert half.get_num_new_matched_tokens(request, 0)[0] == 5 * BLOCK
    half.spaces[0].stored.clear()
    assert half.get_num_new_matched_tokens(request, 0)[0] == 5 * BLOCK
    clock.now += 0.11
    assert half.get_num_new_matched_tokens(request, 0) == (0, False)


def test_no_daemon_is_a_miss(half):
    request = make_request()
    store(half, request, 5)
    half.client.down = True
    assert half.get_num_new_matched_tokens(request, 0) == (0, False)
    half.request_finished(request, [])
    assert half.counts["lookup_failures"] == 1 and half.counts["lookups"] == 1


def test_the_shortest_hit_of_all_ranks_counts(monkeypatch):
    ranks = [(0, 0), (0, 1), (1, 0), (1, 1)]
    half = make_scheduler(monkeypatch, make_config(pp=2, tp=2), ranks=ranks)
    request = make_request()
    for space, blocks in enumerate((7, 6, 3, 9)):
        store(half, request, blocks, space)
    job = load(half, request)
    assert job.end_token == 3 * BLOCK and set(job.grants) == set(ranks)
    assert all(len(grants) == 3 * 32 for grants in job.grants.values())
    half.update_connector_output(worker_output(done=["r"]))
    assert not half.client.live


@pytest.mark.parametrize("cap, loaded", [(3, 3), (5, 5), (8, 5), (10, 5)])
def test_a_prompt_over_the_lease_cap_loads_what_may_be_leased(half, cap, loaded):
    """The lookup's hold counts towards the cap, too: it must not stand in the way of the load."""
    request = make_request()
    store(half, request, 5)
    half.client.cap = cap
    job = load(half, request)
    assert job.end_token == loaded * BLOCK and len(job.grants[0, 0]) == loaded * 32
    half.update_connector_output(worker_output(done=["r"]))
    assert not half.client.live


def test_ranks_with_the_same_heads_share_a_namespace(monkeypatch):
    half = make_scheduler(monkeypatch, make_config(tp=2), connect=False)
    assert half.connect({rank: Handshake(DESCRIPTOR, None) for rank in ((0, 0), (0, 1))}) is None
    assert len(half.spaces) == 1 and half.space_of == {(0, 0): 0, (0, 1): 0}


@pytest.mark.parametrize("handshakes, reason", [
    ({(0, 0): Handshake(DESCRIPTOR, None)}, "not every rank"),
    ({(0, 0): Handshake(DESCRIPTOR, None), (0, 1): Handshake(DESCRIPTOR | {"model_digest": "x"}, None)},
     "differs in model_digest"),
    ({(0, 0): Handshake(DESCRIPTOR, None), (0, 1): Handshake(None, "a GPU")}, "a GPU"),
    ({rank: Handshake(DESCRIPTOR | {"block_tokens": 128}, None) for rank in ((0, 0), (0, 1))}, "block_tokens"),
])
def test_ranks_that_disagree_make_it_passive(monkeypatch, handshakes, reason):
    half = make_scheduler(monkeypatch, make_config(tp=2), connect=False)
    assert reason in half.connect(handshakes)
    assert half.get_num_new_matched_tokens(make_request(), 0) == (0, False)


# ---- What may be cached.
@pytest.mark.parametrize("change, reason", [
    (dict(prompt_embeds=object()), "prompt_embeds"),
    (dict(prompt_is_token_ids=[True]), "mixed_prompt"),
    (dict(resumable=True), "resumable"),
    (dict(pooling_params=object()), "pooling"),
    (dict(mm_features=[object()]), "multimodal"),
    (dict(lora_request=object()), "lora"),
])
def test_what_is_not_allowed_is_neither_read_nor_written(half, change, reason):
    request = make_request(tokens=1000)
    store(half, request, 5)
    for name, value in change.items():
        setattr(request, name, value)
    half.on_new_request(request)
    assert half.get_num_new_matched_tokens(request, 0) == (0, False)
    assert not half.build_connector_meta(step(new=[(request, 0, 640)], tables={"r": TABLE})).saves
    assert half.spaces[0].lookups == 0 and half.counts[f"bypass|{reason}"] == 1


def test_prompt_logprobs_are_not_looked_up(half):
    request = make_request()
    store(half, request, 5)
    request.skip_reading_prefix_cache = True
    assert half.get_num_new_matched_tokens(request, 0) == (0, False)
    assert half.spaces[0].lookups == 0


def test_a_request_may_skip_reading_or_writing(half):
    reader = make_request("a", params={"kvarve.skip_write": True})
    writer = make_request("b", params={"kvarve.skip_read": True})
    store(half, reader, 5)
    assert half.get_num_new_matched_tokens(reader, 0)[0] == 5 * BLOCK
    assert half.get_num_new_matched_tokens(writer, 0) == (0, False)
    half.requests["a"].chain.unhold()
    meta = half.build_connector_meta(step(new=[(reader, 0, 640), (writer, 0, 640)], tables={"a": TABLE, "b": TABLE}))
    assert [save.req_id for save in meta.saves] == ["b"]


def test_roles_read_or_write_only(monkeypatch):
    request = make_request()
    producer = make_scheduler(monkeypatch, make_config(role="kv_producer"))
    store(producer, request, 5)
    assert producer.get_num_new_matched_tokens(request, 0) == (0, False)
    consumer = make_scheduler(monkeypatch, make_config(role="kv_consumer"))
    consumer.on_new_request(request)
    assert not consumer.build_connector_meta(step(new=[(request, 0, 640)], tables={"r": TABLE})).saves


def test_a_salt_is_another_chain(half):
    plain, salted, other = (make_request(name, cache_salt=salt) for name, salt in
                            (("a", None), ("b", "s"), ("c", "t")))
    store(half, salted, 5)
    assert half.get_num_new_matched_tokens(plain, 0) == (0, False)
    assert half.get_num_new_matched_tokens(other, 0) == (0, False)
    assert half.get_num_new_matched_tokens(salted, 0)[0] == 5 * BLOCK


# ---- Saves.
@pytest.mark.parametrize("v2", [False, True])
def test_each_chunk_saves_its_whole_blocks(half, v2):
    request = make_request(tokens=1000)
    half.on_new_request(request)
    keys = chain_keys(list(range(1000)), BLOCK)
    spans = []
    for number, (computed, scheduled) in enumerate(((0, 300), (300, 300), (600, 400), (1000, 1))):
        row = (request, computed, scheduled)
        meta = half.build_connector_meta(step(new=[row] if number == 0 else [], cached=[row] if number else [],
                                              tables={"r": TABLE}, v2=v2))
        assert not meta.idle
        for save in meta.saves:
            first, last = save.part.first, save.part.last
            spans.append((first, last))
            assert save.part.keys == keys[first:last]
            assert save.part.parent == (keys[first - 1] if first else None)
            assert save.part.pages == TABLE[first * BLOCK // PAGE : last * BLOCK // PAGE]
        if number == 2:
            request.append_output_token_ids(5)
    assert spans == [(0, 4), (4, 9), (9, 15)]


def test_a_block_ends_with_the_tokens_that_are_computed(half):
    """A request that ends on a block's border: its last token was sampled, not computed."""
    request = make_request(tokens=BLOCK - 1)
    half.on_new_request(request)
    assert not half.build_connector_meta(step(new=[(request, 0, BLOCK - 1)], tables={"r": TABLE})).saves
    request.append_output_token_ids(5)  # now the block has all its tokens, but not the last one's KV
    half.request_finished(request, [])
    assert not half.requests
    request = make_request(tokens=BLOCK - 1)
    half.on_new_request(request)
    half.build_connector_meta(step(new=[(request, 0, BLOCK - 1)], tables={"r": TABLE}))
    request.append_output_token_ids(5)
    [save] = half.build_connector_meta(step(cached=[(request, BLOCK - 1, 1)], tables={"r": TABLE})).saves
    assert save.part.keys == chain_keys(list(range(BLOCK - 1)) + [5], BLOCK)


def test_asynchronous_scheduling_saves_only_tokens_that_are_known(half):
    """The step computes a token that the scheduler has not seen yet."""
    request = make_request(tokens=BLOCK - 1)
    half.on_new_request(request)
    half.build_connector_meta(step(new=[(request, 0, BLOCK - 1)], tables={"r": TABLE}, v2=True))
    assert not half.build_connector_meta(step(cached=[(request, BLOCK - 1, 1)], tables={"r": TABLE}, v2=True)).saves


def test_drafts_are_not_saved(half):
    request = make_request(tokens=BLOCK - 2)
    half.on_new_request(request)
    half.build_connector_meta(step(new=[(request, 0, BLOCK - 2)], tables={"r": TABLE}))
    request.append_output_token_ids([5, 6, 7])
    assert not half.build_connector_meta(
        step(cached=[(request, BLOCK - 2, 3)], drafts={"r": [6, 7]}, tables={"r": TABLE})).saves
    assert half.build_connector_meta(step(cached=[(request, BLOCK - 1, 1)], tables={"r": TABLE})).saves


def test_nothing_is_saved_from_a_null_page_on(half):
    request = make_request(tokens=1000)
    half.on_new_request(request)
    table = TABLE[:5] + [0] + TABLE[6:]
    [save] = half.build_connector_meta(step(new=[(request, 0, 1000)], tables={"r": table})).saves
    assert (save.part.first, save.part.last) == (0, 2)
    assert not half.build_connector_meta(step(new=[(request, 0, 1000)], tables={"r": [0] * 40})).saves


def test_stored_blocks_are_not_saved_again(half):
    request = make_request(tokens=1000)
    store(half, request, 5)
    half.get_num_new_matched_tokens(request, 0)
    [save] = half.build_connector_meta(step(new=[(request, 0, 640)], tables={"r": TABLE})).saves
    assert (save.part.first, save.part.last) == (5, 10)


@pytest.mark.parametrize("v2", [False, True])
def test_a_preempted_request_resumes(half, v2):
    """It is asked about again, with its output among its tokens, and comes back with another table: as cached in the
    first runner, as new in the second."""
    request = make_request(tokens=5 * BLOCK)
    half.get_num_new_matched_tokens(request, 0)
    half.build_connector_meta(step(new=[(request, 0, 5 * BLOCK)], tables={"r": TABLE}, v2=v2))
    request.append_output_token_ids(list(range(5000, 5000 + BLOCK)))
    store(half, request, 5)
    job = load(half, request, table=TABLE[20:])
    assert job.end_token == 5 * BLOCK and job.part.pages == TABLE[20:30]
    half.update_connector_output(worker_output(done=["r"]))
    rows = {"new" if v2 else "cached": [(request, 5 * BLOCK, BLOCK)]}
    [save] = half.build_connector_meta(step(tables={"r": TABLE[20:]}, v2=v2, preempted={"r"}, **rows)).saves
    assert (save.part.first, save.part.last, save.part.pages) == (5, 6, TABLE[30:32])


def test_dropped_blocks_are_tried_again_after_a_while(half, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("kvarve.connectors.vllm.scheduler.time.monotonic", lambda: now[0])
    request = make_request(tokens=1000)
    half.on_new_request(request)
    tried = []
    for number in range(60):  # steps of 10 ms; staging took three blocks, then kvarved was gone
        computed, scheduled = (0, 640) if number == 0 else (639 + number, 1)
        row = [(request, computed, scheduled)]
        meta = half.build_connector_meta(step(new=row if number == 0 else [], cached=row if number else [],
                                              tables={"r": TABLE}))
        for save in meta.saves:
            tried.append(number)
            assert (save.part.first, save.part.last) == (3 if number else 0, 10)
            half.update_connector_output(worker_output(Report({}, {"r": 3}, {}, {})))
        now[0] += 0.01
    assert len(tried) == 6 and all(10 <= after - before <= 11 for before, after in zip(tried, tried[1:]))


def test_pending_saves_keep_the_engine_stepping_but_not_for_ever(half, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("kvarve.connectors.vllm.scheduler.time.monotonic", lambda: now[0])
    assert not half.has_pending_push_work()
    half.update_connector_output(worker_output(Report({(0, 0): 2}, {}, {}, {})))
    assert half.has_pending_push_work()
    now[0] = 11.0
    assert not half.has_pending_push_work()
    half.update_connector_output(worker_output(Report({(0, 0): 1}, {}, {}, {})))
    assert half.has_pending_push_work()
    half.update_connector_output(worker_output(Report({(0, 0): 0}, {}, {}, {})))
    assert not half.has_pending_push_work()


def test_a_step_that_computes_nothing_says_so(half):
    assert half.build_connector_meta(step()).idle


# ---- Resets.
def test_a_reset_isolates_the_engine(half):
    request, running = make_request(), make_request("running")
    store(half, request, 5)
    half.get_num_new_matched_tokens(running, 0)
    half.reset_cache()
    assert not half.client.live
    assert half.get_num_new_matched_tokens(request, 0) == (0, False)
    meta = half.build_connector_meta(step(new=[(request, 0, 640), (running, 0, 640)],
                                          tables={"r": TABLE, "running": TABLE}))
    assert meta.salt and [save.req_id for save in meta.saves] == ["r"]  # the other holds KV of both weights
    half.get_num_new_matched_tokens(running, 0)  # it was rewound and starts again
    assert half.build_connector_meta(step(new=[(running, 0, 640)], tables={"running": TABLE})).saves


def test_each_reset_is_another_chain_in_one_namespace(half):
    """Nothing closes a namespace, so resets must not open one each."""
    half.reset_cache()
    salt, spaces = half.salt, list(half.client.spaces)
    keys = set()
    for number in range(3):
        request = make_request(f"r{number}")
        assert half.get_num_new_matched_tokens(request, 0) == (0, False)
        [save] = half.build_connector_meta(step(new=[(request, 0, 640)], tables={request.request_id: TABLE})).saves
        half.spaces[0].stored.update(save.part.keys)
        assert half.get_num_new_matched_tokens(make_request(f"again{number}"), 0)[0] == 10 * BLOCK
        assert not keys & set(save.part.keys)
        keys.update(save.part.keys)
        half.reset_cache()
    assert half.salt == salt and list(half.client.spaces) == spaces and not half.client.live


def test_a_salt_survives_a_reset(half):
    half.reset_cache()
    requests = [make_request(name, cache_salt=salt) for name, salt in (("a", "s"), ("b", "s"), ("c", "t"))]
    half.on_new_request(requests[0])
    [save] = half.build_connector_meta(step(new=[(requests[0], 0, 640)], tables={"a": TABLE})).saves
    half.spaces[0].stored.update(save.part.keys)
    assert [half.get_num_new_matched_tokens(request, 0)[0] for request in requests[1:]] == [10 * BLOCK, 0]


def test_a_reset_may_be_ignored(monkeypatch):
    half = make_scheduler(monkeypatch, settings=Settings(on_reset="ignore"))
    request = make_request()
    store(half, request, 5)
    half.reset_cache()
    assert half.salt == "" and half.get_num_new_matched_tokens(request, 0)[0] == 5 * BLOCK


def test_weight_transfer_is_private_from_the_start(monkeypatch):
    half = make_scheduler(monkeypatch, make_config(weight_transfer_config=object()))
    assert half.salt and half.spaces[0].descriptor["client_salt"] == half.salt


# ---- What a request is told.
@pytest.mark.parametrize("name", ["kvarve.report", "report"])
def test_the_report(half, name):
    request = make_request(params={name: True})
    store(half, request, 5)
    load(half, request)
    half.update_connector_output(worker_output(Report({}, {}, {"r": 0.25}, {}), done=["r"]))
    _, params = half.request_finished(request, [])
    report = params["kvarve.report"]
    assert report["hit_tokens"] == 5 * BLOCK and report["tier"] == "host" and report["load_ms"] == 250.0
    assert report["milliseconds"] >= 250.0


def test_faults_need_the_setting(monkeypatch):
    for faults in (False, True):
        half = make_scheduler(monkeypatch, settings=Settings(faults=faults))
        request = make_request(params={"kvarve.fault": {"fail_load": 2}})
        store(half, request, 5)
        assert load(half, request).fault == ({"fail_load": 2} if faults else {})


# ---- Fetch or recompute.
def learn_speed(half, monkeypatch):
    """Three steps of a millisecond a token."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for _ in range(3):
        half.build_connector_meta(step(new=[(make_request("other"), 0, 640)], tables={"other": TABLE}))
        now[0] += 0.64
    half.speed.end()


def test_the_daemon_is_told_what_a_block_costs(half, monkeypatch):
    half.get_num_new_matched_tokens(make_request("early"), 0)
    learn_speed(half, monkeypatch)
    half.get_num_new_matched_tokens(make_request("late"), 0)
    assert half.spaces[0].costs == [0, 64_000]


def test_one_namespace_decides_for_all_ranks(monkeypatch):
    half = make_scheduler(monkeypatch, make_config(tp=2), ranks=((0, 0), (0, 1)))
    request = make_request()
    for space in range(2):
        store(half, request, 4, space)
    learn_speed(half, monkeypatch)
    half.get_num_new_matched_tokens(request, 0)
    assert [space.costs for space in half.spaces] == [[64_000], [0]]


def test_costs_are_told_only_if_wanted(monkeypatch):
    half = make_scheduler(monkeypatch, settings=Settings(prefer_recompute=False))
    learn_speed(half, monkeypatch)
    half.get_num_new_matched_tokens(make_request(), 0)
    assert half.spaces[0].costs == [0]
