"""A kvarved under load: more is put than its memory holds, so that blocks leave, are written and come back from a device."""
import os
import random
import socket
import subprocess
import threading
import time
import urllib.request

from conftest import BUILD

WAIT_SECONDS_MAX = 30
BLOCK_TOKENS, LAYERS, HEADS, DIM = 16, 8, 8, 128
BLOCK_BYTES = LAYERS * 2 * HEADS * BLOCK_TOKENS * DIM * 2  # 512 KiB
CHAINS, CHAIN_BLOCKS = 24, 16  # 192 MiB
PAUSE = 0.02
RECOMPUTE_US = 5000  # what a block costs the client to compute
SEED = 20
TOKEN = "a-secret-token-of-the-test-0123456789"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class LoadedDaemon:
    """Two tenants by certificate of uid: this process's is team-a; team-b has quotas and no clients."""

    def __init__(self, folder):
        self.folder = folder
        self.metrics_port, self.rpc_port = free_port(), free_port()
        self.socket = str(folder / "run/kvarved.sock")
        token = folder / "token"
        with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as f:
            f.write(TOKEN + "\n")
        self.log = open(folder / "log", "wb")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("KVARVE")}
        self.process = subprocess.Popen([
            BUILD / "bin/kvarved", f"--socket.path={self.socket}", "--arena.capacity_bytes=128MiB", "--arena.chunk_bytes=32MiB",
            "--arena.prefault=false", f"--metrics.listen=127.0.0.1:{self.metrics_port}", f"--rpc.listen=127.0.0.1:{self.rpc_port}",
            f"--rpc.token_file={token}", f"--tenant.state_dir={folder}/state", f"--nvme.devices={folder}/nvme0",
            "--nvme.device_bytes=1GiB", "--nvme.drive_writes_per_day=200", "--log.slow_request=1ms",
            f"--tenant.rules=uid:{os.geteuid()}=team-a",
            "--tenant.quotas=team-a=host_bytes:32MiB..96MiB entries:..100000 lease_bytes:..2MiB,team-b=host_bytes:32MiB..64MiB"],
            stdout=self.log, stderr=self.log, env=clean)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while self.get("/readyz")[0] != 200:
            assert self.process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        self.stopping = threading.Event()
        self.error = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except OSError as error:
            return getattr(error, "code", 0), str(error)

    def _run(self):
        try:
            self._load()
        except Exception as error:  # told by stop()
            self.error = error

    def _load(self):
        import kvarve

        client = kvarve.Client("unix://" + self.socket, timeout=5.0)
        client.wait_ready(WAIT_SECONDS_MAX)
        space = client.namespace(
            model="loaded", model_digest="d", element_type=kvarve.ElementType.BF16, layer_count=LAYERS, layer_total=LAYERS,
            kv_head_count=HEADS, kv_head_total=HEADS, k_dim=DIM, v_dim=DIM, block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES,
            hash_version=kvarve.CHAIN_HASH_VERSION)
        chances = random.Random(SEED)
        while not self.stopping.is_set():
            chain = chances.randrange(CHAINS)
            keys = kvarve.chain_keys([chain * 100_000 + i for i in range(CHAIN_BLOCKS * BLOCK_TOKENS)], BLOCK_TOKENS)
            expected = [bytes([(chain + i) % 256]) * BLOCK_BYTES for i in range(CHAIN_BLOCKS)]
            space.lookup(keys)
            found = space.get(keys)
            assert found == expected[:len(found)]
            if len(found) < CHAIN_BLOCKS:
                space.put(keys, expected, recompute_us=RECOMPUTE_US)
            self.stopping.wait(PAUSE)

    def stop(self):
        self.stopping.set()
        self.thread.join(WAIT_SECONDS_MAX)
        self.process.terminate()
        assert self.process.wait(WAIT_SECONDS_MAX) == 0
        self.log.close()
        if self.error is not None:
            raise self.error
