"""Tensors, devices and streams of torch, as kvarve.Engine takes them."""

from collections.abc import Callable, Sequence
from typing import Any


def layers_of(tensors: Sequence[Any]) -> list[tuple[int, int, int, Sequence[int], list[int]]]:
    return [(tensor.data_ptr(), tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes(), tensor.shape,
             [stride * tensor.element_size() for stride in tensor.stride()])
            for tensor in tensors]


def device_name(tensors: Sequence[Any], wanted: str) -> str:
    """Where they lie: "cpu", or "cuda:UUID". ValueError: on several devices, or on another kind than `wanted`."""
    device = tensors[0].device
    if any(tensor.device != device for tensor in tensors):
        raise ValueError("KV pages on several devices")
    if device.type != wanted:
        raise ValueError(f"KV pages on {device.type}, where device is {wanted}")
    if wanted == "cpu":
        return "cpu"
    import torch  # only here: nothing else of the package needs it
    return f"cuda:{torch.cuda.get_device_properties(device).uuid}"


def stream_source(tensor: Any) -> Callable[[], int]:
    """Gives the stream that the engine computes on at a call's time, as the driver knows it; 0 on a CPU."""
    device = tensor.device
    if device.type != "cuda":
        return lambda: 0
    import torch
    return lambda: torch.cuda.current_stream(device).cuda_stream
