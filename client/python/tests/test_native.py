"""The native module without a daemon: hashing, namespaces, values."""

import json
import pickle
from pathlib import Path

import pytest

import kvarve

TESTDATA = Path(__file__).parents[3] / "storage" / "block" / "testdata"
FIELDS = dict(model="m", model_digest="d", element_type=kvarve.ElementType.BF16, layer_count=2, layer_total=2,
              kv_head_count=2, kv_head_total=2, k_dim=8, v_dim=8, block_tokens=4, block_bytes=2 * 2 * 2 * 4 * 8 * 2,
              hash_version=kvarve.CHAIN_HASH_VERSION)


@pytest.mark.parametrize("case", json.loads((TESTDATA / "prefix_hash.json").read_text()), ids=lambda case: case["name"])
def test_golden_keys(case):
    extras = [bytes.fromhex(extra) for extra in case["extras"]]
    keys = kvarve.chain_keys(case["tokens"], case["block_tokens"], extras, case["key_bytes"])
    assert [key.hex() for key in keys] == case["keys"]


def test_a_hasher_grows_with_its_request():
    tokens = list(range(1000))
    whole = kvarve.chain_keys(tokens, 64)
    hasher = kvarve.ChainHasher(64)
    for begin in range(0, 1000, 77):
        assert hasher.extend(tokens[begin : begin + 77]) == min(begin + 77, 1000) // 64
    assert hasher.tokens == 1000 and hasher.blocks == 15
    assert hasher.keys(0, 15) == whole and hasher.keys(3, 5) == whole[3:5]
    with pytest.raises(IndexError):
        hasher.keys(3, 16)


@pytest.mark.parametrize("tokens, error", [([-1], OverflowError), ([1 << 32], ValueError), (["a"], TypeError),
                                           (7, TypeError)])
def test_tokens_are_checked(tokens, error):
    with pytest.raises(error):
        kvarve.chain_keys(tokens, 1)


def test_shapes_are_checked():
    for block_tokens, key_bytes in ((0, 32), (1, 20)):
        with pytest.raises(ValueError):
            kvarve.chain_keys([1], block_tokens, [], key_bytes)


def test_keys_are_a_sequence():
    raw = [bytes([i]) * 32 for i in range(5)]
    keys = kvarve.Keys(raw)
    assert list(keys) == raw and keys[-1] == raw[-1] and list(keys[1:4:2]) == raw[1:4:2] and len(keys) == 5
    assert pickle.loads(pickle.dumps(keys)) == keys
    with pytest.raises(IndexError):
        keys[5]
    with pytest.raises(ValueError, match="16 or 32"):
        kvarve.Keys([b"short"])


def test_namespaces_are_named_by_all_their_fields():
    names = {kvarve.namespace_id(**FIELDS)}
    for change in (dict(model="n"), dict(model_digest="e"), dict(client_salt="s"), dict(generation=1),
                   dict(extra={"a": "b"}), dict(kv_scales="c"), dict(element_type=kvarve.ElementType.FP16)):
        names.add(kvarve.namespace_id(**FIELDS | change))
    assert len(names) == 8 and all(len(name) == 32 for name in names)
    assert kvarve.block_bytes(**FIELDS) == FIELDS["block_bytes"]


def test_a_wrong_namespace_is_refused():
    with pytest.raises(TypeError, match="no field 'modell'"):
        kvarve.namespace_id(**FIELDS, modell="m")
    with pytest.raises(kvarve.Error) as caught:
        kvarve.namespace_id(**FIELDS | {"block_bytes": 7})
    assert caught.value.code == "INVALID_ARGUMENT" and "block_bytes" in str(caught.value)


def test_element_types_travel():
    assert pickle.loads(pickle.dumps(kvarve.ElementType.FP32)) == kvarve.ElementType.FP32
