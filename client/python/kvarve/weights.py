"""Names for a model by its files and its configuration: what tells two checkpoints of one shape apart."""

import hashlib
import json
import os
import re
import struct
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Iterator, Mapping

_WHOLE_FILE_BYTES = 2 << 30  # smaller files are read whole
_SAMPLE_BYTES = 64 << 10
_SAMPLE_EVERY_BYTES = 8 << 20  # in files that do not say where their tensors lie
_SAMPLE_PIECES = 16
_MAX_HEADER_BYTES = 256 << 20
_READERS = 4


def _spans(file, path: Path, size: int) -> tuple[bytes, list[tuple[int, int]]]:
    """(what describes the tensors, where each lies)."""
    if path.suffix != ".safetensors":
        starts = range(0, size, _SAMPLE_EVERY_BYTES)
        return b"", [(at, min(at + _SAMPLE_EVERY_BYTES, size)) for at in starts]
    length = struct.unpack("<Q", file.read(8))[0]
    if length > min(size, _MAX_HEADER_BYTES):
        raise ValueError(f"{path}: no safetensors header")
    header = file.read(length)
    tensors = json.loads(header)
    tensors.pop("__metadata__", None)
    return header, [(8 + length + tensor["data_offsets"][0], 8 + length + tensor["data_offsets"][1])
                    for _, tensor in sorted(tensors.items())]


def _pieces(path: Path) -> Iterator[bytes]:
    """Every tensor's name, type and shape, then 64 KiB of each in 16 pieces."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        header, spans = _spans(file, path, size)
        yield header
        for begin, end in spans:
            step = max(end - begin, _SAMPLE_BYTES) // _SAMPLE_PIECES
            for at in range(begin, end, step):
                file.seek(at)
                yield file.read(min(_SAMPLE_BYTES // _SAMPLE_PIECES, end - at))


def file_digest(path: Path, mode: str) -> str:
    size = path.stat().st_size
    if mode == "full" or size < _WHOLE_FILE_BYTES:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256(struct.pack("<Q", size))
    for piece in _pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """The files that an engine would load: of one format, the first there is."""
    if folder.is_file():
        return [folder]
    for pattern in ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf"):
        if found := sorted(folder.glob(pattern)):
            return found
    raise FileNotFoundError(f"no weights in {folder}")


def _store_path() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "kvarve" / "weights.json"


def digest(folder: str | os.PathLike, mode: str = "full",
           store: str | os.PathLike | None = None) -> str:
    """SHA-256 of the checkpoint in `folder`, or of the one file.

    mode "full" reads every byte; "sampled" reads files under 2 GiB whole, and 64 KiB of each tensor
    of larger ones: checkpoints that differ in a few rows only may then count as one. What was computed
    is remembered in `store` by path, inode, size and both times (a changed file has another ctime,
    whatever its mtime was set to). FileNotFoundError: there are no weights.
    """
    store = Path(store) if store else _store_path()
    try:
        known = json.loads(store.read_text())
    except (OSError, ValueError):
        known = {}
    total, files = hashlib.sha256(mode.encode()), weight_files(Path(folder))
    names = [_file_name(file, mode) for file in files]
    unknown = [(name, file) for name, file in zip(names, files) if name not in known]
    with ThreadPoolExecutor(max_workers=_READERS) as readers:  # hashing leaves the interpreter to others
        for (name, _), found in zip(unknown, readers.map(lambda one: file_digest(one[1], mode), unknown)):
            known[name] = found
    for name, file in zip(names, files):
        total.update(f"{file.name}\0{known[name]}\0".encode())
    if unknown:
        _remember(store, known)
    return total.hexdigest()


def _file_name(file: Path, mode: str) -> str:
    stat = file.stat()
    return f"{file.resolve()}|{stat.st_ino}|{stat.st_ctime_ns}|{stat.st_mtime_ns}|{stat.st_size}|{mode}"


def _remember(store: Path, known: dict[str, str]) -> None:
    """A store that cannot be written costs time only."""
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=store.parent, delete=False) as new:
            json.dump(known, new)
        os.replace(new.name, store)
    except OSError:
        pass


def folder(model: str, revision: str | None = None, cache: str | None = None) -> str:
    """Where a model's files are: `model` itself, or the snapshot that was downloaded before."""
    if os.path.exists(model):
        return model
    from huggingface_hub import snapshot_download
    return snapshot_download(model, revision=revision, cache_dir=cache, local_files_only=True)


def name(model: str) -> str:
    """For people: what a folder, or a folder of the hub's cache, is called."""
    hub = re.search(r"models--([^/]+)", model)
    return hub[1].replace("--", "/") if hub else os.path.basename(model.rstrip("/"))


def plain(value: Any) -> str:
    """Text that is the same in every process."""
    text = str(value)
    return type(value).__name__ if " at 0x" in text else text


def configuration_digest(configuration: Mapping[str, Any], length: int) -> str:
    """Of a Hugging Face configuration as it is in effect. `length` (tokens served at most) counts where the kind of
    rope depends on it."""
    effective = {k: v for k, v in configuration.items() if k not in ("_name_or_path", "transformers_version")}
    text = json.dumps(effective, sort_keys=True, default=plain)
    if re.search(r'"(longrope|su|dynamic)"', text):
        text += f"|{length}"
    return hashlib.sha256(text.encode()).hexdigest()
