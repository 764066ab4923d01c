"""kvarved for tests: a process of its own in a folder of its own, killed and started at will."""
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

BUILD = os.environ.get("KVARVE_BUILD", os.path.join(os.path.dirname(__file__), "..", "..", "build", "release"))
START_SECONDS_MAX = 20
STOP_SECONDS_MAX = 30


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Daemon:
    """One kvarved. `settings` are names of its configuration table, without their defaults."""

    def __init__(self, capacity: str = "1GiB", build: str = BUILD, **settings):
        self.binaries = os.path.join(build, "bin")
        self.folder = tempfile.mkdtemp(prefix="kvarve-")
        self.socket_path = os.path.join(self.folder, "run", "kvarved.sock")
        self.metrics_port = free_port()
        self._settings = {
            "socket.path": self.socket_path,
            "arena.capacity_bytes": capacity,
            "arena.prefault": "false",
            "tenant.state_dir": os.path.join(self.folder, "state"),
            "metrics.listen": f"127.0.0.1:{self.metrics_port}",
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        self.rpc_port = free_port()
        self.token_file = os.path.join(self.folder, "token")
        with open(os.open(self.token_file, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as f:
            f.write("a-token-of-the-test-0123456789\n")
        if "nvme.device_bytes" in self._settings:
            self._settings.setdefault("nvme.devices", os.path.join(self.folder, "nvme0"))
        self._settings.setdefault("rpc.listen", f"127.0.0.1:{self.rpc_port}")
        self._settings.setdefault("rpc.token_file", self.token_file)
        self._process = None
        self._log = open(os.path.join(self.folder, "kvarved.log"), "ab")

    @property
    def endpoint(self) -> str:
        return "unix://" + self.socket_path

    @property
    def remote_endpoint(self) -> str:
        """As another host's daemon, over gRPC; wants token_file."""
        return f"kvarve://127.0.0.1:{self.rpc_port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, wait: bool = True) -> "Daemon":
        flags = [f"--{name}={value}" for name, value in self._settings.items()]
        self._process = subprocess.Popen([os.path.join(self.binaries, "kvarved"), *flags],
                                         stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"kvarved ended with {self._process.returncode}:\n{self.log()}")
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                    s.connect(self.socket_path)
                return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError(f"kvarved was not ready after {START_SECONDS_MAX} s:\n{self.log()}")

    def wait_recovered(self) -> None:
        """Until it says that its devices know what they have: lookups before that may miss it."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if json.loads(self.cli("--json", "status")).get("nvme", {}).get("recovered"):
                return
            time.sleep(0.02)
        raise RuntimeError(f"the devices were not ready after {START_SECONDS_MAX} s:\n{self.log()}")

    def flip_stored_bit(self, block: bytes) -> bool:
        """Turns one bit of a block where it lies in the arena, as failing memory would. False: the system does not
        let this process write into the daemon's memory (it takes root)."""
        try:
            place = self._find_in_memory(block)
            with open(f"/proc/{self.pid}/mem", "r+b", buffering=0) as memory:
                memory.seek(place + len(block) // 2)
                memory.write(bytes([block[len(block) // 2] ^ 1]))
        except PermissionError:
            return False
        return True

    def _find_in_memory(self, block: bytes) -> int:
        """The address of a stored block in the daemon's arena."""
        with open(f"/proc/{self.pid}/maps", encoding="utf-8") as maps:
            shared = [line.split() for line in maps if "memfd:" in line]
        for span, _, offset, *_ in shared:
            begin, end = (int(number, 16) for number in span.split("-"))
            with open(f"/proc/{self.pid}/map_files/{begin:x}-{end:x}", "rb") as chunk:
                with mmap.mmap(chunk.fileno(), end - begin, prot=mmap.PROT_READ, offset=int(offset, 16)) as bytes_of:
                    at = bytes_of.find(block)
            if at >= 0:
                return begin + at
        raise ValueError("no such block in the daemon's memory")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Stopped when it returns: until its main thread gets a processor, the others go on."""
        self._process.send_signal(signal.SIGSTOP)
        while any(state != "T" for state in self._thread_states()):
            time.sleep(0.001)

    def _thread_states(self) -> list[str]:
        folder = f"/proc/{self._process.pid}/task"
        stats = [open(f"{folder}/{thread}/stat", encoding="ascii").read() for thread in os.listdir(folder)]
        return [text[text.rindex(")") + 2] for text in stats]

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        if self._process is None or self._process.poll() is not None:
            return 0
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"kvarved did not stop in {STOP_SECONDS_MAX} s:\n{self.log()}") from None

    def close(self) -> None:
        try:
            self.stop()
        finally:
            self._log.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        with open(self._log.name, encoding="utf-8", errors="replace") as f:
            return f.read()[-8000:]

    def cli(self, *arguments: str) -> str:
        """Runs the command-line client against this daemon and returns what it printed."""
        answer = subprocess.run([os.path.join(self.binaries, "kvarve"), *arguments, "--endpoint", self.endpoint],
                                capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise RuntimeError(f"kvarve {' '.join(arguments)}: {answer.stdout}{answer.stderr}")
        return answer.stdout

    def __enter__(self) -> "Daemon":
        return self.start()

    def __exit__(self, *_) -> None:
        self.close()
