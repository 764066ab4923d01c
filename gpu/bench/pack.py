#!/usr/bin/env python3
"""Packs the device benchmark into a folder for a host with a CUDA driver and nothing else of ours: the program (the kernels
are in it), what they must answer, the libraries down to the C library, and a script that runs it.

usage: pack.py BUILD FOLDER
"""
import os
import re
import shutil
import subprocess
import sys

MAX_BYTES = 60 << 20
LOADER = "ld-linux-x86-64.so.2"
RUN = """#!/bin/sh
# Runs the benchmark on the GPU of this host, at most four minutes: ./run.sh [--out FILE] [--device UUID] [--steps STEP]
# The libraries beside it come first, the driver is the host's. Exit code 0: every step was ok.
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/lib/{loader}" --library-path "$here/lib:${{LD_LIBRARY_PATH:-}}:/usr/lib/x86_64-linux-gnu:/usr/lib64:/usr/local/nvidia/lib64" \\
  "$here/kvarve_gpu_bench" --cases "$here/cases.cbor" "$@"
"""


def libraries(program):
    """Paths of all that the program loads, the loader among them."""
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    found = [match.group(1) for match in re.finditer(r"(?:=> |^\t)(/\S+) \(0x", text, re.MULTILINE)]
    if "not found" in text or not any(path.endswith(LOADER) for path in found):
        raise SystemExit(f"pack: {program} lacks libraries:\n{text}")
    return found


def size(folder):
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def pack(build, folder):
    os.makedirs(folder)
    lib = os.path.join(folder, "lib")
    os.mkdir(lib)
    program = os.path.join(folder, "kvarve_gpu_bench")
    subprocess.run(["strip", "-o", program, f"{build}/bench/kvarve_gpu_bench"], check=True)
    for path in libraries(program):
        shutil.copy(path, lib)  # follows links; named as the program asks for it
    subprocess.run([f"{build}/bench/kvarve_gpu_bench_cases", os.path.join(folder, "cases.cbor")], check=True)
    run = os.path.join(folder, "run.sh")
    with open(run, "w", encoding="utf-8") as f:
        f.write(RUN.format(loader=LOADER))
    os.chmod(run, 0o755)
    grpc = [name for name in os.listdir(lib) if "grpc" in name or "protobuf" in name]
    if grpc or size(folder) >= MAX_BYTES:
        raise SystemExit(f"pack: {size(folder)} bytes, at most {MAX_BYTES}; {grpc}")


def main():
    build, folder = sys.argv[1:]
    pack(build, folder)
    print(f"{folder}: {size(folder) / (1 << 20):.1f} MiB; run.sh in it runs the benchmark")


if __name__ == "__main__":
    main()
