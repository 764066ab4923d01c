#!/usr/bin/env python3
"""kvarve as a process: wrong command lines, daemons that are not there or do not answer, doctor.

usage: client_cli_test.py FOLDER_OF_BINARIES [TEST...]
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile

import daemon_case
from daemon_case import BLOCK, CHAIN, FAILED, GOOD, MISS, NO_DAEMON, PROBLEM, USAGE, Case, environment, main


class ClientTest(Case):
    def test_no_daemon(self):
        for command in (("status",), ("stats",), ("resize", "1GiB"), ("lookup", *CHAIN),
                        ("invalidate", "--all", "--yes")):
            answer = self.kvarve(*command, "--timeout", "200ms", expect=NO_DAEMON)
            self.assertIn("no daemon answers at unix://", answer.stderr)
        error = self.ask("status", "--timeout", "200ms", expect=NO_DAEMON)["error"]
        self.assertEqual(error["code"], "UNAVAILABLE")

    def test_a_stopped_daemon_is_not_a_missing_one(self):
        daemon = self.start()
        os.kill(daemon.process.pid, signal.SIGSTOP)
        os.waitpid(daemon.process.pid, os.WUNTRACED)  # until all its threads are
        self.addCleanup(os.kill, daemon.process.pid, signal.SIGCONT)
        for command in (("status",), ("resize", "1GiB")):
            answer = self.kvarve(*command, "--timeout", "300ms", expect=NO_DAEMON)
            self.assertIn("does not answer in 300ms", answer.stderr)
        found = self.ask("doctor", "--timeout", "300ms", expect=PROBLEM)
        (connection,) = [f for f in found["findings"] if f["check"] == "connection"]
        self.assertIn("kill -CONT", connection["action"])
        self.assertNotIn("start kvarved", connection["action"])

    def test_wrong_command_lines(self):
        self.assertIn("no time at all", self.kvarve("status", "--timeout", "0", expect=USAGE).stderr)
        self.assertIn("is no duration", self.kvarve("status", "--timeout", "soon", expect=USAGE).stderr)
        self.kvarve(expect=USAGE)
        self.kvarve("fly", expect=USAGE)
        self.kvarve("status", "--frobnicate", expect=USAGE)
        self.assertIn("did you mean status?", self.kvarve("sttus", expect=USAGE).stderr)
        self.assertIn("did you mean --timeout?", self.kvarve("status", "--timout", "1s", expect=USAGE).stderr)
        error = json.loads(self.kvarve("--json", "lookup", "--kye", "00", expect=USAGE).stdout)["error"]
        self.assertEqual(error["code"], "INVALID_ARGUMENT")
        self.assertIn("did you mean --key?", error["message"])
        self.assertIn("Exit codes", self.kvarve("--help").stdout)
        self.assertRegex(self.kvarve("--version").stdout, r"^kvarve \d+\.\d+\.\d+\n$")
        self.kvarve("status", "--endpoint", "http://x", expect=FAILED)

    def start_remote(self, *flags, port=None):
        """A daemon with gRPC, its port, and the options that ask it there."""
        port = port or daemon_case.free_port()
        token = self.file("token", b"0123456789abcdef0123456789abcdef\n")
        os.chmod(token, 0o600)
        daemon = self.start(f"--rpc.listen=127.0.0.1:{port}", f"--rpc.token_file={token}", *flags)
        port = re.search(r"rpc_port=(\d+)", daemon.log()).group(1)
        return daemon, port, ("--endpoint", f"kvarve://127.0.0.1:{port}", "--token-file", token)

    def follow(self, *arguments):
        process = subprocess.Popen([os.path.join(daemon_case.BINARIES, "kvarve"), "events", "--follow", *arguments],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        for end in (process.stdout.close, process.stderr.close, process.wait, process.kill):
            self.addCleanup(end)
        return process

    def test_a_put_waits_as_long_as_it_is_told(self):
        """Its second block may come after four seconds: that is too late, and why is said."""
        _, _, remote = self.start_remote("--tenant.quotas=default=ingest_bytes_per_second:..16KiB")
        path = self.file("in", os.urandom(2 * BLOCK))
        put = self.ask("put", *CHAIN, path, *remote, "--timeout", "2s", expect=FAILED)
        self.assertEqual([block["result"] for block in put["blocks"]], ["stored", "rejected_quota"])
        self.assertIn('tenant "default" is over its quota of ingest_bytes_per_second: at most 16.0 KiB', put["reason"])
        self.kvarve("quota", "default", "ingest_bytes_per_second:..1KiB")  # one more, and then none for a minute
        path = self.file("three", os.urandom(3 * BLOCK))
        put = self.kvarve("put", *CHAIN, path, *remote, "--timeout", "2s", expect=FAILED)
        self.assertIn("a part was not taken: tenant", put.stderr)
        local = self.ask("put", *CHAIN, path, "--timeout", "2s", expect=FAILED)
        self.assertEqual([block["result"] for block in local["blocks"]], ["exists", "exists", "rejected_quota"])

    def test_a_miss_writes_nothing(self):
        self.start()
        out, old = os.path.join(self.folder, "out"), self.file("old", b"kept")
        self.assertEqual(self.ask("get", *CHAIN, "-o", out, expect=MISS)["hit_blocks"], 0)
        self.assertFalse(os.path.exists(out))
        self.ask("get", *CHAIN, "-o", old, expect=MISS)
        with open(old, "rb") as f:
            self.assertEqual(f.read(), b"kept")
        self.ask("put", *CHAIN, self.file("in", b"x" * BLOCK))
        self.ask("get", *CHAIN, "-o", old, expect=MISS)
        with open(old, "rb") as f:
            self.assertEqual(f.read(), b"x" * BLOCK)
        self.assertIn("Is a directory", self.kvarve("get", *CHAIN, "-o", self.folder, expect=USAGE).stderr)

    def test_a_followed_watch_outlives_its_daemon(self):
        daemon, port, remote = self.start_remote()
        path = self.file("in", os.urandom(BLOCK))
        watch, text = self.follow("--json", "--since", "1", *remote), self.follow("--since", "1", *remote)
        self.ask("put", *CHAIN, path)
        first = json.loads(watch.stdout.readline())
        self.assertEqual((first["kind"], first["sequence"]), ("stored", 1))
        self.assertRegex(text.stdout.readline(), "^1 stored ")
        daemon.stop(signal.SIGKILL)
        daemon, _, _ = self.start_remote(port=port)
        self.ask("put", *CHAIN, path)  # perhaps before it is back: it is told from the first on
        missed, again = json.loads(watch.stdout.readline()), json.loads(watch.stdout.readline())
        self.assertEqual(missed["kind"], "missed")
        self.assertIn("another life of the node", missed["message"])
        self.assertEqual((again["kind"], again["sequence"], again["key"]), ("stored", 1, first["key"]))
        self.assertNotEqual(again["cursor"], first["cursor"])
        self.assertRegex(text.stdout.readline(), "^1 stored ")
        for process, number in ((watch, signal.SIGTERM), (text, signal.SIGINT)):
            process.send_signal(number)
            self.assertEqual(process.wait(30), GOOD)
            said = process.stderr.read().splitlines()
            self.assertEqual(said[-1], f"next: --since {again['cursor']}")
        self.assertIn("kvarve: events were missed", said[0])
        daemon.stop()

    def test_what_a_tenant_is_told_from_another_host(self):
        daemon, _, remote = self.start_remote()
        self.assertEqual(self.ask("prefetch", *CHAIN, *remote, expect=MISS)["hit_blocks"], 0)
        self.assertEqual(self.ask("put", *CHAIN, *remote, self.file("in", os.urandom(3 * BLOCK)))["stored"], 3)
        for where in ((), remote):
            self.assertEqual(self.ask("prefetch", *CHAIN, *where, expect=MISS),
                             {"asked_blocks": 4, "hit_blocks": 3, "started_blocks": 0})

        stats = self.ask("stats", *remote)
        self.assertEqual((stats["of"], stats["blocks"], stats["put_bytes"]), ("tenant", 3, 3 * BLOCK))
        self.assertEqual(stats["put_blocks"], {"stored": 3})
        self.assertRegex(self.kvarve("stats", *remote).stdout, r"blocks stored +3 \(192 KiB\)\n")
        watched = self.kvarve("stats", "--watch", "--interval", "20ms", "--count", "2", *remote).stdout.splitlines()
        self.assertEqual(len(watched), 3)

        def events(*arguments):
            lines = self.kvarve("events", "--json", *arguments, *remote).stdout.splitlines()
            return [json.loads(line) for line in lines]
        told = events("--since", "1")
        self.assertEqual([(event["kind"], event["depth"], event["tier"]) for event in told],
                         [("stored", depth, "host") for depth in range(3)])
        self.assertEqual(events("--since", told[0]["cursor"]), told[1:])
        self.assertIn(f"next: --since {told[-1]['cursor']}\n", self.kvarve("events", "--since", "1", *remote).stdout)
        follow = self.follow("--json", "--since", told[-1]["cursor"], *remote)
        self.assertEqual(self.ask("invalidate", "--all", "--yes")["removed_blocks"], 3)
        self.assertEqual(json.loads(follow.stdout.readline())["kind"], "cleared")

        metrics, tenant = daemon.metrics(), 'tenant="default",transport="grpc"'
        self.assertEqual(metrics[f'kvarve_tenant_transport_bytes_total{{{tenant},direction="put"}}'], 3 * BLOCK)
        self.assertEqual(metrics[f'kvarve_tenant_transport_bytes_total{{{tenant},direction="get"}}'], 0)
        self.assertGreater(metrics[f'kvarve_tenant_requests_total{{{tenant},result="ok"}}'], 5)
        self.assertGreater(metrics['kvarve_tenant_requests_total{tenant="default",transport="local",result="ok"}'], 1)

        missed = self.kvarve("events", "--since", "1234:1", *remote, expect=FAILED).stderr
        self.assertIn("events were missed", missed)
        self.assertIn("say --follow", self.kvarve("events", *remote, expect=USAGE).stderr)
        self.assertIn("--since is no", self.kvarve("events", "--since", "now", *remote, expect=USAGE).stderr)
        self.assertIn("use the gRPC endpoint", self.kvarve("events", "--follow", expect=FAILED).stderr)

    def test_failed_tls_handshakes_are_counted(self):
        good, other = os.path.join(self.folder, "good"), os.path.join(self.folder, "other")
        for ca in (good, other):
            self.kvarve("cert", "dev", "--folder", ca, "--host", "127.0.0.1", "--tenant", "default")
        daemon = self.start("--rpc.listen=127.0.0.1:0", *(f"--rpc.tls_{kind}_file={good}/{name}" for kind, name in (
            ("certificate", "server.pem"), ("key", "server.key"), ("client_ca", "ca.pem"))))
        port = int(re.search(r"rpc_port=(\d+)", daemon.log()).group(1))

        def lookup(authority, client, expect):
            patience = "300ms" if expect == NO_DAEMON else "30s"
            return self.kvarve("lookup", *CHAIN, "--endpoint", f"kvarves://127.0.0.1:{port}", "--timeout", patience,
                               "--tls-ca-file", f"{authority}/ca.pem", "--tls-certificate-file",
                               f"{client}/client-default.pem", "--tls-key-file", f"{client}/client-default.key",
                               expect=expect)

        def failed():
            return daemon.metrics()["kvarve_rpc_tls_handshake_failures_total"]
        lookup(good, good, MISS)
        self.assertEqual(failed(), 0)
        lookup(good, other, NO_DAEMON)  # that the daemon does not trust
        self.until(lambda: failed() > 0)
        lookup(other, good, NO_DAEMON)  # that does not trust the daemon, and goes away
        self.until(lambda: daemon.metrics()["kvarve_rpc_connections"] == 0)
        before = failed()
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            self.until(lambda: failed() == before + 1)
        self.assertIn("Handshake failed", daemon.log())

    def test_replay(self):
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as trace:
            trace.write("0,1024,5,1-2\n60,1536,5,1-3\n120,512,5,9\n180,1536,5,1-3\n")
            trace.flush()
            (row,) = self.ask("replay", trace.name, "--host-percent", "100")["rows"]
            self.assertAlmostEqual(row["hit_ratio"], 5 / 9)
            self.assertAlmostEqual(row["first_half_hit_ratio"], 2 / 5)
            self.assertAlmostEqual(row["second_half_hit_ratio"], 3 / 4)
            self.assertIn("2nd half", self.kvarve("replay", trace.name).stdout)
            for wrong in (("--host-percent", "0"), ("--host-percent", "nan"), ("--nvme-percent", "101"), ("--dwpd", "-1"),
                          ("--gpu-tflops", "nan"), ("--parameters", "-1"), ("--layers", "0"), ("--policy", "clock")):
                answer = self.kvarve("replay", trace.name, *wrong, expect=USAGE)
                self.assertIn(wrong[0] if wrong[0] != "--policy" else "no policy", answer.stderr)
            page = trace.name + ".html"
            self.addCleanup(os.unlink, page)
            self.kvarve("replay", trace.name, "--html", page)
            with open(page, encoding="utf-8") as html:
                self.assertIn("<svg", html.read())
        self.assertIn("cannot read", self.kvarve("replay", trace.name, expect=FAILED).stderr)

    def test_config_vllm(self):
        value = json.loads(self.kvarve("config", "vllm", "--value", "--set", "block_tokens=256").stdout)
        self.assertEqual(value["kv_connector"], "KvarveConnector")
        self.assertEqual(value["kv_role"], "kv_both")
        self.assertEqual(value["kv_load_failure_policy"], "recompute")
        self.assertEqual(value["kv_connector_extra_config"]["block_tokens"], 256)
        text = self.kvarve("config", "vllm").stdout
        self.assertIn("--kv-transfer-config '{", text)
        self.assertIn("KVARVE=1", text)
        self.kvarve("config", "vllm", "--set", "x", expect=USAGE)

    def test_doctor(self):
        found = self.ask("doctor", "--timeout", "200ms", expect=PROBLEM)
        problems = [f["check"] for f in found["findings"] if f["level"] == "problem"]
        self.assertIn("connection", problems)
        for finding in found["findings"]:
            self.assertTrue(finding["level"] == "ok" or finding["action"], finding)
        self.start()
        config = self.kvarve("config", "vllm", "--value").stdout.strip()
        large = self.ask("doctor", "--engines", "2", "--", "vllm", "serve", "m", "-tp", "8", "--kv-transfer-config", config,
                         expect=PROBLEM)
        self.assertEqual([f["action"].split(":")[0] for f in large["findings"] if f["check"] == "connections"],
                         ["set limits.sessions_per_uid to 34 or more"])
        self.assertIn("4.00 GiB", [f["text"] for f in large["findings"] if f["check"] == "staging"][0])
        found = self.ask("doctor", "--python", sys.executable, "--", "vllm", "serve", "m", "--kv-transfer-config", config,
                         expect=PROBLEM if not has_package() else GOOD)
        levels = {f["check"]: f["level"] for f in found["findings"]}
        for check in ("socket", "socket folder", "connection", "version", "memory", "connector",
                      "kv_load_failure_policy"):
            self.assertEqual(levels[check], "ok", check)
        self.assertIn("problems", self.kvarve("doctor").stdout)


def has_package():
    script = "import importlib.util as u; exit(0 if u.find_spec('kvarve') else 1)"
    return subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


if __name__ == "__main__":
    main()
