"""What tests of kvarved and kvarve as processes share: a daemon in a folder of its own, and the commands run against it."""
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

BINARIES = ""  # from the command line
WAIT_SECONDS_MAX = 30
STOP_SECONDS_MAX = 20
MIB = 1 << 20
GOOD, FAILED, USAGE, NO_DAEMON, MISS, PROBLEM = range(6)
TOKENS = ",".join(str(i * 7) for i in range(64))
CHAIN = ("--block-bytes", "64KiB", "--block-tokens", "16", "--tokens", TOKENS)  # four blocks of 64 KiB
BLOCK = 64 * 1024


def environment(**more):
    """Without the KVARVE_ variables of whoever runs the test. A process that must not be traced cannot look for leaks."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KVARVE")}
    return clean | {"ASAN_OPTIONS": "detect_leaks=0", **more}


def free_port():
    """Below those that the kernel gives connections: one of these could take it between two daemons."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as limits:
        end = int(limits.read().split()[0])
    while True:
        port = random.randrange(10_000, max(end, 10_001))
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Daemon:
    def __init__(self, folder, *flags, binary=None, user=None, wait=True, **variables):
        self.folder = folder
        self.socket = os.path.join(folder, "run", "kvarved.sock")
        self.port = 0
        self.log_path = os.path.join(folder, "log")
        arguments = [binary or os.path.join(BINARIES, "kvarved"), f"--socket.path={self.socket}",
                     "--arena.capacity_bytes=256MiB", "--arena.chunk_bytes=32MiB", "--arena.prefault=false",
                     "--metrics.listen=127.0.0.1:0", *flags]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(arguments, stderr=log, stdout=log, stdin=subprocess.DEVNULL,
                                            env=environment(**variables), user=user, group=user,
                                            extra_groups=[] if user else None)
        if wait:
            self.wait_ready()

    def wait_ready(self):
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"kvarved ended with {self.process.returncode}:\n{self.log()}")
            started = re.search(rf"kvarved started.* pid={self.process.pid} .*metrics_port=(\d+)", self.log())
            if started:
                self.port = int(started.group(1))
                return
            time.sleep(0.02)
        raise AssertionError("kvarved did not become ready:\n" + self.log())

    def http(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self):
        samples = {}
        for line in self.http("/metrics")[1].splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                samples[name] = float(value)
        return samples

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("kvarved did not stop:\n" + self.log()) from None


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvarve-test-")
        os.chmod(self.folder, 0o755)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start(self, *flags, **options):
        daemon = Daemon(self.folder, *flags, **options)
        self.addCleanup(daemon.stop)
        return daemon

    def run_kvarved(self, *arguments, **variables):
        """Runs it to its end."""
        return subprocess.run([os.path.join(BINARIES, "kvarved"), *arguments], capture_output=True, text=True,
                              timeout=WAIT_SECONDS_MAX, env=environment(**variables), check=False)

    def kvarve(self, *arguments, expect=GOOD, data=None, text=True):
        endpoint = "unix://" + os.path.join(self.folder, "run", "kvarved.sock")
        answer = subprocess.run([os.path.join(BINARIES, "kvarve"), *arguments], capture_output=True, input=data,
                                text=text, timeout=120, env=environment(KVARVE_ENDPOINT=endpoint), check=False)
        self.assertEqual(answer.returncode, expect, f"kvarve {arguments}: {answer.stdout}{answer.stderr}")
        return answer

    def ask(self, *arguments, expect=GOOD, data=None):
        return json.loads(self.kvarve("--json", *arguments, expect=expect, data=data).stdout)

    def until(self, condition):
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not condition():
            self.assertLess(time.monotonic(), deadline, "waited in vain")
            time.sleep(0.02)

    def file(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as f:
            f.write(content)
        return path


def main():
    """Runs the tests of the calling script, whose first argument is the folder of binaries."""
    global BINARIES
    BINARIES = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
