"""What must match for KV to be reusable, and whether this engine may use the cache at all."""

import hashlib
import json
from pathlib import Path
from typing import Any

from kvarve import _native, compat, weights

MAX_BLOCK_BYTES = 16 << 20  # of the daemon
_FROM_FILES = {"auto", "hf", "safetensors", "pt", "npcache", "mistral", "gguf", "bitsandbytes",
               "fastsafetensors", "instanttensor"}
_ELEMENTS = {"torch.bfloat16": "BF16", "torch.float16": "FP16", "torch.float32": "FP32",
             "torch.float8_e4m3fn": "FP8_E4M3", "torch.float8_e5m2": "FP8_E5M2"}


def model_digest(config, settings) -> str:
    """Weights and effective model configuration. ValueError: they cannot be named from files."""
    model, load = config.model_config, config.load_config
    if not settings.model_digest and str(load.load_format) not in _FROM_FILES:
        raise ValueError(f"weights of load_format {load.load_format!s} need model_digest")
    digest = settings.model_digest or weights.digest(
        weights.folder(model.model, model.revision, load.download_dir), settings.digest)
    effective = weights.configuration_digest(model.hf_config.to_dict(), model.max_model_len)
    parts = (digest, effective, str(model.dtype), str(model.quantization),
             weights.plain(getattr(model, "quantization_config", None)))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


# ---- Namespace of one rank.
def block_tokens(settings, config, spec) -> int:
    """Tokens of a kvarve block: as set, else the smallest multiple of the engine's block that has
    128 tokens, or fewer where that would pass 16 MiB. ValueError: none is possible."""
    page = spec.block_size
    layers = config.model_config.get_total_num_hidden_layers()  # of all stages: one answer for all
    most = MAX_BLOCK_BYTES // (spec.page_size_bytes * layers)  # pages a block
    tokens = settings.block_tokens or min(-(-128 // page), max(most, 1)) * page
    if tokens % page:
        raise ValueError(f"block_tokens {tokens} is not a multiple of the engine's {page}")
    if tokens // page > most:
        raise ValueError(f"a block of {tokens} tokens has more than {MAX_BLOCK_BYTES} bytes")
    return tokens


def _layer_index(name: str) -> int:
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return numbers[0] if len(numbers) == 1 else -1


def layer_order(names) -> list[str]:
    return sorted(names, key=lambda name: (_layer_index(name), name))


def descriptor(config, kv_cache_config, settings, pp_rank: int, tp_rank: int) -> dict:
    """The namespace of a worker's blocks, as keyword arguments of kvarve.Client.namespace."""
    group = kv_cache_config.kv_cache_groups[0]
    spec, model, parallel = group.kv_cache_spec, config.model_config, config.parallel_config
    names = layer_order(group.layer_names)
    indices = [_layer_index(name) for name in names]
    begin, total = 0, len(names)
    if parallel.pipeline_parallel_size > 1:
        begin, total = indices[0], model.get_total_num_hidden_layers()
        if indices != list(range(begin, begin + len(names))):
            raise ValueError("a pipeline stage whose layers are not one range")
    heads = spec.num_kv_heads
    all_heads = 1 if model.use_mla else model.get_total_num_kv_heads()
    ways = parallel.tensor_parallel_size
    if not model.use_mla and heads * ways != max(all_heads, ways):
        raise ValueError(f"{all_heads} KV heads over {ways} ranks of {heads}")
    first_head = 0 if model.use_mla else tp_rank * all_heads // ways
    fields = dict(
        model=weights.name(model.model), model_digest=model_digest(config, settings),
        element_type=getattr(_native.ElementType, _ELEMENTS[str(spec.dtype)]),
        layer_begin=begin, layer_count=len(names), layer_total=total, kv_head_begin=first_head,
        kv_head_count=heads, kv_head_total=all_heads, k_dim=spec.head_size, v_dim=spec.head_size_v,
        block_tokens=block_tokens(settings, config, spec),
        hash_version=_native.CHAIN_HASH_VERSION,
        kv_scales="" if spec.dtype.itemsize > 1 else "checkpoint",
        extra={"engine": "vllm", "cache_dtype": str(config.cache_config.cache_dtype),
               "spec": f"{type(spec).__name__} {spec.page_size_bytes / spec.block_size:g} B/token",
               "layers": hashlib.sha256("\0".join(names).encode()).hexdigest()})
    return fields | {"block_bytes": _native.block_bytes(**fields)}


# ---- Engines that must not use the cache: each reason is a label of a metric.
def passive_reason(config, kv_cache_config) -> str | None:
    model, parallel = config.model_config, config.parallel_config
    speculative = config.speculative_config
    if len(kv_cache_config.kv_cache_groups) != 1:
        return "several KV cache groups" if kv_cache_config.kv_cache_groups else "no KV cache"
    [group] = kv_cache_config.kv_cache_groups
    spec, kind = group.kv_cache_spec, type(group.kv_cache_spec).__name__
    checks = (
        (model.runner_type != "generate", f"runner type {model.runner_type}"),
        (not model.is_prefix_caching_supported, "the model does not support prefix caching"),
        (getattr(model, "is_diffusion", False), "diffusion model"),
        (kind not in ("FullAttentionSpec", "MLAAttentionSpec"), f"KV of kind {kind}"),
        (getattr(spec, "non_causal", False), "non-causal attention"),
        (group.is_eagle_group or group.host_resident or not group.enable_kv_transfer,
         "a KV group that is not the model's own"),
        (str(getattr(spec, "dtype", "")) not in _ELEMENTS, "KV element type"),
        (getattr(spec, "kv_quant_mode", 0) not in (0, 1), "quantised KV with scales of its own"),
        (getattr(config.cache_config, "calculate_kv_scales", False), "KV scales that each engine computes for itself"),
        (getattr(spec, "tokens_per_state", 1) != 1 or getattr(spec, "state_content_bytes", None)
         or getattr(spec, "num_head_slots", None), "packed KV pages"),
        (speculative is not None and (speculative.method != "ngram"
                                      or config.scheduler_config.async_scheduling),
         "speculative decoding"),
        (parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1,
         "context parallelism"),
        (config.cache_config.kv_sharing_fast_prefill, "kv_sharing_fast_prefill"),
    )
    return next((reason for wrong, reason in checks if wrong), None)


def vllm_fields() -> dict[str, list[str]]:
    """What the connector reads of vLLM."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched import output
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request
    classes = (Request, SamplingParams, KVCacheConfig, KVCacheGroupSpec, KVConnectorOutput,
               output.SchedulerOutput, output.NewRequestData, output.CachedRequestData,
               output.KVConnectorBlockState)
    return ({cls.__name__: compat.field_names(cls) for cls in classes}
            | {"hooks": compat.signatures(KVConnectorBase_V1)})


def version_difference() -> tuple[str | None, bool]:
    """(how this vLLM differs from the one the connector was written for, whether it is that one)"""
    import vllm
    recorded = json.loads((Path(__file__).parent / "vllm_fields.json").read_text())
    differs = compat.difference(recorded["fields"], vllm_fields())
    return (f"vLLM {vllm.__version__} differs in {differs}" if differs else None,
            vllm.__version__ == recorded["version"])
