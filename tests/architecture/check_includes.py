#!/usr/bin/env python3
"""Checks that #include goes only the ways docs/architecture.md allows, third-party headers only through their door, and
that x.cc includes x.h first, so that x.h is known to name what it needs.

usage: check_includes.py [ROOT]   Prints each offence as path:line: reason; exits 1 when there is one.
"""
import os
import re
import sys

BASE = "storage/base"
BLOCK = "storage/block"

# folder -> the folders it may include (itself always). Production code; tests are listed below.
MAY_INCLUDE = {
    BASE: (),
    BLOCK: (BASE,),
    "storage/arena": (BLOCK, BASE),
    "storage/io": (BASE,),
    "storage/catalogue": (BASE,),
    "storage/segment": ("storage/io", "storage/catalogue", BLOCK, BASE),
    "storage/codec": (BLOCK, BASE),
    "storage/index": (BLOCK, BASE),
    "storage/policy": (BLOCK, BASE),
    "storage/cache": ("storage/arena", "storage/index", "storage/policy", "storage/codec", "storage/segment", "storage/catalogue", "storage/io", BLOCK, BASE),
    "storage/testing": ("storage", ),
    "gpu": (BLOCK, BASE),
    "gpu/agent": ("gpu", "client/local", BLOCK, BASE),
    "client/identity": (BASE,),
    "client/local": (BLOCK, BASE),
    "client/frames": (BASE,),
    "client/trace": (BASE,),
    "client/cpp": ("client/local", "client/trace", BLOCK, BASE),
    "client/rpc": ("client/cpp", "client/identity", "client/local", "client/frames", "client/trace", "proto", BLOCK, BASE),
    "client/cpp/engine": ("client/cpp", "client/local", "gpu", BLOCK, BASE),
    "client/python": ("client/cpp", "client/rpc", "client/local", "client/trace", "gpu", BLOCK, BASE),
    "client/cli": ("storage/segment", "storage/catalogue", "storage/io", "client/cpp", "client/rpc", "client/identity", "client/local", "gpu", "storage/policy", BLOCK, BASE),
    "services": ("services", "client/identity", "client/local", "client/frames", "client/trace", "client/rpc", "proto", "storage"),
    "services/agent": ("gpu", BASE),
    "tests": ("",),
}

# header prefix -> the folders that may include it; a library stays replaceable when one folder knows it.
DOORS = {
    "grpc": ("services/auth", "services/rpc", "client/rpc"),
    "google/protobuf": ("services/rpc", "client/rpc"),
    "proto/": ("services/rpc", "client/rpc"),
    "prometheus/": ("services/metrics",),
    "pybind11/": ("client/python",),
    "httplib.h": ("services/metrics",),
    "yaml-cpp/": ("services/config",),
    "CLI/": ("gpu/bench", "services/config", "services/agent", "services/kvarved", "client/cli", "tests"),
    "hiredis/": ("tests/perf",),
    "isa-l": (BLOCK,),
    "crc64.h": (BLOCK,),
    "jwt.h": ("client/identity",),
    "openssl/": (BLOCK, "client/identity", "services/auth", "services/local", "services/config", "services/rpc"),
    "rocksdb/": ("storage/catalogue",),
    "liburing": ("storage/io",),
    "zstd.h": ("storage/codec",),
    "cuda": ("gpu/device", "gpu/kernels"),
    "nlohmann/": ("gpu/bench", "services/kvarved", "client/cli", "client/identity"),
    "gtest/": ("services/local/testing",),
    "gmock/": ("services/local/testing",),
    "benchmark/": (),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')
OWN_ROOTS = ("storage/", "gpu/", "client/", "services/", "proto/", "tests/")
SOURCE_ENDINGS = (".cc", ".h", ".cu", ".cuh")


def lies_in(path, folder):
    return folder == "" or path == folder or path.startswith(folder + "/")


def rule_of(path):
    """The longest folder of the table that holds `path`."""
    fitting = [folder for folder in MAY_INCLUDE if lies_in(path, folder)]
    return max(fitting, key=len, default=None)


def is_test(path):
    stem = os.path.splitext(os.path.basename(path))[0]
    return stem.endswith(("_test", "_bench", "_fuzz", "_testing")) or path.startswith("tests/")


def offence(path, header):
    """Why the file `path` may not include `header`, or None."""
    for prefix, doors in DOORS.items():
        if header.startswith(prefix) and not is_test(path) and not any(lies_in(path, d) for d in doors):
            return f"<{header}> is included only in {', '.join(doors) or 'tests and benches'}"
    if not header.startswith(OWN_ROOTS):
        return None
    folder = rule_of(path)
    if folder is None:
        return f"no rule for this folder: add it to {os.path.basename(__file__)} and docs/architecture.md"
    if is_test(header) and not is_test(path):
        return f'"{header}" belongs to tests'
    # A unit test lies beside what it tests and may join what its layer's façade may join.
    allowed = (folder,) + MAY_INCLUDE[folder] + (("storage",) if is_test(path) else ())
    if any(lies_in(header, a) for a in allowed):
        return None
    return f'"{header}": {folder} includes only {", ".join(MAY_INCLUDE[folder]) or "nothing else"}'


def own_header_is_late(root, path, headers):
    """The header of the same name is there, and another one is included before it."""
    own = os.path.splitext(path)[0] + ".h"
    return path.endswith(".cc") and bool(headers) and headers[0] != own and os.path.exists(os.path.join(root, own))


def check(root):
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith((".", "build"))]
        for name in files:
            if not name.endswith(SOURCE_ENDINGS):
                continue
            full = os.path.join(folder, name)
            path = os.path.relpath(full, root)
            headers = []
            with open(full, encoding="utf-8") as f:
                for number, line in enumerate(f, 1):
                    match = INCLUDE.match(line)
                    headers += [match.group(1)] if match else []
                    reason = match and offence(path, match.group(1))
                    if reason:
                        found.append(f"{path}:{number}: {reason}")
            if own_header_is_late(root, path, headers):
                found.append(f"{path}:1: includes another header before its own")
    return sorted(found)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "..")
    found = check(root)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
