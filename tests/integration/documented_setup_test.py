#!/usr/bin/env python3
"""The set-up of docs/security.md for one host, line by line as it is printed there, in a shell of its own.

usage: documented_setup_test.py FOLDER_OF_BINARIES
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

from daemon_case import free_port

BINARIES = ""  # from the command line
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "security.md")


class DocumentedSetup(unittest.TestCase):
    def test_one_host(self):
        with open(PAGE, encoding="utf-8") as page:
            lines = re.search(r"## Set-up, step by step.*?```sh\n(.*?)```", page.read(), re.S).group(1)
        self.assertIn("7410", lines)
        lines = lines.replace("7410", str(free_port()))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("KVARVE")}
        with tempfile.TemporaryDirectory() as folder:
            script = "set -eux\ntrap 'kill %1; wait' EXIT\n" + lines
            done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=90, check=False,
                                  env=clean | {"PATH": f"{BINARIES}:{os.environ['PATH']}", "ASAN_OPTIONS": "detect_leaks=0"})
            self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn("2 of 2 blocks (128 KiB), verified", done.stderr)
        self.assertIn("may not write here", done.stderr)
        self.assertIn("token refused: it is revoked", done.stderr)
        self.assertIn("it may not\n", done.stdout)
        self.assertTrue(done.stdout.rstrip().endswith("it is revoked"), done.stdout)


if __name__ == "__main__":
    BINARIES = os.path.abspath(sys.argv.pop(1))
    unittest.main()
