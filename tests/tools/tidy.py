#!/usr/bin/env python3
"""clang-tidy over the production sources of a build, in parallel, skipping what it passed before with equal content.

usage: tidy.py --build build/release --cache DIR [--jobs N] [--seconds N] [FILE...]

With --seconds it starts no further file after that time and says how many are left: they go first in a later run with the
same cache, by chance without one.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time

OWN = re.compile(r"^(storage|gpu|services|client)/.*\.cc$")
NOT_PRODUCTION = re.compile(r"(_test|_bench|_fuzz|_testing)\.cc$")


def own_sources(build, root):
    """path -> its compile command, for the production sources."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        entries = json.load(f)
    sources = {}
    for entry in entries:
        path = os.path.relpath(entry["file"], root)
        if OWN.match(path) and not NOT_PRODUCTION.search(path):
            sources[path] = entry["command"]
    return sources


def own_headers(build, root):
    """path -> the own files its object was made from, as ninja recorded them."""
    answer = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True)
    headers, files = {}, []
    for line in answer.stdout.splitlines() + [""]:
        if line.startswith("    "):
            path = os.path.relpath(os.path.join(build, line.strip()), root)
            if not path.startswith(".."):
                files.append(path)
        else:
            for source in files:
                if source.endswith(".cc"):
                    headers[source] = sorted(files)
            files = []
    return headers


def digest(command, files):
    h = hashlib.sha256(command.encode())
    for path in files:
        with open(path, "rb") as f:
            h.update(path.encode() + b"\0" + f.read())
    return h.hexdigest()


def tidy(build, path):
    answer = subprocess.run(["clang-tidy", "-p", build, "--quiet", path], capture_output=True, text=True, check=False)
    return answer.returncode, answer.stdout if answer.returncode == 0 else answer.stdout + answer.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    root = os.getcwd()
    build = os.path.abspath(args.build)
    os.makedirs(args.cache, exist_ok=True)
    sources, headers = own_sources(build, root), own_headers(build, root)
    keys = {}
    for path in args.files or sorted(sources):
        key = digest(sources[path], [".clang-tidy", path, *headers.get(path, [])])
        if not os.path.exists(os.path.join(args.cache, key)):
            keys[path] = key
    print(f"clang-tidy: {len(keys)} of {len(sources)} files to check", flush=True)
    end = time.monotonic() + args.seconds
    order = random.sample(sorted(keys), len(keys))  # a bounded run on a fresh cache covers others than the last one

    def check(path):
        return None if time.monotonic() > end else tidy(build, path)

    bad = left = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        futures = {pool.submit(check, path): path for path in order}
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            path = futures[future]
            if future.result() is None:
                left += 1
                continue
            status, text = future.result()
            print(f"[{done}/{len(keys)}] {path}", flush=True)
            if status == 0:
                open(os.path.join(args.cache, keys[path]), "w", encoding="utf-8").close()
            else:
                bad += 1
                print(text, flush=True)
    if left:
        print(f"clang-tidy: {left} files left for another run, the time of this one is over (./dev lint checks all)")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
