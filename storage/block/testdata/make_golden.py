#!/usr/bin/env python3
"""Golden vectors of storage/block, from the text of the formats alone (docs/formats.md): no code is shared with C++.

    make_golden.py           writes the JSON files beside this script
    make_golden.py --check   compares them with what it would write; exit status 1 and the names on a difference
"""

import hashlib
import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent

ELEMENT_TYPES = {"opaque": (0, 1), "bf16": (1, 2), "fp16": (2, 2), "fp32": (3, 4), "fp8_e4m3": (4, 1),
                 "fp8_e5m2": (5, 1), "int8": (6, 1)}

# In the order of the encoding; the tag is the position, from 1.
FIELDS = [("model", "text"), ("model_digest", "text"), ("tokenizer_digest", "text"), ("element_type", "type"),
          ("layout_version", "int"), ("layer_begin", "int"), ("layer_count", "int"), ("layer_total", "int"),
          ("kv_head_begin", "int"), ("kv_head_count", "int"), ("kv_head_total", "int"), ("k_dim", "int"),
          ("v_dim", "int"), ("block_tokens", "int"), ("block_bytes", "int"), ("key_bytes", "int"),
          ("hash_version", "text"), ("adapter_digest", "text"), ("attention_backend", "text"), ("kv_scales", "text"),
          ("generation", "int"), ("client_salt", "text"), ("extra", "map"), ("tenant", "text"),
          ("tenant_salt", "text")]


def lcg(seed):
    """Knuth's MMIX generator; the upper half of each state."""
    state = seed
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 32


def random_bytes(seed, size):
    numbers = lcg(seed)
    return bytes(next(numbers) & 255 for _ in range(size))


# ---- Namespaces

def counted(data):
    return struct.pack("<I", len(data)) + data


def encode(descriptor):
    out = b"kvarve-namespace-1"
    for tag, (name, kind) in enumerate(FIELDS, start=1):
        value = descriptor[name]
        if kind == "text":
            body = value
        elif kind == "map":
            body = b"".join(counted(key) + counted(value[key]) for key in sorted(value))
        else:
            body = struct.pack("<Q", ELEMENT_TYPES[value][0] if kind == "type" else value)
        out += struct.pack("<HI", tag, len(body)) + body
    return out


def descriptor(**changes):
    base = {name: {"text": b"", "map": {}, "type": "bf16", "int": 0}[kind] for name, kind in FIELDS}
    base.update(model=b"SmolLM2-135M", model_digest=b"sha256:" + b"0f" * 32, layout_version=1, layer_count=30,
                layer_total=30, kv_head_count=3, kv_head_total=3, k_dim=64, v_dim=64, block_tokens=128,
                block_bytes=30 * 3 * 128 * 128 * 2, key_bytes=32, hash_version=b"kvarve-chain-1")
    base.update(changes)
    return base


def namespace_cases():
    yield "plain bf16", descriptor()
    yield "a tensor-parallel half, 16-byte keys", descriptor(
        model=b"Qwen3-8B", layer_count=36, layer_total=36, kv_head_begin=4, kv_head_count=4, kv_head_total=8, k_dim=128,
        v_dim=128, block_tokens=16, block_bytes=36 * 2 * 4 * 16 * 128 * 2, key_bytes=16)
    yield "a pipeline stage of fp8 with scales", descriptor(
        element_type="fp8_e4m3", layer_begin=16, layer_count=16, layer_total=32, kv_head_count=8, kv_head_total=8,
        k_dim=128, v_dim=128, block_tokens=32, block_bytes=16 * 2 * 8 * 32 * 128, kv_scales=b"k=0.5;v=0.25",
        attention_backend=b"FLASHINFER")
    yield "MLA", descriptor(
        model=b"DeepSeek-V3", layer_count=61, layer_total=61, kv_head_count=1, kv_head_total=1, k_dim=576, v_dim=0,
        block_tokens=64, block_bytes=61 * 64 * 576 * 2, tokenizer_digest=b"tok", generation=2**63 + 7)
    yield "opaque rows", descriptor(element_type="opaque", k_dim=0, v_dim=0, block_bytes=123457)
    yield "extras, salts and a tenant", descriptor(
        adapter_digest=b"lora:ab", client_salt=bytes(range(256)), tenant="m\u00fcller".encode(),
        tenant_salt=random_bytes(7, 32), generation=3,
        extra={b"layers": b"model.layers.0.self_attn,model.layers.1.self_attn", b"rope": b"{\"theta\": 1e6}",
               b"": b"empty name", b"empty value": b"", b"\xff\x00": b"\x00\xff", b"Rope": b"upper case sorts first"})


def namespaces():
    for name, fields in namespace_cases():
        canonical = encode(fields)
        digest = hashlib.sha256(canonical).digest()
        shown = {}
        for field, kind in FIELDS:
            value = fields[field]
            if kind == "text":
                value = value.hex()
            elif kind == "map":
                value = [[key.hex(), value[key].hex()] for key in sorted(value)]
            elif kind == "type":
                value = ELEMENT_TYPES[value][0]
            shown[field] = value
        yield {"name": name, "fields": shown, "canonical": canonical.hex(), "digest": digest.hex(),
               "ns_id": digest[:16].hex()}


# ---- Prefix hashes

