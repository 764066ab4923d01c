#!/usr/bin/env python3
"""The program kvarve-agent, over the emulator's libcuda.so.1: how it starts, refuses and ends. What it does for an engine is
gpu/agent's tests' matter.

usage: agent_cli_test.py BIN FAKE_CUDA
"""
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import unittest

AGENT = os.path.join(os.path.abspath(sys.argv[1]), "kvarve-agent")
WITH_GPU = dict(os.environ, LD_LIBRARY_PATH=os.path.abspath(sys.argv[2]))
LONG = 60


def run(*args, env=WITH_GPU):
    return subprocess.run([AGENT, *args], capture_output=True, text=True, timeout=LONG, env=env)


class AgentTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.socket = os.path.join(self.folder.name, "agent.sock")

    def tearDown(self):
        self.folder.cleanup()

    def start(self):
        agent = subprocess.Popen([AGENT, "--socket", self.socket], stdout=subprocess.PIPE, text=True, env=WITH_GPU)
        self.addCleanup(agent.stdout.close)
        self.assertRegex(agent.stdout.readline(), f"^kvarve-agent: {self.socket} on GPU-11111111-")
        while True:  # it listens a moment after it says so
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                client.connect(self.socket)
                return agent
            except (FileNotFoundError, ConnectionRefusedError):
                self.assertIsNone(agent.poll())
            finally:
                client.close()

    def test_serves_its_user_alone_until_it_is_told_to_end(self):
        for end in (signal.SIGTERM, signal.SIGINT):
            agent = self.start()
            self.assertEqual(stat.S_IMODE(os.stat(self.socket).st_mode), 0o600)
            other = run("--socket", self.socket)
            self.assertEqual(other.returncode, 1)
            self.assertIn("another agent listens on " + self.socket, other.stderr)
            agent.send_signal(end)
            self.assertEqual(agent.wait(LONG), 0)
            self.assertFalse(os.path.exists(self.socket))

    def test_replaces_the_socket_of_one_that_was_killed(self):
        agent = self.start()
        agent.kill()
        agent.wait(LONG)
        self.assertTrue(os.path.exists(self.socket))
        again = self.start()
        again.terminate()
        self.assertEqual(again.wait(LONG), 0)

    def test_says_why_it_cannot_serve(self):
        for env, args, code, words in (
                ({}, ("--socket", self.socket), 1, "no CUDA driver on this host"),
                (WITH_GPU, ("--socket", "/no/such/folder/agent.sock"), 1, "/no/such/folder/agent.sock: No such file"),
                (WITH_GPU, ("--socket", self.socket, "--device", "GPU-none"), 1, "there are: GPU-11111111-"),
                (WITH_GPU, ("--socket", self.socket, "--staging", "many"), 1, '"many" is no size'),
                (WITH_GPU, ("--stagings", "1MiB"), 2, "--stagings")):
            said = run(*args, env=env)
            self.assertEqual(said.returncode, code, said.stderr)
            self.assertIn(words, said.stderr)
            self.assertFalse(os.path.exists(self.socket))
        self.assertRegex(run("--version").stdout, r"^kvarve-agent \d+\.\d+\.\d+\n$")
        self.assertIn("Exit codes", run("--help").stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
