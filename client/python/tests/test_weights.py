"""Checkpoints that differ in the least have other digests."""

import json
import os
import struct

import pytest

from kvarve import weights


def write(folder, tensors, name="model.safetensors"):
    """A safetensors file of byte tensors."""
    header, at = {}, 0
    for tensor, data in tensors.items():
        header[tensor] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


TENSORS = {"layers.0.norm": bytes(100), "layers.0.proj": bytes(300_000), "layers.1.norm": bytes(100),
           "layers.1.proj": bytes(300_000)}


@pytest.fixture(params=["whole", "sampled", "full"])
def digest(request, tmp_path, monkeypatch):
    if request.param == "sampled":  # as for files of more than 2 GiB
        monkeypatch.setattr(weights, "_WHOLE_FILE_BYTES", 1000)
    mode = "full" if request.param == "full" else "sampled"
    return lambda folder: weights.digest(folder, mode, store=tmp_path / "store.json")


def changed(tensor, at):
    data = bytearray(TENSORS[tensor])
    data[at] = 1
    return TENSORS | {tensor: bytes(data)}


@pytest.mark.parametrize("other", [
    changed("layers.0.norm", 99), changed("layers.1.norm", 0), TENSORS | {"layers.1.proj": b"\1" * 300_000},
    {name: data for name, data in TENSORS.items() if name != "layers.1.norm"},
    {("x" + name if name == "layers.1.norm" else name): data for name, data in TENSORS.items()},
])
def test_one_tensor_tells_checkpoints_apart(tmp_path, digest, other):
    for name, tensors in (("a", TENSORS), ("b", other), ("c", TENSORS)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, tensors)
    assert digest(tmp_path / "a") == digest(tmp_path / "c")  # the path is no part of it
    assert digest(tmp_path / "a") != digest(tmp_path / "b")


def test_every_byte_counts_by_default(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "_WHOLE_FILE_BYTES", 1000)  # as if the file were large
    for name, tensors in (("a", TENSORS), ("b", changed("layers.1.proj", 299_999)), ("c", changed("layers.0.proj", 5000))):
        (tmp_path / name).mkdir()
        write(tmp_path / name, tensors)
    digests = {weights.digest(tmp_path / name, store=tmp_path / "store.json") for name in "abc"}
    assert len(digests) == 3


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_a_file_that_changed_under_an_old_time_is_read_again(tmp_path, mode):
    write(tmp_path, TENSORS)
    before = (tmp_path / "model.safetensors").stat()
    first = weights.digest(tmp_path, mode, store=tmp_path / "s")
    write(tmp_path, changed("layers.0.norm", 3))  # in place: the same inode and size
    os.utime(tmp_path / "model.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (tmp_path / "model.safetensors").stat().st_ino == before.st_ino
    assert weights.digest(tmp_path, mode, store=tmp_path / "s") != first


def test_the_shards_count_and_only_one_format(tmp_path):
    write(tmp_path, TENSORS)
    one = weights.digest(tmp_path, store=tmp_path / "s")
    (tmp_path / "pytorch_model.bin").write_bytes(b"other")
    assert weights.digest(tmp_path, store=tmp_path / "s") == one
    write(tmp_path, TENSORS, "model2.safetensors")
    assert weights.digest(tmp_path, store=tmp_path / "s") != one


def test_a_known_file_is_not_read_again(tmp_path, monkeypatch):
    write(tmp_path, TENSORS)
    reads = []
    compute = weights.file_digest
    monkeypatch.setattr(weights, "file_digest", lambda *a: reads.append(a) or compute(*a))
    first = weights.digest(tmp_path, store=tmp_path / "deep" / "store.json")
    assert weights.digest(tmp_path, store=tmp_path / "deep" / "store.json") == first and len(reads) == 1
    path = tmp_path / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] = 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    assert weights.digest(tmp_path, store=tmp_path / "deep" / "store.json") != first and len(reads) == 2


def test_a_store_that_is_broken_or_cannot_be_written_does_no_harm(tmp_path):
    write(tmp_path, TENSORS)
    expected = weights.digest(tmp_path, store=tmp_path / "store.json")
    (tmp_path / "store.json").write_text("{")
    assert weights.digest(tmp_path, store=tmp_path / "store.json") == expected
    assert weights.digest(tmp_path, store="/proc/nothing/store.json") == expected


def test_no_weights(tmp_path):
    with pytest.raises(FileNotFoundError):
        weights.digest(tmp_path)
