"""`vllm serve` as an operator runs it: three processes, HTTP, its own metrics."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from daemon import free_port

START_SECONDS_MAX = 300
STOP_SECONDS_MAX = 60
_DEFAULTS = {"HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}


class VllmServer:
    def __init__(self, model: str, *flags: str, environment: dict | None = None):
        self.port = free_port()
        self.log_path = tempfile.mktemp(prefix="kvarve-serve-", suffix=".log")
        vllm = os.path.join(os.path.dirname(sys.executable), "vllm")
        command = [vllm, "serve", model, "--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "model",
                   "--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "4",
                   "--max-num-batched-tokens", "1024", "--block-size", "128", "--no-enable-prefix-caching",
                   "--disable-hybrid-kv-cache-manager", *flags]
        inherited = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        with open(self.log_path, "ab") as sink:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                                             env={**_DEFAULTS, **inherited, "VLLM_LOGGING_LEVEL": "INFO",
                                                  **(environment or {})},
                                             start_new_session=True)
        self._wait_ready()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"vllm serve ended with {self._process.returncode}:\n{self.log()}")
            try:
                self._get("/health")
                return
            except OSError:
                time.sleep(0.5)
        self.kill()
        raise RuntimeError(f"vllm serve was not ready after {START_SECONDS_MAX} s:\n{self.log()}")

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return answer.read().decode()

    def complete(self, prompt: list[int], max_tokens: int = 16) -> dict:
        """Greedy completion of token ids; the choice with its token log-probabilities."""
        return self.ask(prompt, max_tokens)["choices"][0]

    def ask(self, prompt: list[int], max_tokens: int, **wishes: bool) -> dict:
        """The same with `wishes` for the connector (report=True); the whole answer."""
        body = {"model": "model", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logprobs": 5,
                "ignore_eos": True, "kv_transfer_params": {f"kvarve.{name}": value for name, value in wishes.items()}}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric over the series that carry `labels`."""
        total = 0.0
        for line in self._get("/metrics").splitlines():
            match = re.match(r"([\w:]+)(?:\{(.*)\})? (\S+)$", line)
            if match and match[1] == name and all(f'{k}="{v}"' in (match[2] or "") for k, v in labels.items()):
                total += float(match[3])
        return total

    def wait_saved(self) -> None:
        deadline = time.monotonic() + 30
        settled = 0
        while settled < 3:  # the gauge is as old as the last step
            settled = settled + 1 if self.metric("kvarve_connector_pending_saves") == 0 else 0
            if time.monotonic() > deadline:
                raise TimeoutError("saves are still pending")
            time.sleep(0.2)

    def log(self) -> str:
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()[-6000:]

    def kill(self) -> None:
        """SIGKILL to the server and all its processes."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self._process.terminate()
        return self._process.wait(STOP_SECONDS_MAX)