def chain(block_tokens, extras, tokens):
    parent = bytes(32)
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        mine = extras if start == 0 else []
        message = b"kvarve-chain-1" + parent + struct.pack("<I", len(mine)) + b"".join(map(counted, mine))
        message += struct.pack("<I", block_tokens)
        message += struct.pack("<%dI" % block_tokens, *tokens[start:start + block_tokens])
        key = hashlib.sha256(message).digest()
        yield parent, key
        parent = key


def prefix_hash_cases():
    numbers = lcg(20261130)
    vocabulary = [next(numbers) % 151936 for _ in range(300)]
    yield "one block of one token", 1, 32, [], [0]
    yield "several blocks and a rest that is no block", 16, 32, [], vocabulary[:70]
    yield "less than a block", 16, 32, [], vocabulary[:15]
    yield "extras of the request", 16, 32, [b"lora:0123", b"", b"salt\x00\xff", b"image:" + b"9" * 300], vocabulary[:48]
    yield "one extra that joins two", 16, 32, [b"lora:0123salt"], vocabulary[:16]
    yield "keys of 16 bytes are chained by all 32", 16, 16, [b"lora:0123"], vocabulary[:48]
    yield "blocks of 128 tokens", 128, 32, [], vocabulary[:256]
    yield "the largest token ids", 2, 32, [], [2**32 - 1, 2**31, 0, 1]


def prefix_hashes():
    for name, block_tokens, key_bytes, extras, tokens in prefix_hash_cases():
        links = list(chain(block_tokens, extras, tokens))
        yield {"name": name, "block_tokens": block_tokens, "key_bytes": key_bytes, "extras": [e.hex() for e in extras],
               "tokens": tokens, "parents": [parent.hex() for parent, _ in links],
               "keys": [key[:key_bytes].hex() for _, key in links]}


# ---- Checksums

def crc64_xz(data, crc=0):
    """Bit by bit from the catalogue's parameters: polynomial 42f0e1eba9ea3693, reflected in and out, initial and
    final value all ones; `crc` continues an earlier result."""
    mask = 2**64 - 1
    polynomial = int("{:064b}".format(0x42F0E1EBA9EA3693)[::-1], 2)
    crc ^= mask
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ polynomial if crc & 1 else crc >> 1
    return crc ^ mask


assert crc64_xz(b"123456789") == 0x995DC9BBDF1939FA  # the catalogue's check value of CRC-64/XZ


def checksums():
    crcs = []
    for data in [b"", b"\x00", b"\xff", b"123456789", bytes(64), b"\xff" * 65, random_bytes(1, 1000),
                 random_bytes(2, 5000)]:
        for initial in [0, 2**64 - 1, 0x0123456789ABCDEF]:
            crcs.append({"data": data.hex(), "initial": "%016x" % initial, "crc": "%016x" % crc64_xz(data, initial)})
    blocks = []
    for seed, (key_bytes, length) in enumerate([(32, 1), (32, 4096), (16, 4097), (32, 2949)]):
        ns, key = random_bytes(100 + seed, 16), random_bytes(200 + seed, key_bytes)
        data = random_bytes(300 + seed, length)
        identity = struct.pack("<I", 1) + ns + key.ljust(32, b"\0") + struct.pack("<Q", length)
        start = crc64_xz(identity)
        blocks.append({"ns_id": ns.hex(), "key": key.hex(), "length": length, "data": data.hex(),
                       "seed": "%016x" % start, "checksum": "%016x" % crc64_xz(data, start)})
    return {"crcs": crcs, "blocks": blocks}


# ---- Layouts: rows laid down one after the other, in the order that the format states

def layouts():
    for name, kind, layers, heads, tokens, k_dim, v_dim in [
            ("SmolLM2-135M bf16", "bf16", 30, 3, 128, 64, 64), ("fp16", "fp16", 2, 4, 16, 80, 80),
            ("fp32", "fp32", 3, 2, 8, 16, 16), ("fp8", "fp8_e4m3", 4, 2, 32, 128, 128),
            ("int8, K and V of different widths", "int8", 2, 3, 5, 192, 128),
            ("MLA", "bf16", 61, 1, 64, 576, 0)]:
        size = ELEMENT_TYPES[kind][1]
        k_rows, v_rows, offset = {}, {}, 0
        for layer in range(layers):
            for rows, dim in ((k_rows, k_dim), (v_rows, v_dim)):
                for head in range(heads if dim else 0):
                    for token in range(tokens):
                        rows[layer, head, token] = offset
                        offset += dim * size
        picks = sorted({(layer, head, token) for layer in (0, 1, layers - 1) for head in (0, heads - 1)
                        for token in (0, 1, tokens - 1)})
        yield {"name": name, "element_type": ELEMENT_TYPES[kind][0], "layers": layers, "kv_heads": heads,
               "tokens": tokens, "k_dim": k_dim, "v_dim": v_dim, "block_bytes": offset,
               "rows": [[*pick, k_rows[pick], v_rows.get(pick, -1)] for pick in picks]}


def main():
    files = {"namespace.json": list(namespaces()), "prefix_hash.json": list(prefix_hashes()),
             "checksum.json": checksums(), "layout.json": list(layouts())}
    differing = []
    for name, value in files.items():
        text = json.dumps(value, indent=1) + "\n"
        path = HERE / name
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            differing.append(name)
    if differing:
        sys.exit("differ from what make_golden.py makes: " + ", ".join(differing))


if __name__ == "__main__":
    main()
