"""A cache may miss, it may never be wrong: failed loads, aborted requests, chunks, salts, other inputs, other weights.

One engine, chunks of 256 tokens: a prompt whose cached part is a multiple of that is computed in the same shapes with
and without the cache, so answers, pages and stored blocks are compared bit by bit.
"""
import pytest

from compare import assert_same_answer, differing

BLOCK = 128
CHUNK = 256
PREFIX = 6 * BLOCK  # stored before
WHOLE = 8 * BLOCK  # what a prompt can store
TAIL = 32


@pytest.fixture(scope="module")
def engine(start):
    return start(max_num_batched_tokens=CHUNK, enable_prompt_embeds=True)


@pytest.fixture(autouse=True)
def nothing_left_behind(engine):
    """Whatever a test did, every page is free again and no save is under way."""
    free = engine.free_pages
    yield
    engine.wait_saved()
    for _ in range(10):  # steps that only collect what has ended
        engine.step()
    assert engine.free_pages == free
    assert not engine.scheduler.requests


class Reference:
    """The fault-free run of one prompt: its answer, pages and stored blocks."""

    def __init__(self, engine, prompts):
        self.prompt = prompts.take(WHOLE + TAIL)
        cold = engine.ask(self.prompt)
        self.answer = cold
        self.pages = engine.page_digests(cold, WHOLE)
        self.blocks = engine.stored_blocks(self.prompt)
        assert cold.loaded == 0 and len(self.blocks) == WHOLE // BLOCK
        engine.invalidate()

    def check(self, engine, got, loaded):
        assert_same_answer(got, self.answer)
        assert got.loaded == loaded
        assert differing(engine.page_digests(got, WHOLE), self.pages) == []

    def check_stored(self, engine):
        assert differing(engine.stored_blocks(self.prompt), self.blocks) == []


@pytest.fixture(scope="module")
def reference(engine, prompts):
    return Reference(engine, prompts)


@pytest.fixture
def prefix_stored(engine, reference):
    """kvarve holds the first PREFIX tokens of the reference's prompt and nothing else."""
    engine.invalidate()
    engine.ask(reference.prompt[:PREFIX + 1], max_tokens=1)
    engine.wait_saved()
    assert len(engine.stored_blocks(reference.prompt)) == PREFIX // BLOCK


def test_loaded_prefix_is_the_computed_one(engine, reference, prefix_stored):
    got = engine.ask(reference.prompt)
    reference.check(engine, got, loaded=PREFIX)
    reference.check_stored(engine)
    reference.check(engine, engine.ask(reference.prompt), loaded=WHOLE)


