"""`./dev demo --serve`: the demonstration through `vllm serve`, as a client of its HTTP API sees it.

usage: serve_demo.py --build build/release --model FOLDER

Five natural-text prompts, cold; again; again after the server was killed and another started. The time is that of a
whole request for one token. What a page holds cannot be seen from outside: `./dev demo` compares the pages.
"""
import argparse
import json
import os
import sys
import time

from daemon import Daemon
from demo import KV_BYTES_PER_TOKEN, NEW_TOKENS, PREFIX_TOKENS, REPETITIONS, TAIL_TOKENS
from demo_rows import Pass, Sample, failures, print_passes
from prompts import Prompts
from vllm_server import VllmServer


def start_server(build: str, endpoint: str, model: str, warm_up: list[int]) -> VllmServer:
    start = time.monotonic()
    print("starting vllm serve ...", flush=True)
    transfer = {"kv_connector": "KvarveConnector", "kv_role": "kv_both",
                "kv_connector_extra_config": {"endpoint": endpoint, "strict": True}}
    server = VllmServer(model, "--kv-transfer-config", json.dumps(transfer),
                        environment={"PYTHONPATH": os.path.join(build, "python")})
    server.ask(warm_up, 1, skip_read=True, skip_write=True)
    print(f"vllm serve answers after {time.monotonic() - start:.0f} s", flush=True)
    return server


def ask(server: VllmServer, prompt: list[int], is_cold: bool) -> Sample:
    start = time.monotonic()
    answer = server.ask(prompt, 1, report=True)
    ttft = time.monotonic() - start
    report = answer["kv_transfer_params"]["kvarve.report"]
    # The cold output is computed to its end: what the first request saved is not read.
    choice = server.ask(prompt, NEW_TOKENS, skip_read=is_cold)["choices"][0]
    loaded = report["hit_tokens"]
    return Sample(ttft=ttft, computed=len(prompt) - loaded, loaded=loaded, bytes=loaded * KV_BYTES_PER_TOKEN,
                  lookup=report["lookup_ms"] / 1e3, load=report["load_ms"] / 1e3,
                  output=(choice["text"], choice["logprobs"]))


def run_pass(server: VllmServer, name: str, prompts: list[list[int]], is_cold: bool) -> Pass:
    print(f"{name}: ", end="", flush=True)
    samples = []
    for prompt in prompts:
        samples.append(ask(server, prompt, is_cold))
        print(f"{samples[-1].ttft:.2f} s  ", end="", flush=True)
    server.wait_saved()
    print(flush=True)
    return Pass(name, samples, expect_loaded=not is_cold)


def run(daemon: Daemon, build: str, model: str) -> list[Pass]:
    from transformers import AutoTokenizer
    text = Prompts(AutoTokenizer.from_pretrained(model))
    warm_up, *prompts = [text.take(PREFIX_TOKENS + TAIL_TOKENS) for _ in range(1 + REPETITIONS)]
    server = start_server(build, daemon.endpoint, model, warm_up)
    try:
        passes = [run_pass(server, "cold", prompts, True), run_pass(server, "warm, same server", prompts, False)]
        print("the server is killed (SIGKILL)", flush=True)
        server.kill()
        server = start_server(build, daemon.endpoint, model, warm_up)
        passes.append(run_pass(server, "warm, new server", prompts, False))
        daemon.cli("invalidate", "--all", "--yes")
        passes.append(run_pass(server, "after invalidate", prompts[:1], True))
        return passes
    finally:
        server.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    build = os.path.abspath(args.build)
    with Daemon(capacity="1GiB", build=build) as daemon:
        passes = run(daemon, build, os.path.abspath(args.model))
        print_passes(passes)
    found = failures(passes, prefix_tokens=PREFIX_TOKENS, speedup_min=10, share_max=0.040)
    for line in found:
        print("FAILED:", line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
