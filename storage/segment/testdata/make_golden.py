#!/usr/bin/env python3
"""Golden files of storage/segment, from the text of docs/formats.md 5 alone: no code is shared with C++.

    make_golden.py           writes superblock.bin, segment.bin, catalogue_value.bin and golden.json beside this script
    make_golden.py --check   compares them with what it would write; exit status 1 and the names on a difference
"""
import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
UNIT = 4096
SEGMENT = 64 << 10

TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0xC96C5795D7870F42 if n & 1 else 0)
    TABLE.append(n)


def crc64(start, data):
    """CRC-64/XZ, continued from `start` (0 begins one)."""
    register = start ^ 0xFFFFFFFFFFFFFFFF
    for byte in data:
        register = register >> 8 ^ TABLE[(register ^ byte) & 255]
    return register ^ 0xFFFFFFFFFFFFFFFF


def noise(seed, size):
    state, out = seed, bytearray()
    for _ in range(size):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(state >> 32 & 255)
    return bytes(out)


def sealed(data, pages, start):
    """Zeros up to the last 8 bytes of `pages` pages, then the CRC of all before."""
    data = data.ljust(pages * UNIT - 8, b"\0")
    return data + struct.pack("<Q", crc64(start, data))


UUID = bytes(range(0x10, 0x20))
SECRET = noise(1, 32)
KEY = crc64(crc64(0, SECRET), UUID)
SEGMENT_ID = 3 << 32 | 7
GENERATION = 2
SLOT = 1
OPENED, SEALED = 1_800_000_100, 1_800_000_200
NAMESPACES = [noise(2, 16), noise(3, 16)]


def block_crc(ns, key, data):
    seed = crc64(0, struct.pack("<I", 1) + ns + key.ljust(32, b"\0") + struct.pack("<Q", len(data)))
    return crc64(seed, data)


def record(block, ns_ref, page):
    key = block["key"].ljust(32, b"\0")
    parent = crc64(0, block["parent"].ljust(32, b"\0")) if block["parent"] else 0
    check = block_crc(block["ns"], block["key"], block["data"]) if block["data"] else 0
    size = len(block["data"])
    return struct.pack("<32sQQQQIIIIIHBBBB6x", key, check, check, parent, block["seq"], page, size, size,
                       block["recompute_us"], block["depth"] | block["flags"] << 24, ns_ref, len(block["key"]), 0,
                       block["hits"], block["lives"])


def block(ns, key, parent, seq, size, depth=0, flags=0, hits=0, lives=0, recompute_us=0):
    return {"ns": NAMESPACES[ns], "key": key, "parent": parent, "seq": seq, "data": noise(seq, size), "depth": depth,
            "flags": flags, "hits": hits, "lives": lives, "recompute_us": recompute_us}


KEYS = [noise(11, 32), noise(12, 32), noise(13, 16)]
FRAMES = [
    [block(0, KEYS[0], b"", 3 << 36 | 1, 5000, recompute_us=700),
     block(0, KEYS[1], KEYS[0], 3 << 36 | 2, 4096, depth=1, hits=3)],
    [block(0, b"", b"", 3 << 36 | 3, 0, flags=1),
     block(1, KEYS[2], b"", 3 << 36 | 4, 1, depth=70000, lives=2)],
]


def pages_of(data):
    return (len(data) + UNIT - 1) // UNIT


def superblock():
    head = struct.pack("<8sIIQQ16sQQQQQ32s", b"KVSEGS01", 1, UNIT, 0, 0, UUID, 9, 3, SEGMENT, 4, 1_800_000_000, SECRET)
    return sealed(head, 1, 0)


def segment():
    """The segment's bytes, and the places of its records in order."""
    header = struct.pack("<8sII16sQIIQQQ", b"KVSEGH01", 1, SLOT, UUID, SEGMENT_ID, GENERATION, 0, 3, OPENED, 0)
    out = sealed(header, 1, KEY)
    table_ns, table = [], []
    for number, blocks in enumerate(FRAMES):
        names = sorted({b["ns"] for b in blocks}, key=[b["ns"] for b in blocks].index)
        for name in names:
            if name not in table_ns:
                table_ns.append(name)
        count = (64 + 16 * len(names) + 96 * len(blocks) + 8 + UNIT - 1) // UNIT
        page = len(out) // UNIT + count
        records, payload = [], b""
        for b in blocks:
            at = page if b["data"] else 0
            records.append(record(b, names.index(b["ns"]), at))
            table.append(record(b, table_ns.index(b["ns"]), at))
            b["page"] = at
            payload += b["data"].ljust(pages_of(b["data"]) * UNIT, b"\0")
            page += pages_of(b["data"])
        previous = struct.unpack("<Q", (out if number == 0 else descriptor)[-8:])[0]
        head = struct.pack("<8sQIIIIIIQ16x", b"KVFRAME1", SEGMENT_ID, GENERATION, number, len(blocks), len(names), count,
                           len(payload) // UNIT, previous)
        descriptor = sealed(head + b"".join(names) + b"".join(records), count, KEY)
        out += descriptor + payload
    body = b"".join(table_ns) + b"".join(table)
    table_pages = pages_of(body)
    seqs = [b["seq"] for blocks in FRAMES for b in blocks]
    live = sum(len(b["data"]) for blocks in FRAMES for b in blocks)
    facts = struct.pack("<8sQII16sIIIIQQQQQQQ", b"KVFOOT01", SEGMENT_ID, GENERATION, SLOT, UUID, len(table), len(table_ns),
                        table_pages, len(FRAMES), live, crc64(KEY, body), 0, OPENED, SEALED, min(seqs), max(seqs))
    footer = body.ljust(table_pages * UNIT, b"\0") + sealed(facts, 1, KEY)
    value = facts + body
    value += struct.pack("<Q", crc64(KEY, value))
    return out.ljust(SEGMENT - len(footer), b"\0") + footer, value


def main():
    data, value = segment()
    facts = {
        "segment_id": SEGMENT_ID, "generation": GENERATION, "slot": SLOT, "uuid": UUID.hex(), "secret": SECRET.hex(),
        "epoch": 3, "seq": 9, "opened_at": OPENED, "sealed_at": SEALED,
        "namespaces": [ns.hex() for ns in NAMESPACES],
        "frames": [[{"ns": b["ns"].hex(), "key": b["key"].hex(), "parent": b["parent"].hex(), "seq": b["seq"],
                     "data": b["data"].hex() if len(b["data"]) < 100 else "", "bytes": len(b["data"]), "page": b["page"],
                     "depth": b["depth"], "flags": b["flags"], "hits": b["hits"], "lives": b["lives"],
                     "recompute_us": b["recompute_us"]} for b in blocks] for blocks in FRAMES],
    }
    files = {"superblock.bin": superblock(), "segment.bin": data, "catalogue_value.bin": value,
             "golden.json": (json.dumps(facts, indent=1) + "\n").encode()}
    differ = []
    for name, content in files.items():
        path = HERE / name
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_bytes() != content:
                differ.append(name)
        else:
            path.write_bytes(content)
    for name in differ:
        print(f"{name} differs from what make_golden.py writes")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
