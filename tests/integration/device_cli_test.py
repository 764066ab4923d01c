#!/usr/bin/env python3
"""kvarve device, and a daemon over devices, as processes: made, looked into, added and taken away; ends polite and not;
what is refused, and what the refusal says to do.

usage: device_cli_test.py FOLDER_OF_BINARIES [TEST...]
"""
import errno
import os
import pty
import shutil
import signal
import subprocess

import daemon_case
from daemon_case import BLOCK, CHAIN, FAILED, MISS, PROBLEM, USAGE, Case, environment, main

SMALL = ("--size", "17MiB", "--segment", "1MiB", "--quick")


class DeviceCase(Case):
    def path(self, name):
        return os.path.join(self.folder, name)

    def make(self, name, *more):
        return self.ask("device", "format", self.path(name), *SMALL, *more)

    def serve(self, *names, **options):
        flags = [f"--nvme.devices={','.join(self.path(n) for n in names)}"] if names else []
        return self.start(*flags, "--nvme.drive_writes_per_day=0", f"--tenant.state_dir={self.folder}/state", **options)

    def put(self):
        data = os.urandom(4 * BLOCK)
        self.assertEqual(self.ask("put", *CHAIN, self.file("in", data))["stored"], 4)
        self.until(lambda: self.ask("stats")["nvme"]["written_blocks"] == 4)
        return data

    def got(self):
        out = self.path("out")
        self.ask("get", *CHAIN, "-o", out)
        with open(out, "rb") as f:
            return f.read()


class FilesTest(DeviceCase):
    def test_made_and_looked_into(self):
        made = self.make("a")
        self.assertEqual((made["segments"], made["segment_bytes"]), (16, 1 << 20))
        self.assertEqual(os.stat(self.path("a")).st_mode & 0o777, 0o600)
        seen = self.ask("device", "inspect", self.path("a"))
        self.assertEqual((seen["uuid"], seen["blocks"], seen["slots"]), (made["uuid"], 0, 16))
        self.assertIn(made["uuid"], self.kvarve("device", "inspect", self.path("a")).stdout)
        self.assertEqual(self.ask("device", "dump-segment", self.path("a")), [])
        self.assertNotEqual(self.make("a")["uuid"], made["uuid"])  # ours needs no force
        self.assertIn("16 segments of 1.00 MiB", self.kvarve("device", "format", self.path("b"), *SMALL).stdout)
        self.assertEqual(self.ask("device", "format", self.path("b"), "--size", "64MiB", "--quick")["segment_bytes"], 8 << 20)

    def on_a_terminal(self, *command):
        """What it writes to a standard error that is one."""
        terminal, end = pty.openpty()
        more = ("--size", "17MiB") if "format" in command else ()
        subprocess.run([os.path.join(daemon_case.BINARIES, "kvarve"), *command, *more], stdout=subprocess.DEVNULL,
                       stderr=end, env=environment(), timeout=60, check=True)
        os.close(end)
        shown = os.read(terminal, 1 << 16).decode()
        os.close(terminal)
        return shown

    def test_what_is_refused_says_what_to_do(self):
        def refused(*arguments, expect=FAILED):
            error = self.ask("device", *arguments, expect=expect)["error"]
            self.assertEqual(self.kvarve("device", *arguments, expect=expect).stderr.count("\n"), 1)
            return error["message"]
        foreign = self.file("foreign", b"x" * (4 << 20))
        self.assertIn("--force", refused("format", foreign, *SMALL))
        self.assertEqual(os.path.getsize(foreign), 4 << 20)
        os.symlink(foreign, self.path("link"))
        self.assertIn("symbolic link", refused("format", self.path("link"), *SMALL, "--force"))
        self.assertIn("too small", refused("format", self.path("new"), "--size", "1MiB"))
        self.assertIn("too small", refused("format", self.path("new"), "--size", "1GiB", "--segment", "256MiB"))
        self.assertIn("no space", refused("format", self.path("new"), "--size", "1000TiB"))
        self.assertIn("--size", refused("format", self.path("new")))
        self.assertIn("there is no folder", refused("format", self.path("none/new"), *SMALL))
        self.assertFalse(os.path.exists(self.path("new")))
        self.assertIn("for example 100GiB", refused("format", self.path("new"), "--size", "large", expect=USAGE))
        for look in ("inspect", "scrub", "dump-segment"):
            self.assertIn("does not exist", refused(look, self.path("none")))
            self.assertIn("no kvarve device", refused(look, foreign))
            self.assertIn("directory", refused(look, self.folder))

    def test_damage_is_found(self):
        self.make("a")
        daemon = self.serve("a")
        data = self.put()
        self.assertEqual(daemon.stop(), 0)  # politely: the segment is sealed
        (segment,) = self.ask("device", "dump-segment", self.path("a"))
        self.assertEqual(segment["blocks"], 4)
        records = self.ask("device", "dump-segment", self.path("a"), str(segment["segment"]))
        self.assertEqual([record["depth"] for record in records], [0, 1, 2, 3])
        self.assertIn("without a number", self.ask("device", "dump-segment", self.path("a"), "77", expect=FAILED)["error"]
                      ["message"])
        self.assertEqual(self.ask("device", "scrub", self.path("a"))["failed_blocks"], 0)
        for command, does in (("inspect", ("reading",)), ("scrub", ("reading", "verifying")), ("format", ("writing",))):
            shown = self.on_a_terminal("device", command, self.path("a" if command != "format" else "b"))
            for what in does:
                self.assertRegex(shown, what + r" \[#{40}\] 100 %")
        with open(self.path("a"), "r+b") as f:
            at = f.read().index(data[2 * BLOCK:2 * BLOCK + 64])
            f.seek(at)
            f.write(b"?" * 64)
        self.assertEqual(self.ask("device", "scrub", self.path("a"), expect=PROBLEM)["failed_blocks"], 1)
        self.serve("a")
        self.assertEqual(self.ask("get", *CHAIN, "-o", self.path("out"), expect=MISS)["hit_blocks"], 2)


