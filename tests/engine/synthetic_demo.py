"""`./dev demo --no-engine`: what kvarve does for an engine, shown in seconds by one of two processes and no model.

usage: synthetic_demo.py --build build/release

A scheduler's process looks prompts up and leases what is there; a worker's process maps it, computes the rest by plain
arithmetic in place of a model, and saves what is new.
"""
import argparse
import json
import os
import subprocess
import sys

from daemon import Daemon
from demo_rows import Pass, Sample, failures, print_passes

PREFIX_TOKENS, TAIL_TOKENS, REPETITIONS = 2048, 32, 5


class SyntheticEngine:
    def __init__(self, build: str, endpoint: str):
        self._process = subprocess.Popen([os.path.join(build, "bin", "kvarve_synthetic_engine"), endpoint],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                                         start_new_session=True)

    def _ask(self, line: str) -> dict:
        self._process.stdin.write(line + "\n")
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the synthetic engine ended with {self._process.wait()}")
        return json.loads(answer)

    def prefill(self, seed: int):
        run, save = self._ask(f"run {seed} {PREFIX_TOKENS + TAIL_TOKENS}"), self._ask("save")
        return Sample(ttft=run["ttft_ms"] / 1e3, computed=run["computed"], loaded=run["loaded"], bytes=run["bytes"],
                      lookup=run["lookup_ms"] / 1e3, load=run["load_ms"] / 1e3, output=save["pages"],
                      pages=save["pages"])

    def kill(self) -> None:
        """SIGKILL to both processes."""
        os.killpg(self._process.pid, 9)
        self._process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    build = os.path.abspath(parser.parse_args().build)
    seeds = range(1, REPETITIONS + 1)
    with Daemon(capacity="512MiB", build=build, nvme__device_bytes="1GiB") as daemon:
        print(f"kvarved runs (pid {daemon.pid}, {daemon.endpoint})")
        engine = SyntheticEngine(build, daemon.endpoint)
        try:
            print(f"{REPETITIONS} prompts of {PREFIX_TOKENS} + {TAIL_TOKENS} tokens: cold, then again")
            passes = [Pass("cold", [engine.prefill(s) for s in seeds], False),
                      Pass("warm, same engine", [engine.prefill(s) for s in seeds], True)]
            print("both processes of the engine are killed; another engine starts")
            engine.kill()
            engine = SyntheticEngine(build, daemon.endpoint)
            passes.append(Pass("warm, new engine", [engine.prefill(s) for s in seeds], True))
            for name, end, what in (("warm, all restarted", daemon.stop, "stopped (SIGTERM)"),
                                    ("warm, all killed", daemon.kill, "killed (SIGKILL)")):
                print(f"engine and kvarved are {what}; both start again", flush=True)
                engine.kill()
                end()
                daemon.start().wait_recovered()
                engine = SyntheticEngine(build, daemon.endpoint)
                passes.append(Pass(name, [engine.prefill(s) for s in seeds], True, from_device=True))
            daemon.cli("invalidate", "--all", "--yes")
            passes.append(Pass("after invalidate", [engine.prefill(s) for s in seeds], False))
        finally:
            engine.kill()
        print_passes(passes)
    found = failures(passes, prefix_tokens=PREFIX_TOKENS, speedup_min=5, share_max=0.040)
    for line in found:
        print("FAILED:", line)
    print("The model here is arithmetic, so the speed-up says little; ./dev demo shows a real one.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
