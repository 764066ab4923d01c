#!/usr/bin/env python3
"""The pack of the device benchmark, made and run where it lies: it starts with its own libraries alone, and where there is no
driver each step says so.

usage: pack_test.py BUILD
"""
import json
import os
import subprocess
import sys
import tempfile

import pack


def main():
    build = sys.argv[1]
    with tempfile.TemporaryDirectory() as temp:
        folder = os.path.join(temp, "packed")
        pack.pack(build, folder)
        size = pack.size(folder)
        print(f"{size / (1 << 20):.1f} MiB")
        assert size < 60 << 20
        out = os.path.join(temp, "out.json")
        environment = {"PATH": "/usr/bin:/bin"}
        ended = subprocess.run([f"{folder}/run.sh", "--out", out, "--steps", "environment", "--steps", "kernels"], cwd="/",
                               env=environment, capture_output=True, text=True, timeout=100, check=False)
        with open(out, encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        ends = {line["step"]: line for line in lines if "status" in line}
        assert set(ends) == {"environment", "kernels"}, (lines, ended)
        assert lines[0]["row"] == "host" and lines[0]["threads"] > 0, lines[0]
        if os.path.exists("/dev/nvidiactl"):
            return
        assert ended.returncode == 1, ended
        for line in ends.values():
            assert line["status"] == "failed" and "no CUDA driver on this host" in line["error"], line
        # The program finds its libraries beside it, not in this host.
        maps = subprocess.run([f"{folder}/lib/{pack.LOADER}", "--library-path", f"{folder}/lib", "--list",
                               f"{folder}/kvarve_gpu_bench"], capture_output=True, text=True, check=True).stdout
        outside = [line for line in maps.splitlines() if "=>" in line and folder not in line and "vdso" not in line]
        assert not [line for line in outside if pack.LOADER not in line], outside


if __name__ == "__main__":
    main()
