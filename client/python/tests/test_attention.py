"""kvarve.attend and merge_states against their definition; the kernels' own tests are in gpu/attention."""

import array
import math
import random
import struct

import pytest

import kvarve

LAYERS, HEADS, TOKENS, DIM, QUERY_HEADS = 2, 2, 8, 64, 4
SHAPE = dict(layers=LAYERS, kv_heads=HEADS, block_tokens=TOKENS, k_dim=DIM, element_type=kvarve.ElementType.BF16)


def bf16(values):
    """Their upper halves: what bf16 keeps of numbers that it can hold."""
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def make_blocks(count, seed):
    """[block][layer][K|V][head][token][dim] as lists, and the blocks' bytes."""
    draw = random.Random(seed)
    numbers = [[draw.randrange(-64, 65) / 64 for _ in range(LAYERS * 2 * HEADS * TOKENS * DIM)] for _ in range(count)]
    return numbers, [bf16(block) for block in numbers]


def row(numbers, layer, is_v, head, token):
    begin = (((layer * 2 + is_v) * HEADS + head) * TOKENS + token % TOKENS) * DIM
    return numbers[token // TOKENS][begin : begin + DIM]


def expected(q, numbers, layer, first, last):
    """Output and log-sum-exp of one query head's row over tokens [first, last)."""
    outs, sums = [], []
    for head, query in enumerate(q):
        logits = [sum(a * b for a, b in zip(query, row(numbers, layer, 0, head // 2, t))) / 8 for t in range(first, last)]
        total = sum(map(math.exp, logits))
        sums.append(math.log(total))
        values = [row(numbers, layer, 1, head // 2, t) for t in range(first, last)]
        outs.append([sum(math.exp(x) / total * v[d] for x, v in zip(logits, values)) for d in range(DIM)])
    return outs, sums


def queries(seed):
    draw = random.Random(seed)
    q = [[draw.uniform(-1, 1) for _ in range(DIM)] for _ in range(QUERY_HEADS)]
    flat = array.array("f", [x for head in q for x in head])
    return q, memoryview(flat).cast("B").cast("f", (1, QUERY_HEADS, DIM))


def assert_near(got, want):
    out, lse = got
    for head in range(QUERY_HEADS):
        assert lse[0, head] == pytest.approx(want[1][head], abs=1e-5)
        for d in range(DIM):
            assert out[0, head, d] == pytest.approx(want[0][head][d], abs=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_attends_the_blocks(threads):
    numbers, blocks = make_blocks(3, 1)
    q, buffer = queries(2)
    got = kvarve.attend(buffer, blocks, layer=1, kv_tokens=21, threads=threads, **SHAPE)
    assert_near(got, expected(q, numbers, 1, 0, 21))
    windowed = kvarve.attend(buffer, blocks, layer=0, kv_tokens=21, window=5, **SHAPE)
    assert_near(windowed, expected(q, numbers, 0, 16, 21))


def test_parts_merge_to_the_whole():
    numbers, blocks = make_blocks(3, 3)
    q, buffer = queries(4)
    old = kvarve.attend(buffer, blocks[:2], layer=0, q_position=23, **SHAPE)
    recent = kvarve.attend(buffer, blocks[2:], layer=0, kv_position=16, **SHAPE)
    assert_near(kvarve.merge_states([old[0], recent[0]], [old[1], recent[1]]), expected(q, numbers, 0, 0, 24))


def test_keys_like_the_others_score_high_and_may_go():
    numbers, blocks = make_blocks(3, 9)
    scores, of_blocks = kvarve.key_diff(blocks, layer=1, kv_tokens=21, **SHAPE)
    want = []
    for head in range(HEADS):
        keys = [row(numbers, 1, 0, head, t) for t in range(21)]
        unit = [[x / math.sqrt(sum(y * y for y in key)) for x in key] for key in keys]
        mean = [sum(column) / 21 for column in zip(*unit)]
        length = math.sqrt(sum(x * x for x in mean))
        want.append([sum(a * b for a, b in zip(key, mean)) / length for key in unit])
    for head in range(HEADS):
        assert scores.tolist()[head] == pytest.approx(want[head], abs=1e-5)
    means = [sum(sum(head[begin : begin + TOKENS]) for head in want) / (HEADS * min(TOKENS, 21 - begin)) for begin in (0, 8, 16)]
    assert of_blocks.tolist() == pytest.approx(means, abs=1e-5)

    # What is left without the most redundant block: the others, each where it was, and merged.
    q, buffer = queries(10)
    gone = max(range(2), key=lambda i: of_blocks[i])
    parts = [kvarve.attend(buffer, [blocks[i]], layer=1, kv_position=8 * i, kv_tokens=5 if i == 2 else 8,
                           q_position=20, **SHAPE) for i in range(3) if i != gone]
    left = [expected(q, numbers, 1, 8 * i, min(21, 8 * i + 8)) for i in range(3) if i != gone]
    total = [math.log(sum(math.exp(part[1][head]) for part in left)) for head in range(QUERY_HEADS)]
    outs = [[sum(math.exp(part[1][h] - total[h]) * part[0][h][d] for part in left) for d in range(DIM)] for h in range(QUERY_HEADS)]
    assert_near(kvarve.merge_states([out for out, _ in parts], [lse for _, lse in parts]), (outs, total))
    with pytest.raises(kvarve.Error, match="over a table of 3 pages"):
        kvarve.key_diff(blocks, layer=1, kv_tokens=25, **SHAPE)


def floats(values):
    return memoryview(array.array("f", values)).cast("B").cast("f", (1, QUERY_HEADS))


def test_merges_sums_of_either_base_and_a_sink_once():
    numbers, blocks = make_blocks(3, 7)
    q, buffer = queries(8)
    old = kvarve.attend(buffer, blocks[:2], layer=1, q_position=23, **SHAPE)
    recent = kvarve.attend(buffer, blocks[2:], layer=1, kv_position=16, **SHAPE)
    of_two = [floats([x / math.log(2) for x in lse.tolist()[0]]) for lse in (old[1], recent[1])]
    want = expected(q, numbers, 1, 0, 24)
    outs, natural = [old[0], recent[0]], [old[1], recent[1]]
    for lses, bases in ((natural, ["e", "e"]), ([of_two[0], recent[1]], ["2", "e"]), (of_two, ["2", "2"])):
        assert_near(kvarve.merge_states(outs, lses, bases=bases), want)
    sinks = [0.5, -1.0, 2.0, 0.0]
    for head, sink in enumerate(sinks):  # one token more, whose V is 0
        lse = math.log(math.exp(want[1][head]) + math.exp(sink))
        want[0][head] = [x * math.exp(want[1][head] - lse) for x in want[0][head]]
        want[1][head] = lse
    assert_near(kvarve.merge_states(outs, natural, sinks=floats(sinks)), want)
    with pytest.raises(ValueError, match="'e' or '2', not .'10'"):
        kvarve.merge_states(outs, natural, bases=["e", "10"])
    with pytest.raises(kvarve.Error, match="as many outputs"):
        kvarve.merge_states(outs, natural, bases=["e"])
    with pytest.raises(kvarve.Error, match="sinks has 4 bytes, not 16"):
        kvarve.merge_states(outs, natural, sinks=array.array("f", [1.0]))


def test_what_does_not_fit_is_refused():
    _, blocks = make_blocks(1, 5)
    _, buffer = queries(6)
    with pytest.raises(kvarve.Error, match="layer 2 of 2"):
        kvarve.attend(buffer, blocks, layer=2, **SHAPE)
    with pytest.raises(kvarve.Error, match="a block has"):
        kvarve.attend(buffer, [blocks[0][:-1]], layer=0, **SHAPE)
    with pytest.raises(kvarve.Error, match="over a table of 1 pages"):
        kvarve.attend(buffer, blocks, layer=0, kv_tokens=9, **SHAPE)
    with pytest.raises(ValueError, match="q has shape"):
        kvarve.attend(memoryview(buffer).cast("B"), blocks, layer=0, **SHAPE)
    with pytest.raises(kvarve.Error, match="576 with 512"):
        kvarve.attend(memoryview(bytes(4 * 32)).cast("f", (1, 1, 32)), [], layer=0, **{**SHAPE, "k_dim": 32})
