#!/usr/bin/env python3
"""No shipped binary or Python module holds a symbol of the emulator, which is for tests only.

usage: shipped_test.py BUILD
"""
import glob
import subprocess
import sys

MARKS = ("6kvarve4shim", "6kvarve3ptx")  # kvarve::shim and kvarve::ptx, mangled


def symbols(path):
    return subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout


def main():
    build = sys.argv[1]
    shipped = sorted(glob.glob(build + "/bin/*") + glob.glob(build + "/python/kvarve/*.so"))
    wrong = [path for path in shipped if any(mark in symbols(path) for mark in MARKS)]
    for path in wrong:
        print(f"{path}: links the emulator")
    if MARKS[0] not in symbols(build + "/tests/shim_test"):
        print("the mark is not found where the emulator is: this test sees nothing")
        return 1
    if len(shipped) < 2:
        print(f"only {shipped} in {build}")
        return 1
    print(f"{len(shipped)} files")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
