"""What "the same" means. bf16 is exact only for one request at a time in equal chunks; there it is compared bit by bit."""


def same_answer(got, want) -> bool:
    """Greedy tokens, and the first token's log-probabilities."""
    return got.tokens == want.tokens and got.logprobs == want.logprobs


def assert_same_answer(got, want) -> None:
    assert got.finish_reason == want.finish_reason
    assert got.tokens == want.tokens
    assert got.logprobs == want.logprobs


def differing(got: list, want: list) -> list[int]:
    """Positions where two lists of blocks or digests differ, those that only one has included."""
    length = max(len(got), len(want))
    return [i for i in range(length) if i >= len(got) or i >= len(want) or got[i] != want[i]]
