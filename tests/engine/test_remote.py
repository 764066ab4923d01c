"""vLLM with a kvarved of another host, reached over gRPC: hits, the same answers, and a daemon that is killed and started
again in between. Only the connector's settings differ from those of the same host. In fp32: a loaded prefix leaves a
chunk of another shape to compute, in which bf16 answers otherwise on some processors."""
import os
import subprocess

import pytest

from compare import assert_same_answer, differing
from daemon import Daemon
from test_daemon_faults import wait_for_hits

BLOCK, TAIL = 128, 32


def token(folder: str) -> tuple[Daemon, dict]:
    daemon = Daemon(capacity="1GiB")
    return daemon, {"endpoint": daemon.remote_endpoint, "token_file": daemon.token_file}


def mutual_tls(folder: str) -> tuple[Daemon, dict]:
    daemon = Daemon(capacity="1GiB", rpc__tls_certificate_file=f"{folder}/ca/server.pem",
                    rpc__tls_key_file=f"{folder}/ca/server.key", rpc__tls_client_ca_file=f"{folder}/ca/ca.pem")
    subprocess.run([os.path.join(daemon.binaries, "kvarve"), "cert", "dev", "--folder", f"{folder}/ca", "--host",
                    "127.0.0.1", "--tenant", "default"], check=True, capture_output=True)
    return daemon, {"endpoint": daemon.remote_endpoint.replace("kvarve://", "kvarves://"),
                    "tls_ca_file": f"{folder}/ca/ca.pem", "tls_certificate_file": f"{folder}/ca/client-default.pem",
                    "tls_key_file": f"{folder}/ca/client-default.key"}


@pytest.mark.parametrize("how", [token, mutual_tls])
def test_hits_and_survives_a_restart(start, prompts, tmp_path, how):
    daemon, settings = how(str(tmp_path))
    try:
        daemon.start()
        engine = start(settings, dtype="float32")
        prompt = prompts.take(4 * BLOCK + TAIL)
        cold = engine.ask(prompt)
        digests = engine.page_digests(cold, 4 * BLOCK)
        assert cold.loaded == 0
        engine.wait_saved()
        warm = engine.ask(prompt)
        assert warm.loaded == 4 * BLOCK
        assert differing(engine.page_digests(warm, 4 * BLOCK), digests) == []
        assert_same_answer(warm, cold)

        daemon.kill()
        alone = engine.ask(prompt)
        assert alone.loaded == 0 and alone.finish_reason == "length"
        assert_same_answer(alone, cold)
        daemon.start()
        seconds = wait_for_hits(engine, prompt)
        print(f"\n{how.__name__}: hits {seconds:.2f} s after the restart")
        engine.wait_saved()
        again = engine.ask(prompt)
        assert again.loaded == 4 * BLOCK
        assert differing(engine.page_digests(again, 4 * BLOCK), digests) == []
        assert_same_answer(again, cold)
    finally:
        daemon.close()
