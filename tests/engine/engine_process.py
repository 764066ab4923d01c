"""A real engine in a process of its own, that can be killed. The parent's side is EngineProcess, which needs no vLLM.

Requests and answers are JSON lines over two pipes; what vLLM prints goes to a log file.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


class EngineProcess:
    def __init__(self, python: str, *, settings: dict, log: str | None = None, environment: dict | None = None,
                 **options):
        self.log_path = log or tempfile.mktemp(prefix="kvarve-engine-", suffix=".log")
        to_child, from_parent = os.pipe()
        to_parent, from_child = os.pipe()
        with open(self.log_path, "ab") as sink:
            self._process = subprocess.Popen(
                [python, os.path.join(HERE, "engine_process.py"), str(to_child), str(from_child),
                 json.dumps({"settings": settings, "options": options})],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, pass_fds=(to_child, from_child),
                env={**os.environ, **(environment or {})}, start_new_session=True)
        os.close(to_child)
        os.close(from_child)
        self._requests = os.fdopen(from_parent, "w", buffering=1)
        self._answers = os.fdopen(to_parent)
        self._read()  # it has started

    def _read(self) -> dict:
        line = self._answers.readline()
        if not line:
            with open(self.log_path, encoding="utf-8", errors="replace") as f:
                raise RuntimeError(f"the engine ended with {self._process.wait()}:\n{f.read()[-4000:]}")
        return json.loads(line)

    def call(self, operation: str, **arguments) -> dict:
        self._requests.write(json.dumps({"operation": operation, **arguments}) + "\n")
        return self._read()

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self._requests.close()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


def serve(requests, answers, settings, options) -> None:
    from engine import Engine
    from prompts import Prompts

    with Engine(settings, **options) as engine:
        prompts = Prompts(engine.tokenizer)

        def answer(**fields):
            answers.write(json.dumps(fields) + "\n")
            answers.flush()

        answer(started=True)
        for line in requests:
            request = json.loads(line)
            operation = request.pop("operation")
            if operation == "prompts":
                answer(prompts=[prompts.take(request["tokens"]) for _ in range(request["count"])])
            elif operation == "wait_saved":
                engine.wait_saved()
                answer(saved=True)
            else:
                digested = request.pop("digested_tokens", 0)
                got = engine.ask(request.pop("prompt"), **request)
                answer(tokens=got.tokens, logprobs=got.logprobs, loaded=got.loaded, ttft=got.ttft, report=got.report,
                       finish_reason=got.finish_reason, pages=engine.page_digests(got, digested))


def main() -> None:
    requests, answers, arguments = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w"), json.loads(sys.argv[3])
    serve(requests, answers, arguments["settings"], arguments["options"])


if __name__ == "__main__":
    main()
