#!/usr/bin/env python3
"""No shipped binary or Python module holds a symbol of the emulator, which is for tests only; and it stays small.

usage: shipped_test.py BUILD
"""
import glob
import os
import subprocess
import sys

MARKS = ("6kvarve4shim", "6kvarve3ptx", "6kvarve4fake")  # kvarve::shim, ::ptx and ::fake, mangled
MAX_LINES, MAX_FILE_LINES = 3000, 400


def symbols(path):
    return subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout


def lines(path):
    with open(path, encoding="utf-8") as f:
        return f.readlines()


def lines_of_code(path):
    return sum(1 for line in lines(path) if line.strip() and not line.strip().startswith("//"))


def too_large(folder):
    """What is over the limits, tests and planted bugs apart. The sum is of lines of code, neither blank nor comment; a file
    is as long as it is."""
    files = [path for end in ("h", "cc", "cu") for path in glob.glob(f"{folder}/**/*.{end}", recursive=True)
             if "_test." not in path and "planted" not in path]
    sizes = {path: lines_of_code(path) for path in files}
    long = {path: len(lines(path)) for path in files}
    print(f"{sum(sizes.values())} lines of code, {sum(long.values())} in all, in {len(sizes)} files of the emulator")
    wrong = [f"{path}: {size} lines" for path, size in long.items() if size > MAX_FILE_LINES]
    if len(sizes) < 10 or sum(sizes.values()) > MAX_LINES:
        wrong.append(f"{len(sizes)} files of {sum(sizes.values())} lines of code; {MAX_LINES} are allowed")
    return wrong


def main():
    build = sys.argv[1]
    shipped = sorted(glob.glob(build + "/bin/*") + glob.glob(build + "/python/kvarve/*.so"))
    wrong = [path for path in shipped if any(mark in symbols(path) for mark in MARKS)]
    wrong = [f"{path}: links the emulator" for path in wrong] + too_large(os.path.dirname(os.path.abspath(__file__)))
    print("\n".join(wrong))
    for mark, test in ((MARKS[0], "shim_test"), (MARKS[2], "cuda_device_test")):
        if mark not in symbols(f"{build}/tests/{test}"):
            print(f"{mark} is not found in {test}, where it is: this test sees nothing")
            return 1
    if len(shipped) < 2:
        print(f"only {shipped} in {build}")
        return 1
    print(f"{len(shipped)} files")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
