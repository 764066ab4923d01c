"""`./dev demo`: a real vLLM on CPU skips prefill through kvarved, shown in one table.

usage: demo.py --build build/release --model FOLDER

Five natural-text prompts of 2,048 + 32 tokens, each with a prefix of its own: cold; again in the same engine; again
after the engine was killed and another started; after engine and kvarved were restarted, once politely and once with
SIGKILL, so that the blocks come from the NVMe tier; one after `kvarve invalidate`. The engine's own prefix cache is off.
"""
import argparse
import os
import sys
import time

from daemon import Daemon
from demo_rows import Pass, Sample, failures, print_passes
from engine_process import EngineProcess

PREFIX_TOKENS, TAIL_TOKENS, NEW_TOKENS, REPETITIONS = 2048, 32, 16, 5
KV_BYTES_PER_TOKEN = 23_040  # of SmolLM2-135M in bf16


def start_engine(build: str, endpoint: str, model: str) -> EngineProcess:
    start = time.monotonic()
    print("starting vLLM ...", flush=True)
    engine = EngineProcess(sys.executable, settings={"endpoint": endpoint}, model=model,
                           environment={"PYTHONPATH": os.path.join(build, "python")})
    # The first request of a process pays once for kernels and threads: it is not the cache's to save.
    warm_up = engine.call("prompts", tokens=PREFIX_TOKENS + TAIL_TOKENS, count=1)["prompts"][0]
    engine.call("ask", prompt=warm_up[::-1], skip_read=True, skip_write=True)
    print(f"vLLM answers after {time.monotonic() - start:.0f} s", flush=True)
    return engine


def ask(engine: EngineProcess, prompt: list[int]) -> Sample:
    got = engine.call("ask", prompt=prompt, max_tokens=NEW_TOKENS, report=True, digested_tokens=PREFIX_TOKENS)
    report = got["report"]["kvarve.report"]
    return Sample(ttft=got["ttft"], computed=len(prompt) - got["loaded"], loaded=got["loaded"],
                  bytes=got["loaded"] * KV_BYTES_PER_TOKEN, lookup=report["lookup_ms"] / 1e3,
                  load=report["load_ms"] / 1e3, output=(got["tokens"], got["logprobs"]), pages=got["pages"])


def run_pass(engine: EngineProcess, name: str, prompts: list[list[int]], expect_loaded: bool,
             from_device: bool = False) -> Pass:
    print(f"{name}: ", end="", flush=True)
    samples = []
    for prompt in prompts:
        samples.append(ask(engine, prompt))
        print(f"{samples[-1].ttft:.2f} s  ", end="", flush=True)
    engine.call("wait_saved")
    print(flush=True)
    return Pass(name, samples, expect_loaded, from_device)


def run(daemon: Daemon, build: str, model: str) -> list[Pass]:
    engine = start_engine(build, daemon.endpoint, model)
    try:
        prompts = engine.call("prompts", tokens=PREFIX_TOKENS + TAIL_TOKENS, count=REPETITIONS)["prompts"]
        passes = [run_pass(engine, "cold", prompts, False), run_pass(engine, "warm, same engine", prompts, True)]
        print("the engine is killed (SIGKILL)", flush=True)
        engine.kill()
        engine = start_engine(build, daemon.endpoint, model)
        passes.append(run_pass(engine, "warm, new engine", prompts, True))
        for name, end, what in (("warm, all restarted", daemon.stop, "engine and kvarved are stopped (SIGTERM)"),
                                ("warm, all killed", daemon.kill, "engine and kvarved are killed (SIGKILL)")):
            print(what, flush=True)
            engine.kill()
            end()
            daemon.start().wait_recovered()
            engine = start_engine(build, daemon.endpoint, model)
            passes.append(run_pass(engine, name, prompts, True, from_device=True))
        daemon.cli("invalidate", "--all", "--yes")
        passes.append(run_pass(engine, "after invalidate", prompts[:1], False))
        return passes
    finally:
        engine.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    build = os.path.abspath(args.build)
    with Daemon(capacity="1GiB", build=build, nvme__device_bytes="1GiB") as daemon:
        print(f"kvarved runs (pid {daemon.pid}, {daemon.endpoint})", flush=True)
        passes = run(daemon, build, os.path.abspath(args.model))
        print_passes(passes)
    found = failures(passes, prefix_tokens=PREFIX_TOKENS, speedup_min=10, share_max=0.040)
    for line in found:
        print("FAILED:", line)
    if not found:
        print("Medians of five. 'lookup' and 'load' are kvarve's own share; the rest is the engine computing 32 tokens.")
    print("Next: README.md, \"A tour in a minute\" runs the same with `vllm serve` and `kvarve status`; ./dev test; "
          "./dev bench")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