@pytest.mark.parametrize("position", range(PREFIX // BLOCK))
def test_failed_load_poisons_nothing(engine, reference, prefix_stored, position):
    got = engine.ask(reference.prompt, fault={"fail_load": position})
    reference.check(engine, got, loaded=0)
    reference.check_stored(engine)
    reference.check(engine, engine.ask(reference.prompt), loaded=WHOLE)


def test_one_flipped_byte_is_noticed(engine, reference):
    """The negative control: the comparisons above see a single wrong byte in a stored block."""
    engine.invalidate()
    engine.ask(reference.prompt, fault={"flip_save": 5})
    assert differing(engine.stored_blocks(reference.prompt), reference.blocks) == [5]
    got = engine.ask(reference.prompt)
    assert got.loaded == WHOLE
    assert differing(engine.page_digests(got, WHOLE), reference.pages) == [5]
    engine.invalidate()


def test_a_bit_that_turns_in_memory_is_a_miss(engine, daemon, reference):
    """A block that was stored right and went bad where it lies: found by its checksum, computed, stored anew."""
    engine.invalidate()
    engine.ask(reference.prompt)
    engine.wait_saved()
    if not daemon.flip_stored_bit(reference.blocks[4]):
        pytest.skip("writing into the daemon's memory takes root")
    assert differing(engine.stored_blocks(reference.prompt), reference.blocks) == [4, 5, 6, 7]  # get() verifies, too
    reference.check(engine, engine.ask(reference.prompt), loaded=4 * BLOCK)
    reference.check_stored(engine)
    engine.wait_saved()
    assert daemon.flip_stored_bit(reference.blocks[5])
    reference.check(engine, engine.ask(reference.prompt), loaded=0)  # found while it is loaded
    reference.check_stored(engine)
    reference.check(engine, engine.ask(reference.prompt), loaded=WHOLE)


def test_every_chunk_is_saved_as_it_is_computed(engine, reference):
    engine.invalidate()
    request = engine.submit(reference.prompt)
    for chunk in range(1, WHOLE // CHUNK + 1):
        engine.step()
        stored = engine.stored_blocks(reference.prompt)
        assert len(stored) == chunk * CHUNK // BLOCK
        assert differing(stored, reference.blocks[:len(stored)]) == []
    got = engine.run([request])[0]
    reference.check(engine, got, loaded=0)


def test_abort_during_save(engine, reference):
    engine.invalidate()
    request = engine.submit(reference.prompt)
    engine.step()
    engine.step()
    engine.abort(request)  # the blocks of two chunks are on their way
    for _ in range(3):
        engine.step()
    stored = engine.stored_blocks(reference.prompt)
    assert len(stored) == 2 * CHUNK // BLOCK
    assert differing(stored, reference.blocks[:len(stored)]) == []
    reference.check(engine, engine.ask(reference.prompt), loaded=2 * CHUNK)


def test_abort_during_load(engine, reference, prefix_stored):
    free = engine.free_pages
    request = engine.submit(reference.prompt, fault={"delay_load_ms": 300})
    for _ in range(3):
        engine.step()
    assert engine.free_pages < free
    engine.abort(request)
    engine.step()
    # Another request, while the load still writes into pages of the dead one.
    reference.check(engine, engine.ask(reference.prompt, skip_read=True), loaded=0)
    reference.check_stored(engine)
    reference.check(engine, engine.ask(reference.prompt), loaded=WHOLE)


def test_block_of_an_unfinished_last_token_is_not_saved(engine, prompts):
    """The last token that a request produces has no KV yet: a block that it would fill is not whole."""
    prompt = prompts.take(BLOCK - 8)
    short = engine.ask(prompt, max_tokens=8)
    assert engine.stored_blocks(prompt + short.tokens) == []
    longer = engine.ask(prompt, max_tokens=9)
    tokens = prompt + longer.tokens
    assert len(engine.stored_blocks(tokens)) == 1
    # Those 128 tokens, produced one at a time, serve another prompt.
    follow_up = tokens + prompts.take(TAIL)
    warm, cold = engine.ask(follow_up), engine.ask_cold(follow_up)
    assert warm.loaded == BLOCK
    assert [token for token, _ in warm.logprobs[:1]] == [token for token, _ in cold.logprobs[:1]]
    for (_, a), (_, b) in zip(warm.logprobs[:1], cold.logprobs[:1]):
        assert abs(a - b) < 0.1  # bf16: a token alone and a token in a chunk round differently


def test_prompt_ends_on_a_block(engine, prompts):
    """A whole prompt in the cache: the engine still computes at least its last token."""
    prompt = prompts.take(2 * CHUNK)
    cold = engine.ask(prompt)
    pages = engine.page_digests(cold, CHUNK)
    engine.wait_saved()
    warm = engine.ask(prompt)
    assert 2 * CHUNK - BLOCK <= warm.loaded < 2 * CHUNK
    assert warm.tokens[0] == cold.tokens[0]
    assert differing(engine.page_digests(warm, CHUNK), pages) == []


def test_cache_salts_are_apart(engine, reference):
    engine.invalidate()
    for salt in ("tenant a", "tenant b"):
        got = engine.ask(reference.prompt, prompt_fields={"cache_salt": salt})
        reference.check(engine, got, loaded=0)
        engine.wait_saved()
    reference.check(engine, engine.ask(reference.prompt), loaded=0)  # no salt is a third one
    engine.wait_saved()
    for salt in ("tenant a", "tenant b"):
        got = engine.ask(reference.prompt, prompt_fields={"cache_salt": salt})
        reference.check(engine, got, loaded=WHOLE)


def test_prompt_logprobs_compute_everything(engine, reference, prefix_stored):
    request = engine.submit(reference.prompt, prompt_logprobs=1, max_tokens=1)
    outputs = []
    while not (outputs and outputs[-1].finished):
        outputs += engine.step()
    assert not outputs[-1].num_cached_tokens
    assert len(outputs[-1].prompt_logprobs) == len(reference.prompt), request


def embeddings(engine, tokens):
    import torch

    (weight,) = [p for name, p in engine.runner.model.named_parameters() if "embed_tokens" in name]
    return {"prompt_embeds": weight[torch.tensor(tokens)].detach().clone()}


def test_prompt_embeddings_are_never_cached(engine, prompts):
    """Their token ids are all zero: two prompts would share every key."""
    a, b = prompts.take(2 * BLOCK + TAIL), prompts.take(2 * BLOCK + TAIL)
    from_tokens = [engine.ask_cold(prompt) for prompt in (a, b)]
    for _ in range(2):
        for prompt, want in zip((a, b), from_tokens):
            got = engine.ask(embeddings(engine, prompt))
            assert got.loaded == 0
            assert got.tokens == want.tokens
            engine.wait_saved()
    assert engine.stored_blocks([0] * (2 * BLOCK + TAIL)) == []


def test_reset_after_other_weights(engine, reference):
    """Weights changed in place, then the connector is reset: nothing of before is loaded, new KV is private."""
    import torch

    (norm,) = [p for name, p in engine.runner.model.named_parameters() if name.endswith("layers.3.input_layernorm.weight")]
    engine.invalidate()
    engine.ask(reference.prompt)
    engine.wait_saved()
    before = norm.detach().clone()
    try:
        with torch.no_grad():
            norm.mul_(1.5)
        assert engine.llm.reset_prefix_cache(reset_connector=True)
        changed = engine.ask_cold(reference.prompt)
        assert changed.tokens != reference.answer.tokens or changed.logprobs != reference.answer.logprobs
        got = engine.ask(reference.prompt)
        assert got.loaded == 0
        assert_same_answer(got, changed)
        engine.wait_saved()
        again = engine.ask(reference.prompt)
        assert again.loaded == WHOLE
        assert_same_answer(again, changed)
    finally:
        with torch.no_grad():
            norm.copy_(before)
        assert engine.llm.reset_prefix_cache(reset_connector=True)
    got = engine.ask(reference.prompt)
    reference.check(engine, got, loaded=0)
