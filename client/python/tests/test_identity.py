"""Namespaces, reasons to be passive, and vLLM's interface."""

import dataclasses
import types

import pytest
import torch
from test_weights import TENSORS, changed, write
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MLAAttentionSpec, RSWASpec

from kvarve import ElementType, compat
from kvarve.connectors.vllm import identity
from kvarve.connectors.vllm.settings import Settings

SPEC = dict(block_size=32, num_kv_heads=4, head_size=64, dtype=torch.bfloat16)


class HfConfig:
    def __init__(self, **fields):
        self.fields = {"hidden_size": 64, "rope_theta": 1e4, "_name_or_path": "a"} | fields

    def to_dict(self):
        return dict(self.fields)


def make_config(folder="/nowhere", hf=None, pp=1, tp=1, heads=4, layers=8, **model):
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(**dict(
            model=str(folder), revision=None, dtype=torch.bfloat16, quantization=None, max_model_len=2048, use_mla=False,
            hf_config=hf or HfConfig(), runner_type="generate", is_prefix_caching_supported=True, is_diffusion=False,
            get_total_num_kv_heads=lambda: heads, get_total_num_hidden_layers=lambda: layers) | model),
        load_config=types.SimpleNamespace(load_format="auto", download_dir=None),
        cache_config=types.SimpleNamespace(cache_dtype="auto", kv_sharing_fast_prefill=False),
        scheduler_config=types.SimpleNamespace(async_scheduling=False),
        speculative_config=None,
        parallel_config=types.SimpleNamespace(pipeline_parallel_size=pp, tensor_parallel_size=tp,
                                              decode_context_parallel_size=1, prefill_context_parallel_size=1))


def make_kv(spec=None, layers=range(8), groups=1, **group):
    names = [f"model.layers.{i}.self_attn.attn" for i in layers]
    spec = spec or FullAttentionSpec(**SPEC)
    return KVCacheConfig(num_blocks=10, kv_cache_tensors=[],
                         kv_cache_groups=[KVCacheGroupSpec(names, spec, **group)] * groups)


def describe(config, kv, pp_rank=0, tp_rank=0, settings=None):
    return identity.descriptor(config, kv, settings or Settings(model_digest="d"), pp_rank, tp_rank)


# ---- The model.
def test_the_model_digest_follows_weights_and_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, tensors in (("a", TENSORS), ("b", changed("layers.1.norm", 7)), ("c", changed("layers.1.proj", 299_999))):
        (tmp_path / name).mkdir()
        write(tmp_path / name, tensors)
    base = make_config(tmp_path / "a")
    digests = [identity.model_digest(config, Settings()) for config in (
        base, make_config(tmp_path / "b"), make_config(tmp_path / "c"),
        make_config(tmp_path / "a", HfConfig(rope_theta=2e4)), make_config(tmp_path / "a", quantization="fp8"),
        make_config(tmp_path / "a", dtype=torch.float16))]
    assert len(set(digests)) == len(digests)
    for same in (make_config(tmp_path / "a"), make_config(tmp_path / "a", HfConfig(_name_or_path="b")),
                 make_config(tmp_path / "a", max_model_len=4096)):
        assert identity.model_digest(same, Settings()) == digests[0]


def test_rope_that_depends_on_the_length_takes_the_length_in(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path, TENSORS)
    hf = HfConfig(rope_scaling={"rope_type": "longrope"})
    assert (identity.model_digest(make_config(tmp_path, hf), Settings())
            != identity.model_digest(make_config(tmp_path, hf, max_model_len=4096), Settings()))


@pytest.mark.parametrize("load_format", ["dummy", "runai_streamer", "tensorizer", "custom"])
def test_weights_that_are_no_files_need_a_name(load_format):
    config = make_config()
    config.load_config.load_format = load_format
    with pytest.raises(ValueError, match="need model_digest"):
        identity.model_digest(config, Settings())
    assert (identity.model_digest(config, Settings(model_digest="a"))
            != identity.model_digest(config, Settings(model_digest="b")))


# ---- Namespaces.
def test_the_descriptor_of_one_rank():
    fields = describe(make_config("/models/m/"), make_kv())
    assert fields["model"] == "m" and fields["element_type"] == ElementType.BF16
    assert (fields["layer_begin"], fields["layer_count"], fields["layer_total"]) == (0, 8, 8)
    assert (fields["kv_head_begin"], fields["kv_head_count"], fields["kv_head_total"]) == (0, 4, 4)
    assert fields["block_tokens"] == 128 and fields["block_bytes"] == 128 * 8 * 4 * 128 * 2


def test_ranks_hold_ranges_of_heads_and_layers():
    spec = FullAttentionSpec(**SPEC | {"num_kv_heads": 2})
    config = make_config(pp=2, tp=2)
    ranges = {(pp, tp): describe(config, make_kv(spec, range(4 * pp, 4 * pp + 4)), pp, tp)
              for pp in range(2) for tp in range(2)}
    assert {rank: (d["layer_begin"], d["layer_count"], d["kv_head_begin"], d["kv_head_count"])
            for rank, d in ranges.items()} == {(0, 0): (0, 4, 0, 2), (0, 1): (0, 4, 2, 2), (1, 0): (4, 4, 0, 2),
                                               (1, 1): (4, 4, 2, 2)}
    assert len({d["block_tokens"] for d in ranges.values()}) == 1


