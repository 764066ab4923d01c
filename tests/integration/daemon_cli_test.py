#!/usr/bin/env python3
"""kvarved and kvarve as processes: every command, every way to start wrongly, every way to stop.

usage: daemon_cli_test.py FOLDER_OF_BINARIES [TEST...]
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest

import daemon_case
from daemon_case import (BLOCK, CHAIN, FAILED, MIB, MISS, NO_DAEMON, STOP_SECONDS_MAX, TOKENS, USAGE, Case,
                         environment, main)

NOBODY = 65534


class BlocksTest(Case):
    def test_put_lookup_get(self):
        daemon = self.start()
        data = os.urandom(3 * BLOCK)
        path = self.file("in", data)
        self.assertEqual(self.ask("lookup", *CHAIN, expect=MISS), {"asked_blocks": 4, "hit_blocks": 0, "host_blocks": 0})
        put = self.ask("put", *CHAIN, path)
        self.assertEqual((put["stored"], put["existed"]), (3, 0))
        self.assertEqual([block["result"] for block in put["blocks"]], ["stored"] * 3)
        self.assertEqual(self.ask("put", *CHAIN, path)["existed"], 3)
        self.assertEqual(self.ask("lookup", *CHAIN, expect=MISS)["hit_blocks"], 3)

        out = os.path.join(self.folder, "out")
        got = self.ask("get", *CHAIN, "-o", out, expect=MISS)
        self.assertEqual(got, {"asked_blocks": 4, "hit_blocks": 3, "bytes": 3 * BLOCK, "verified": True,
                               "checksum_mismatches": 0})
        with open(out, "rb") as f:
            self.assertEqual(f.read(), data)

        metrics = daemon.metrics()
        self.assertEqual(metrics['kvarve_put_blocks_total{result="stored"}'], 3)
        self.assertEqual(metrics['kvarve_put_blocks_total{result="exists"}'], 3)
        self.assertEqual(metrics["kvarve_put_bytes_total"], 3 * BLOCK)
        moved = 'kvarve_tenant_transport_bytes_total{tenant="default",transport="local_%s",direction="%s"}'
        self.assertEqual(metrics[moved % ("copy", "put")], 3 * BLOCK)
        self.assertEqual(metrics[moved % ("map", "get")] + metrics[moved % ("copy", "get")], 3 * BLOCK)
        self.assertEqual(metrics["kvarve_index_entries"], 3)
        self.assertEqual(metrics['kvarve_hit_blocks_total{tier="host"}'], 3)
        self.assertEqual(metrics['kvarve_hit_bytes_total{tier="host"}'], 3 * BLOCK)
        self.assertEqual(metrics['kvarve_arena_bytes{pool="default",state="resident"}'], 3 * BLOCK)
        self.assertEqual(metrics["kvarve_namespaces"], 1)
        self.until(lambda: daemon.metrics()["kvarve_leases"] == 0)  # its session ends after the command
        self.assertEqual(metrics["kvarve_sessions_opened_total"], 5)
        self.assertEqual(metrics['kvarve_local_requests_total{type="lookup",result="ok"}'], 2)

    def test_a_file_may_follow_a_key(self):
        self.start()
        key, path = "ab" * 32, self.file("in", os.urandom(BLOCK))
        block = ("--block-bytes", str(BLOCK))
        self.assertEqual(self.ask("put", *block, "--key", key, path)["stored"], 1)
        self.assertEqual(self.ask("lookup", *block, "--key", key)["hit_blocks"], 1)

    def test_from_another_host(self):
        token = self.file("token", b"0123456789abcdef0123456789abcdef\n")
        os.chmod(token, 0o600)
        daemon = self.start("--rpc.listen=127.0.0.1:0", f"--rpc.token_file={token}")
        port = re.search(r"rpc_port=(\d+)", daemon.log()).group(1)
        remote = ("--endpoint", f"kvarve://127.0.0.1:{port}", "--token-file", token)
        data = os.urandom(3 * BLOCK)
        path = self.file("in", data)
        self.assertEqual(self.ask("put", *CHAIN, *remote, path)["stored"], 3)
        self.assertEqual(self.ask("lookup", *CHAIN, expect=MISS)["hit_blocks"], 3)  # the same as on the host
        out = os.path.join(self.folder, "out")
        self.ask("get", *CHAIN, *remote, "-o", out, expect=MISS)
        with open(out, "rb") as f:
            self.assertEqual(f.read(), data)
        self.assertIn("rpc.admin_listen", self.kvarve("status", *remote, expect=FAILED).stderr)
        self.assertIn("no token", self.kvarve("lookup", *CHAIN, *remote[:2], expect=FAILED).stderr)
        metrics = daemon.metrics()
        self.until(lambda: daemon.metrics()['kvarve_get_bytes_total{transport="grpc"}'] == 3 * BLOCK)
        self.assertEqual(metrics['kvarve_rpc_requests_total{method="WriteRun",code="OK"}'], 1)

    def test_single_keys_and_standard_streams(self):
        self.start()
        data = os.urandom(BLOCK)
        key = ("--block-bytes", "64KiB", "--key", "ab" * 32)
        self.kvarve("put", *key, data=data, text=False)
        self.assertEqual(self.kvarve("get", *key, text=False).stdout, data)
        self.assertIn("1 of 1 blocks found (64.0 KiB)", self.kvarve("lookup", *key).stdout)
        # Another salt, model or size is another namespace.
        for other in (("--salt", "x"), ("--model", "x"), ("--model-digest", "x"), ("--block-tokens", "64")):
            self.assertEqual(self.ask("lookup", *key, *other, expect=MISS)["hit_blocks"], 0)

    def test_padding_and_wrong_input(self):
        self.start()
        path = self.file("in", b"x" * 100)
        self.assertIn("--pad", self.kvarve("put", *CHAIN, path, expect=USAGE).stderr)
        self.kvarve("put", *CHAIN, "--pad", path)
        self.assertEqual(self.kvarve("get", *CHAIN, expect=MISS, text=False).stdout, b"x" * 100 + bytes(BLOCK - 100))
        five = self.file("five", bytes(5 * BLOCK))
        self.assertIn("5 blocks of data, but keys for 4", self.kvarve("put", *CHAIN, five, expect=USAGE).stderr)
        self.assertIn("No such file", self.kvarve("put", *CHAIN, self.folder + "/none", expect=USAGE).stderr)
        self.assertIn("exactly one of --key", self.kvarve("lookup", expect=USAGE).stderr)
        self.assertIn("--output", self.kvarve("get", *CHAIN, "--json", expect=USAGE).stdout)
        self.assertIn("error", self.ask("put", "--block-bytes", "17MiB", "--key", "ab" * 32, path, expect=USAGE))


class AdministrationTest(Case):
    def fill(self, model, blocks):
        tokens = ",".join(str(i) for i in range(16 * blocks))
        path = self.file("fill", os.urandom(blocks * MIB))
        self.ask("put", "--model", model, "--block-tokens", "16", "--tokens", tokens, path)

    def test_status_and_stats(self):
        daemon = self.start()
        self.fill("m", 4)
        status = self.ask("status", "--namespaces")
        self.assertEqual(status["pid"], daemon.process.pid)
        self.assertEqual(status["socket"], daemon.socket)
        self.assertEqual(status["capacity_bytes"], 256 * MIB)
        self.assertEqual(status["used_bytes"], 4 * MIB)
        self.assertEqual(status["blocks"], 4)
        self.assertEqual(status["metrics"], f"127.0.0.1:{daemon.port}")
        (namespace,) = status["namespace_list"]
        self.assertEqual((namespace["model"], namespace["tenant"]), ("m", "default"))
        table = self.kvarve("status", "--namespaces").stdout
        self.assertRegex(table, r"capacity +256 MiB\n")
        self.assertRegex(table, r"used +4\.00 MiB \(1\.6 %\)\n")
        self.assertIn(namespace["ns"], table)

        stats = self.ask("stats")
        self.assertEqual(stats["put_blocks"]["stored"], 4)
        self.assertEqual(stats["requests"]["put"]["ok"], 1)
        self.assertRegex(self.kvarve("stats").stdout, r"blocks put: stored +4\n")
        watched = self.kvarve("stats", "--watch", "--interval", "20ms", "--count", "2").stdout.splitlines()
        self.assertEqual(len(watched), 3)
        self.assertIn("lookups/s", watched[0])
        lines = self.kvarve("stats", "--watch", "--interval", "20ms", "--count", "2", "--json").stdout.splitlines()
        self.assertEqual([json.loads(line)["put_bytes"] for line in lines], [4 * MIB] * 2)

    def test_resize_online(self):
        daemon = self.start()
        self.fill("m", 100)
        answer = self.ask("resize", "64MiB")
        self.assertEqual((answer["before_bytes"], answer["capacity_bytes"]), (256 * MIB, 64 * MIB))
        status = self.ask("status")
        self.assertLessEqual(status["used_bytes"], 64 * MIB)
        # A chunk is given back when the last client has unmapped it.
        self.until(lambda: self.ask("status")["chunk_bytes"] <= 64 * MIB)
        self.assertEqual(daemon.metrics()['kvarve_evicted_blocks_total{tier="host",reason="capacity"}'],
                         100 - status["blocks"])
        self.assertIn("64.0 MiB before, 128 MiB now", self.kvarve("resize", "128MiB").stdout)
        self.fill("n", 100)
        self.assertGreater(self.ask("status")["used_bytes"], 64 * MIB)
        for wrong in ("900TiB", "1MiB", "lots", "95%"):
            self.kvarve("resize", wrong, expect=FAILED)
        self.assertIn("an arena of 1 B is too small: use at least 32.0 MiB",
                      self.kvarve("resize", "1", expect=FAILED).stderr)
        self.assertEqual(self.ask("status")["capacity_bytes"], 128 * MIB)

    def test_drain_evict_and_configuration(self):
        daemon = self.start()
        self.fill("m", 10)
        self.assertEqual(self.ask("evict", "2MiB")["evicted_blocks"], 2)
        self.assertIn("8 blocks evicted", self.kvarve("evict", "1GiB", "--tenant", "default").stdout)
        self.kvarve("evict", "some", expect=FAILED)
        self.assertTrue(self.ask("drain")["draining"])
        self.assertIn("serves again", self.kvarve("drain", "--off").stdout)
        self.assertIn('arena.capacity_bytes: "256MiB"', self.kvarve("config", "daemon").stdout)
        self.assertIn(daemon.socket, self.ask("config", "daemon")["yaml"])

    def test_administration_from_another_host(self):
        ca = os.path.join(self.folder, "ca")
        self.kvarve("cert", "dev", "--folder", ca, "--host", "127.0.0.1", "--tenant", "default")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            admin = f"kvarves://127.0.0.1:{s.getsockname()[1]}"
        daemon = self.start("--rpc.listen=127.0.0.1:0", f"--rpc.admin_listen={admin.removeprefix('kvarves://')}",
                            *(f"--rpc.tls_{kind}_file={ca}/{name}" for kind, name in
                              (("certificate", "server.pem"), ("key", "server.key"), ("client_ca", "ca.pem"))))
        port = re.search(r"rpc_port=(\d+)", daemon.log()).group(1)

        def shown(name):
            return ("--tls-ca-file", f"{ca}/ca.pem", "--tls-certificate-file", f"{ca}/{name}.pem", "--tls-key-file",
                    f"{ca}/{name}.key")
        blocks = ("--endpoint", f"kvarves://127.0.0.1:{port}", *shown("client-default"))
        self.assertEqual(self.ask("put", *CHAIN, *blocks, self.file("in", os.urandom(3 * BLOCK)))["stored"], 3)
        asks = ("--endpoint", admin, *shown("admin"))
        self.assertEqual(self.ask("status", *asks)["blocks"], 3)
        self.assertEqual(self.ask("quota", "default", "entries:..9", *asks)["quota"], "entries:..9")
        self.assertEqual(self.ask("tenants", *asks)["tenants"][0]["quota"], "entries:..9")
        self.assertEqual(self.ask("resize", "128MiB", *asks)["capacity_bytes"], 128 * MIB)
        self.assertEqual(self.ask("evict", "1GiB", *asks)["evicted_blocks"], 3)
        self.assertTrue(self.ask("drain", *asks)["draining"])
        self.assertIn("drains", self.kvarve("put", *CHAIN, *blocks, self.file("in", bytes(3 * BLOCK)), expect=NO_DAEMON
                                            ).stderr)
        self.ask("drain", "--off", *asks)
        self.assertIn("tls_key_file", self.kvarve("config", "daemon", *asks).stdout)
        refused = self.kvarve("status", "--endpoint", admin, *shown("client-default"), expect=FAILED).stderr
        self.assertIn("admin", refused)
        self.assertIn("plaintext to another host", self.kvarve("status", "--endpoint", "kvarve://192.0.2.1:7410",
                                                               expect=FAILED).stderr)

    def test_invalidate(self):
        self.start()
        for model, blocks in (("a", 2), ("b", 3), ("c", 4)):
            self.fill(model, blocks)
        self.assertEqual(self.ask("invalidate", "--model", "a"), {"namespaces": 1, "removed_blocks": 2})
        (ns,) = [n["ns"] for n in self.ask("status", "--namespaces")["namespace_list"] if n["model"] == "b"]
        self.assertEqual(self.ask("invalidate", "--ns", ns)["removed_blocks"], 3)
        self.assertIn("--yes", self.kvarve("invalidate", "--all", expect=USAGE, data="").stderr)
        self.assertEqual(self.ask("status")["blocks"], 4)
        self.assertIn("4 blocks removed in 3 namespaces", self.kvarve("invalidate", "--all", "--yes").stdout)
        self.assertEqual(self.ask("status")["blocks"], 0)
        self.kvarve("invalidate", "--model", "none", expect=FAILED)
        self.kvarve("invalidate", expect=USAGE)
        self.kvarve("invalidate", "--all", "--model", "a", "--yes", expect=USAGE)
        # What was invalidated can be put again.
        self.fill("a", 2)
        self.assertEqual(self.ask("status")["blocks"], 2)

    def test_erase(self):
        self.start()
        for model, blocks in (("a", 2), ("b", 3)):
            self.fill(model, blocks)
        namespaces = self.ask("status", "--namespaces")["namespace_list"]
        (ns,) = [n["ns"] for n in namespaces if n["model"] == "a"]
        self.kvarve("erase", expect=USAGE)
        self.kvarve("erase", "--ns", ns, "--tenant", "t", "--yes", expect=USAGE)
        self.assertIn("--yes", self.kvarve("erase", "--ns", ns, expect=USAGE, data="").stderr)
        self.assertIn("2 blocks erased in 1 namespaces", self.kvarve("erase", "--ns", ns, "--yes").stdout)
        self.assertEqual(self.ask("status")["blocks"], 3)
        erased = self.ask("erase", "--tenant", namespaces[0]["tenant"], "--yes")
        self.assertEqual(erased, {"namespaces": 2, "removed_blocks": 3, "namespaces_of_unknown_tenant": 0})
        self.assertEqual(self.ask("status")["blocks"], 0)
        self.kvarve("erase", "--tenant", "nobody", "--yes", expect=FAILED)

    def test_bench(self):
        self.start()
        rows = self.ask("bench", "--block-bytes", "64KiB", "--blocks", "8", "--rounds", "2")["rows"]
        self.assertEqual([row["name"] for row in rows], ["put", "lookup", "acquire in place", "get, verified"])
        for row in rows:
            self.assertGreater(row["median_us"], 0)
        self.assertEqual(self.ask("status")["blocks"], 0)
        self.kvarve("bench", "--blocks", "0", expect=USAGE)


class LifeTest(Case):
    def test_start_line_and_clean_stop(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            daemon = self.start()
            self.assertRegex(daemon.log(), r"INFO kvarved started version=\d\S+ incarnation=[0-9a-f]{16} pid="
                             + str(daemon.process.pid) + r" socket=\S+ capacity=\"256 MiB\" .*page=\"\d")
            self.assertEqual(daemon.http("/healthz")[0], 200)
            daemon.process.send_signal(signal.SIGHUP)
            self.assertEqual(daemon.http("/readyz")[0], 200)
            self.assertEqual(daemon.stop(number), 0)
            self.assertIn("kvarved stopped", daemon.log())
            self.assertFalse(os.path.exists(daemon.socket))

    def test_start_line_says_which_pages_are_asked_for(self):
        for prefault, huge, pages in (("true", "true", r"(up to )?2\.00 MiB"), ("true", "false", r"4\.00 KiB")):
            daemon = self.start(f"--arena.prefault={prefault}", f"--arena.huge_pages={huge}")
            self.assertRegex(daemon.log(), rf"kvarved started .* page=\"{pages}\"")
            self.assertEqual(daemon.stop(), 0)

    def test_stops_while_clients_are_connected(self):
        daemon = self.start()
        watcher = subprocess.Popen([os.path.join(daemon_case.BINARIES, "kvarve"), "stats", "--watch", "--interval", "10ms",
                                    "--endpoint", "unix://" + daemon.socket], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, env=environment())
        watcher.stdout.readline()
        self.assertEqual(daemon.stop(), 0)
        self.assertIn(watcher.wait(STOP_SECONDS_MAX), (NO_DAEMON, FAILED))
        watcher.stdout.close()

    def test_second_daemon(self):
        first = self.start()
        flags = (f"--socket.path={first.socket}", "--arena.capacity_bytes=256MiB")
        second = self.run_kvarved(*flags, "--metrics.listen=off")
        self.assertEqual(second.returncode, 3)
        self.assertIn(f"another kvarved (pid {first.process.pid}) serves {first.socket}", second.stderr)
        self.assertEqual(self.ask("status")["pid"], first.process.pid)
        third = self.run_kvarved(f"--socket.path={self.folder}/other.sock", "--arena.capacity_bytes=256MiB",
                                 f"--metrics.listen=127.0.0.1:{first.port}")
        self.assertEqual(third.returncode, 1)
        self.assertIn(f"cannot listen on 127.0.0.1:{first.port}", third.stderr)

    def test_restart_after_a_crash(self):
        first = self.start()
        before = self.ask("status")["incarnation"]
        first.process.kill()
        first.process.wait()
        self.assertTrue(os.path.exists(first.socket))
        self.start()
        self.assertNotEqual(self.ask("status")["incarnation"], before)

    def test_json_logs_and_slow_requests(self):
        daemon = self.start("--log.format=json", "--log.slow_request=1us", wait=False)
        self.until(lambda: "kvarved started" in daemon.log())
        self.ask("lookup", *CHAIN, expect=MISS)
        self.assertEqual(daemon.stop(), 0)
        events = [json.loads(line) for line in daemon.log().splitlines()]
        self.assertTrue(any("slow request" in json.dumps(event) for event in events))
        self.assertNotIn(TOKENS, daemon.log())

    @unittest.skipUnless(os.geteuid() == 0, "needs root to become somebody else")
    def test_as_another_user(self):
        binary = shutil.copy(os.path.join(daemon_case.BINARIES, "kvarved"), self.folder)  # the tree may be closed to others
        os.chown(self.folder, NOBODY, NOBODY)
        daemon = self.start(f"--tenant.state_dir={self.folder}/state", binary=binary, user=NOBODY)
        self.assertEqual(os.stat(daemon.socket).st_mode & 0o777, 0o660)
        self.assertEqual(os.stat(os.path.dirname(daemon.socket)).st_mode & 0o777, 0o750)
        # Not dumpable: what shows its memory belongs to root, though the process is nobody's.
        self.assertEqual(os.stat(f"/proc/{daemon.process.pid}/fd").st_uid, 0)
        path = self.file("in", os.urandom(2 * BLOCK))
        self.assertEqual(self.ask("put", *CHAIN, path)["stored"], 2)
        self.assertEqual(self.ask("lookup", *CHAIN, expect=MISS)["hit_blocks"], 2)
        self.assertEqual(daemon.stop(), 0)

    @unittest.skipUnless(os.geteuid() == 0, "needs root to mount a file of groups")
    def test_as_a_user_outside_the_group_kvarve(self):
        """As in a container whose image has the group, run as a user of one's own."""
        shutil.copy(os.path.join(daemon_case.BINARIES, "kvarved"), os.path.join(self.folder, "real"))
        groups = self.file("group", b"root:x:0:\nkvarve:x:10410:\n")
        become = 'mount --bind "$0" /etc/group && exec setpriv --reuid 5000 --regid 5000 --clear-groups "$@"'
        script = self.file("kvarved", f"#!/bin/sh\nexec unshare -m sh -c '{become}' {groups} {self.folder}/real \"$@\"\n".encode())
        os.chmod(script, 0o755)
        os.chown(self.folder, 5000, 5000)
        daemon = self.start(binary=script)
        self.assertIn("the socket stays with the daemon's own group", daemon.log())
        self.assertEqual(os.stat(daemon.socket).st_gid, 5000)
        self.assertEqual(self.ask("lookup", *CHAIN, expect=MISS)["hit_blocks"], 0)
        self.assertEqual(daemon.stop(), 0)