class DaemonTest(DeviceCase):
    def test_blocks_outlive_any_end(self):
        self.make("a")
        daemon = self.serve("a")
        data = self.put()
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            self.assertEqual(daemon.stop(number), 0 if number == signal.SIGTERM else -number)
            daemon = self.serve("a")
            self.until(lambda: self.ask("status")["nvme"]["recovered"])
            self.assertEqual(self.ask("lookup", *CHAIN)["hit_blocks"], 4)
            self.assertEqual(self.got(), data)
        self.assertIn("in use by another process", self.ask("device", "inspect", self.path("a"), expect=FAILED)["error"]
                      ["message"])

    def test_added_and_removed(self):
        self.make("a")
        self.make("b")
        daemon = self.serve("a")
        data = self.put()

        def paths(*command):
            return [os.path.basename(device["path"]) for device in self.ask("device", *command)["devices"]]
        self.assertEqual(paths("add", self.path("b")), ["a", "b"])
        self.assertIn("already", self.ask("device", "add", self.path("b"), expect=FAILED)["error"]["message"])
        # What it has goes with it, and comes back with it.
        self.assertEqual(paths("remove", self.path("a")), ["b"])
        self.assertIn("no device of this daemon", self.kvarve("device", "remove", self.path("a"), expect=FAILED).stderr)
        self.ask("evict", "1GiB")
        self.ask("lookup", *CHAIN, expect=MISS)
        self.assertEqual(paths("add", self.path("a")), ["b", "a"])
        self.until(lambda: self.ask("status")["nvme"]["recovered"])
        self.assertEqual(self.got(), data)
        # Two of one identity would be taken for each other.
        shutil.copy(self.path("a"), self.path("copy"))
        self.assertIn(f"is a copy of {self.path('a')}", self.ask("device", "add", self.path("copy"), expect=FAILED)["error"]
                      ["message"])
        self.assertIn(self.path("a"), self.kvarve("status").stdout)
        self.assertEqual(daemon.stop(), 0)

    def test_a_device_that_a_start_makes(self):
        daemon = self.serve("a", KVARVE_NVME_DEVICE_BYTES="64MiB")
        self.put()
        self.assertEqual(daemon.stop(), 0)
        daemon = self.serve("a", KVARVE_NVME_DEVICE_BYTES="128MiB")
        self.assertIn("keeps the size it was made with", daemon.log())
        self.assertEqual(os.path.getsize(self.path("a")), 64 << 20)
        self.assertEqual(daemon.stop(), 0)
        # The space is taken and not written over: a large one would keep everybody waiting.
        self.serve("b", KVARVE_NVME_DEVICE_BYTES="1GiB")
        self.assertGreaterEqual(os.stat(self.path("b")).st_blocks * 512, 1 << 30)
        with open(self.path("b"), "rb") as f, self.assertRaises(OSError) as nothing:
            os.lseek(f.fileno(), 16 << 20, os.SEEK_DATA)
        self.assertEqual(nothing.exception.errno, errno.ENXIO)

    def test_a_start_that_is_killed_while_it_makes_a_device(self):
        daemon = self.serve("a", KVARVE_NVME_DEVICE_BYTES="2GiB", wait=False)
        self.until(lambda: "makes a device" in daemon.log())
        daemon.stop(signal.SIGKILL)
        self.serve("a", KVARVE_NVME_DEVICE_BYTES="64MiB").stop()
        # The same, whatever the moment was.
        os.unlink(self.path("a"))
        with open(self.path("a.unfinished"), "wb") as f:
            f.truncate(1 << 30)
        self.serve("a", KVARVE_NVME_DEVICE_BYTES="64MiB")
        self.assertEqual(os.path.getsize(self.path("a")), 64 << 20)
        self.assertFalse(os.path.exists(self.path("a.unfinished")))

    def test_a_start_that_is_refused(self):
        foreign = self.file("foreign", b"x" * (4 << 20))
        flags = (f"--socket.path={self.folder}/run/kvarved.sock", "--arena.capacity_bytes=256MiB", "--metrics.listen=off",
                 f"--tenant.state_dir={self.folder}/state")
        for device, size, says in ((foreign, "0", "no kvarve device"), (self.path("none"), "0", "kvarve device format"),
                                   (self.path("none"), "60TiB", "no space")):
            answer = self.run_kvarved(*flags, f"--nvme.devices={device}", f"--nvme.device_bytes={size}")
            self.assertEqual(answer.returncode, 1, answer.stderr)
            self.assertIn(says, answer.stderr)
            self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("none")], [])


if __name__ == "__main__":
    main()