def test_replicated_heads_give_the_same_namespace():
    spec = FullAttentionSpec(**SPEC | {"num_kv_heads": 1})
    config = make_config(tp=4, heads=2)
    spaces = [describe(config, make_kv(spec), 0, tp) for tp in range(4)]
    assert [d["kv_head_begin"] for d in spaces] == [0, 0, 1, 1] and spaces[0] == spaces[1] != spaces[2]


def test_mla_ranks_share_everything():
    spec = MLAAttentionSpec(**SPEC | {"num_kv_heads": 1, "head_size": 576})
    fields = [describe(make_config(tp=2, heads=16, use_mla=True), make_kv(spec), 0, tp) for tp in range(2)]
    assert fields[0] == fields[1] and fields[0]["v_dim"] == 0
    assert fields[0]["block_bytes"] == fields[0]["block_tokens"] * 8 * 576 * 2


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="KV heads over"):
        describe(make_config(tp=2, heads=3), make_kv(FullAttentionSpec(**SPEC | {"num_kv_heads": 1})))


def test_a_stage_must_be_one_range_of_layers():
    with pytest.raises(ValueError, match="not one range"):
        describe(make_config(pp=2), make_kv(layers=(0, 1, 3)))


def test_layers_are_ordered_by_number():
    names = [f"model.layers.{i}.attn" for i in (10, 9, 1, 2)]
    assert [name.split(".")[2] for name in identity.layer_order(names)] == ["1", "2", "9", "10"]


@pytest.mark.parametrize("page, asked, expected", [(16, 0, 128), (32, 0, 128), (48, 0, 144), (128, 0, 128),
                                                   (256, 0, 256), (32, 256, 256)])
def test_tokens_of_a_block(page, asked, expected):
    spec = FullAttentionSpec(**SPEC | {"block_size": page})
    assert identity.block_tokens(Settings(block_tokens=asked), make_config(), spec) == expected


def test_a_block_stays_below_16_mib():
    spec = FullAttentionSpec(**SPEC | {"block_size": 16, "num_kv_heads": 8, "head_size": 128})  # 64 KiB a page and layer
    assert identity.block_tokens(Settings(), make_config(layers=64), spec) == 64
    with pytest.raises(ValueError, match="more than"):
        identity.block_tokens(Settings(block_tokens=128), make_config(layers=64), spec)
    with pytest.raises(ValueError, match="more than"):
        identity.block_tokens(Settings(), make_config(layers=512), spec)
    with pytest.raises(ValueError, match="multiple"):
        identity.block_tokens(Settings(block_tokens=100), make_config(), spec)


# ---- Passive.
def replace(config, where, **fields):
    for name, value in fields.items():
        setattr(getattr(config, where) if where else config, name, value)
    return config


@pytest.mark.parametrize("config, kv, reason", [
    (make_config(), make_kv(), None),
    (make_config(), KVCacheConfig(10, [], []), "no KV cache"),
    (make_config(), make_kv(groups=2), "several KV cache groups"),
    (make_config(runner_type="pooling"), make_kv(), "runner type pooling"),
    (make_config(is_prefix_caching_supported=False), make_kv(), "prefix caching"),
    (make_config(is_diffusion=True), make_kv(), "diffusion"),
    (make_config(), make_kv(RSWASpec(**SPEC, rswa_window=8)), "KV of kind RSWASpec"),
    (make_config(), make_kv(FullAttentionSpec(**SPEC, non_causal=True)), "non-causal"),
    (make_config(), make_kv(is_eagle_group=True), "not the model's own"),
    (make_config(), make_kv(FullAttentionSpec(**SPEC | {"dtype": torch.uint8})), "element type"),
    (make_config(), make_kv(FullAttentionSpec(**SPEC, num_head_slots=2)), "packed"),
    (replace(make_config(), "", speculative_config=types.SimpleNamespace(method="eagle")), make_kv(), "speculative"),
    (replace(make_config(), "", speculative_config=types.SimpleNamespace(method="ngram")), make_kv(), None),
    (replace(make_config(), "parallel_config", decode_context_parallel_size=2), make_kv(), "context parallelism"),
    (replace(make_config(), "parallel_config", prefill_context_parallel_size=2), make_kv(), "context parallelism"),
    (replace(make_config(), "cache_config", kv_sharing_fast_prefill=True), make_kv(), "fast_prefill"),
])
def test_reasons_to_be_passive(config, kv, reason):
    found = identity.passive_reason(config, kv)
    assert found is None if reason is None else reason in found


# ---- vLLM's interface.
def test_this_vllm_is_the_one_that_was_recorded():
    assert identity.version_difference() == (None, True)


def test_another_version_with_the_same_fields_runs(monkeypatch):
    monkeypatch.setattr("vllm.__version__", "9.9.9")
    assert identity.version_difference() == (None, False)


def test_a_field_that_is_not_known_is_named(monkeypatch):
    fields = identity.vllm_fields()
    fields["SchedulerOutput"] = [*fields["SchedulerOutput"], "novelty"]
    monkeypatch.setattr(identity, "vllm_fields", lambda: fields)
    differs, _ = identity.version_difference()
    assert "SchedulerOutput: novelty" in differs


def test_field_sets_see_attributes_fields_and_parameters():
    class Plain:
        def __init__(self, a):
            self.a, self.b = a, 1

        def hook(self, x, *, y=1):
            pass

    data = dataclasses.make_dataclass("Data", ["p", "q"])
    assert compat.field_names(Plain) == ["a", "b"] and compat.field_names(data) == ["p", "q"]
    assert compat.signatures(Plain) == ["hook(self, x, y)"]
