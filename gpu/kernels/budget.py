#!/usr/bin/env python3
"""Compares what the kernels use on each architecture with budget.txt, which is reviewed.

usage: budget.py BIN FATBIN BUDGET KERNELS_MD [--update]

BIN has cuobjdump. nvcc is pinned, so the numbers are exact: another one is a diff to look at. Besides:
the fatbin's entries are those of docs/kernels.md (made from the table), at most 64 and 10 MB; no kernel has stack or local memory,
and its SASS neither loads nor stores any (a spill would); nvcc took at most 120 CPU-seconds.
"""
import os
import re
import subprocess
import sys

FATBIN_BYTES_MAX = 10 << 20
KERNELS_MAX = 64
CPU_SECONDS_MAX = 120
HEADER = "# kernel arch registers static-shared-bytes: what ptxas gave; `budget.py --update` writes it\n"


def run(tools, *args):
    environment = dict(os.environ, PATH=tools + ":" + os.environ["PATH"])
    return subprocess.run([os.path.join(tools, "cuobjdump"), *args], capture_output=True, text=True, check=True,
                          env=environment).stdout


def usage(tools, fatbin):
    """(kernel, arch) -> (registers, static shared bytes, stack bytes); and what is wrong."""
    found, wrong, arch, kernel = {}, [], None, None
    for line in run(tools, "-res-usage", fatbin).splitlines():
        if match := re.match(r"arch = (sm_\d+)", line):
            arch = match.group(1)
        elif match := re.match(r" Function (\w+):", line):
            kernel = match.group(1)
        elif match := re.match(r"  REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line):
            registers, stack, shared, local = map(int, match.groups())
            if local or stack:
                wrong.append(f"{kernel} {arch}: {stack} bytes of stack, {local} of local memory")
            found[kernel, arch] = (registers, shared)
    return found, wrong


def spills(tools, fatbin):
    """Instructions of local memory in the SASS."""
    kernel = arch = None
    for line in run(tools, "-sass", fatbin).splitlines():
        if match := re.match(r"arch = (sm_\d+)", line):
            arch = match.group(1)
        elif match := re.search(r"Function : (\w+)", line):
            kernel = match.group(1)
        elif match := re.search(r"\b(LDL|STL)\b", line):
            yield f"{kernel} {arch}: {match.group(1)} in the SASS: it spills"


def text_of(found):
    return HEADER + "".join(f"{k} {a} {r} {s}\n" for (k, a), (r, s) in sorted(found.items()))


def main():
    tools, fatbin, budget, page = sys.argv[1:5]
    found, wrong = usage(tools, fatbin)
    wrong += spills(tools, fatbin)
    if "--update" in sys.argv:
        with open(budget, "w", encoding="utf-8") as f:
            f.write(text_of(found))
    with open(budget, encoding="utf-8") as f:
        expected = f.read()
    if expected != text_of(found):
        before, after = expected.splitlines(), text_of(found).splitlines()
        wrong += [f"budget.txt has '{line}'" for line in before if line not in after]
        wrong += [f"budget.txt lacks '{line}'" for line in after if line not in before]
    with open(page, encoding="utf-8") as f:
        listed = set(re.findall(r"^\| `(kv_\w+)`", f.read(), re.MULTILINE))
    kernels = {kernel for kernel, _ in found}
    if kernels != listed:
        wrong.append(f"entries that are only in the module or only in {page}: {sorted(kernels ^ listed)}")
    if len(kernels) > KERNELS_MAX:
        wrong.append(f"{len(kernels)} entries; at most {KERNELS_MAX}")
    if os.path.getsize(fatbin) > FATBIN_BYTES_MAX:
        wrong.append(f"a fatbin of {os.path.getsize(fatbin)} bytes; at most {FATBIN_BYTES_MAX}")
    with open(fatbin + ".seconds", encoding="utf-8") as f:
        seconds = float(f.read())
    if seconds > CPU_SECONDS_MAX:
        wrong.append(f"nvcc took {seconds} CPU-seconds; at most {CPU_SECONDS_MAX}")
    print(f"{len(kernels)} kernels, {os.path.getsize(fatbin)} bytes, {seconds} CPU-seconds of nvcc")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
