#!/usr/bin/env python3
"""What `cmake --install` gives to a C program: it compiles against the installed tree alone, runs against a daemon of the
same tree, and sees of the library what kvarve.h declares and nothing else.

usage: installed_test.py BUILD_FOLDER [TEST...]
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = ""  # from the command line
HERE = pathlib.Path(__file__).resolve().parent
WAIT_SECONDS_MAX = 30


def run(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, **more).stdout


class InstalledTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="kvarve-installed-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.tree = pathlib.Path(cls.folder, "tree")
        run("cmake", "--install", BUILD, "--prefix", str(cls.tree))
        cls.library = next(cls.tree.rglob("libkvarve.so"))
        cls.clean = {k: v for k, v in os.environ.items() if not k.startswith(("KVARVE", "LD_", "PKG_CONFIG"))}
        cls.clean["PKG_CONFIG_PATH"] = str(cls.library.parent / "pkgconfig")

    def test_the_library_exports_what_the_header_declares(self):
        header = (self.tree / "include/kvarve/kvarve.h").read_text()
        declared = set(re.findall(r"\b(kvarve_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.S)))
        self.assertGreater(len(declared), 15)
        symbols = run("nm", "-D", "--defined-only", str(self.library)).split("\n")
        self.assertEqual({line.split()[-1] for line in symbols if line}, declared)

    def test_its_name_has_a_version(self):
        dynamic = run("readelf", "-d", str(self.library))
        self.assertRegex(dynamic, r"SONAME.*libkvarve\.so\.\d+\]")
        self.assertTrue((self.library.parent / re.search(r"libkvarve\.so\.\d+", dynamic)[0]).exists())
        self.assertNotRegex(dynamic, r"R(UN)?PATH")

    def test_a_c_program(self):
        flags = run("pkg-config", "--cflags", "--libs", "kvarve", env=self.clean).split()
        self.assertIn(f"-I{self.tree}/include", [os.path.normpath(flag) for flag in flags])
        program = os.path.join(self.folder, "program")
        for compiler, language in (("cc", ["-x", "c", "-std=c99"]), ("c++", ["-x", "c++", "-fsyntax-only", "-fpermissive", "-w"])):
            run(compiler, *language, "-Wall", "-Wextra", "-Werror", "-pedantic", str(HERE / "installed_program.c"), "-x", "none",
                "-o", program, *flags)
        socket = os.path.join(self.folder, "run", "s")
        with open(os.path.join(self.folder, "log"), "wb") as log:
            daemon = subprocess.Popen([self.tree / "bin/kvarved", f"--socket.path={socket}", "--arena.capacity_bytes=64MiB",
                                       "--arena.prefault=false", "--metrics.listen=off"], stderr=log, env=self.clean)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.terminate)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not os.path.exists(socket) and daemon.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        done = subprocess.run([program, f"unix://{socket}"], capture_output=True, text=True, timeout=120,
                              env=self.clean | {"LD_LIBRARY_PATH": str(self.library.parent)})
        self.assertEqual((done.returncode, done.stderr), (0, ""), pathlib.Path(self.folder, "log").read_text())


if __name__ == "__main__":
    BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