class ConfigurationTest(Case):
    def check(self, *arguments, says, code=2, **variables):
        answer = self.run_kvarved("--check", *arguments, **variables)
        self.assertEqual(answer.returncode, code, answer.stderr)
        for text in (says,) if isinstance(says, str) else says:
            self.assertIn(text, answer.stdout + answer.stderr)

    def yaml(self, text):
        return self.file("kvarved.yaml", text.encode())

    def test_order_of_sources(self):
        path = self.yaml("arena:\n  capacity_bytes: 64MiB\nlog.level: debug\nlimits.sessions: 9\n")
        answer = self.run_kvarved("--print-config", "--config", path, "--limits.sessions=7",
                                  KVARVE_LOG_LEVEL="warning", KVARVE_LIMITS_SESSIONS="8")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        lines = {line.split(":", 1)[0]: line for line in answer.stdout.splitlines()}
        self.assertRegex(lines["arena.capacity_bytes"], rf'"64MiB" +# file {re.escape(path)} line 2$')
        self.assertRegex(lines["log.level"], '"warning" +# environment KVARVE_LOG_LEVEL$')
        self.assertRegex(lines["limits.sessions"], '"7" +# flag --limits.sessions$')
        self.assertRegex(lines["rpc.listen"], '"off" +# default$')
        # What is printed is a configuration file itself.
        again = self.run_kvarved("--print-config", "--config", self.yaml(answer.stdout))
        self.assertEqual(again.returncode, 0, again.stderr)
        by_environment = self.run_kvarved("--print-config", KVARVE_CONFIG=path)
        self.assertIn("kvarved.yaml", by_environment.stdout)

    def test_good(self):
        self.check("--arena.capacity_bytes=64MiB", says="64.0 MiB for blocks", code=0)

    def test_wrong(self):
        path = self.yaml("arena:\n  capacity: 64MiB\n")
        self.check("--config", path, says=("arena.capacity (file ", "line 2", "did you mean arena.capacity_bytes?"))
        self.check("--config", self.folder + "/none.yaml", says="No such file")
        self.check("--config", self.yaml("a: [\n"), says="line")
        self.check("--log.levle=info", says="did you mean --log.level?")
        self.check(says=("KVARVE_ARENA_CAPACITY", "did you mean KVARVE_ARENA_CAPACITY_BYTES?"),
                   KVARVE_ARENA_CAPACITY="1GiB")
        self.check("--arena.capacity_bytes=90%", says=("flag --arena.capacity_bytes", "up to 80%", "for example"))
        self.check("--arena.capacity_bytes=900TiB", says=("arena.capacity_bytes (flag", "80"))
        self.check("--arena.chunk_bytes=1KiB", says=("out of range", "32.0 MiB to 1.00 GiB", "for example 256MiB"))
        self.check("--rpc.listen=0.0.0.0:7410", "--rpc.token_file=/x", says="is not loopback")
        self.check("--rpc.listen=127.0.0.1:7410", says="rpc.token_file")
        self.check("--socket.allow_uids=root", says="no number")

    def test_the_gRPC_token_is_guarded(self):
        token = self.file("token", b"0123456789abcdef0123456789abcdef\n")
        os.chmod(token, 0o644)
        flags = (f"--socket.path={self.folder}/run/kvarved.sock", "--arena.capacity_bytes=256MiB",
                 "--metrics.listen=off", "--rpc.listen=127.0.0.1:0", f"--rpc.token_file={token}")
        answer = self.run_kvarved(*flags)
        self.assertEqual(answer.returncode, 1)
        self.assertIn(f"chmod 600 {token}", answer.stderr)
        os.chmod(token, 0o600)
        daemon = self.start("--rpc.listen=127.0.0.1:0", f"--rpc.token_file={token}")
        port = int(re.search(r"rpc_port=(\d+)", daemon.log()).group(1))
        with socket.create_connection(("127.0.0.1", port), 10):
            pass

    def test_a_check_reads_the_credentials(self):
        """All that are bad at once, as a start would find them one after the other; it makes and changes nothing."""
        for arguments in (("cert", "dev", "--folder", f"{self.folder}/ca"),
                          ("token", "key", "--key", f"{self.folder}/token.key", "--keys", f"{self.folder}/token-keys.json")):
            self.kvarve(*arguments)
        good = {"tls_certificate_file": "ca/server.pem", "tls_key_file": "ca/server.key", "tls_client_ca_file": "ca/ca.pem",
                "token_keys_file": "token-keys.json", "revocations_file": "revoked", "token_file": "secret"}
        os.chmod(self.file("secret", b"0123456789abcdef0123456789abcdef\n"), 0o600)
        self.file("junk", b"no PEM, no JSON, no list\n")
        os.chmod(self.file("short", b"abc\n"), 0o600)

        def check(says, code=2, **files):
            flags = [f"--rpc.{name}={self.folder}/{file}" for name, file in (good | files).items() if file]
            self.check("--rpc.listen=127.0.0.1:0", "--arena.capacity_bytes=64MiB", *flags, says=says, code=code)

        check("the configuration is good", code=0)
        check(("rpc.tls_key_file (flag --rpc.tls_key_file): ", "ca/admin.key: the key is another certificate's",
               "rpc.tls_client_ca_file (flag", "none: No such file", "kvarve cert dev",
               "rpc.token_keys_file (flag", "/junk: ", "rpc.revocations_file (flag", "rpc.token_file (flag"),
              tls_key_file="ca/admin.key", tls_client_ca_file="none", token_keys_file="junk", revocations_file="junk",
              token_file="short")
        check("rpc.tls_certificate_file (flag --rpc.tls_certificate_file): ", tls_certificate_file="junk")
        check("rpc.tls_key_file (default): is not set", tls_key_file="")
        check("`kvarve token key` makes one", token_keys_file="none")
        os.chmod(f"{self.folder}/ca/server.key", 0o644)
        check(f"chmod 600 {self.folder}/ca/server.key")
        self.assertFalse(os.path.exists(f"{self.folder}/revoked"))

    def test_a_draining_daemon_is_not_ready(self):
        daemon = self.start()  # without gRPC, too
        self.assertEqual(daemon.http("/readyz")[0], 200)
        self.kvarve("drain")
        self.assertEqual(daemon.http("/readyz"), (503, "drains\n"))
        self.assertEqual(daemon.http("/healthz")[0], 200)
        self.kvarve("drain", "--off")
        self.assertEqual(daemon.http("/readyz")[0], 200)

    def test_doctor_over_grpc(self):
        path = self.file("token", b"the-shared-token-1234567\n")
        os.chmod(path, 0o600)
        daemon = self.start("--rpc.listen=127.0.0.1:0", f"--rpc.token_file={path}")
        port = re.search(r"rpc_port=(\d+)", daemon.log()).group(1)
        found = self.ask("--endpoint", f"kvarve://127.0.0.1:{port}", "--token-file", path, "doctor")["findings"]
        told = {f["check"]: f for f in found if f["area"] == "daemon"}
        self.assertEqual(told["connection"]["level"], "ok")
        self.assertEqual(told["status"]["level"], "ok")  # that a tenant is not told is no fault
        self.assertIn("rpc.admin_listen", told["status"]["text"])

    def test_secrets_are_in_no_log_answer_or_page(self):
        def kvarve(*arguments, **variables):
            done = subprocess.run([os.path.join(daemon_case.BINARIES, "kvarve"), *arguments], cwd=self.folder,
                                  capture_output=True, text=True, timeout=60, check=False,
                                  env=environment(**variables))
            return done.stdout + done.stderr

        def token_file(name, text):
            path = self.file(name, (text + "\n").encode())
            os.chmod(path, 0o600)
            return path

        kvarve("token", "key")
        issue = ("token", "issue", "--tenant", "default", "--for")
        kvarve("token", "key", "--key", "forger.key", "--keys", "forgers.json")
        good, short = kvarve(*issue, "1h").strip(), kvarve(*issue, "1s").strip()
        forged = kvarve(*issue, "1h", "--key", "forger.key").strip()
        shared, guess = "the-shared-token-1234567", "a-guessed-token-1234567"
        daemon = self.start("--log.level=debug", "--log.slow_request=1us", "--rpc.listen=127.0.0.1:0",
                            f"--tenant.state_dir={self.folder}/state",
                            "--rpc.token_file=" + token_file("shared", shared),
                            f"--rpc.token_keys_file={self.folder}/kvarve-token-keys.json",
                            f"--rpc.admin_socket={self.folder}/admin.sock")
        port = re.search(r"rpc_port=(\d+)", daemon.log()).group(1)
        time.sleep(1.5)  # `short` is over
        said = ""
        for i, (token, wanted) in enumerate(((good, "stored"), (shared, "exists"), (short, "expired"), (forged, "key"),
                                             (guess, "token"))):
            answer = kvarve("put", *CHAIN, self.file("data", b"x" * 4 * BLOCK), KVARVE_TOKEN_FILE=token_file(f"t{i}", token),
                            KVARVE_ENDPOINT=f"kvarve://127.0.0.1:{port}")
            self.assertIn(wanted, answer)
            said += answer
        for page in ("/", "/metrics", "/status.json"):
            said += daemon.http(page)[1]
        said += self.kvarve("config", "daemon").stdout
        self.assertEqual(daemon.stop(), 0)
        self.assertIn("slow call", daemon.log())
        self.assertIn("caller refused", daemon.log())
        said += daemon.log()
        secrets = [shared, guess, *(part for token in (good, short, forged) for part in token.split(".")[1:])]
        with open(os.path.join(self.folder, "state", "tenant_salts"), encoding="utf-8") as f:
            salts = re.findall(r"\b[0-9a-f]{64}\b", f.read())
        self.assertGreater(len(salts), 0)
        secrets += salts
        for secret in secrets:
            for part in (secret, secret[:16], secret[-16:]):
                self.assertNotIn(part, said)


if __name__ == "__main__":
    main()
