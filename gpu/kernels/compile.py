#!/usr/bin/env python3
"""Compiles the kernels' module with nvcc and says what it cost.

usage: compile.py NVCC ROOT OUTPUT   Writes OUTPUT (a fatbin), OUTPUT.d (its dependencies) and OUTPUT.seconds (CPU time).

Cubins of one major version serve its later minors, so that four cover what is sold; PTX only of the last: a driver that knows
none of the four compiles it.
"""
import resource
import subprocess
import sys

CUBINS = (80, 90, 100, 120)
# No contraction: the packers' results are the same bits on every device and on the CPU.
FLAGS = ("-std=c++20", "-O3", "-fmad=false", "-Werror", "all-warnings")


def main():
    nvcc, root, output = sys.argv[1:]
    targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in CUBINS]
    targets.append(f"-gencode=arch=compute_{CUBINS[-1]},code=compute_{CUBINS[-1]}")
    command = [nvcc, *FLAGS, "-I" + root, *targets, "--fatbin", "-MD", "-MF", output + ".d", "-o", output,
               root + "/gpu/kernels/module.cu"]
    status = subprocess.run(command, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(output + ".seconds", "w", encoding="utf-8") as f:
        f.write(f"{used.ru_utime + used.ru_stime:.1f}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
