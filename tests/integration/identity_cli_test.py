#!/usr/bin/env python3
"""`kvarve token` and `kvarve cert` as people use them; certificates are judged by the command openssl.

usage: identity_cli_test.py FOLDER_OF_BINARIES [TEST...]
"""
import base64
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
import unittest

BINARIES = ""  # from the command line
GOOD, FAILED, USAGE = range(3)


class IdentityCli(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)

    def path(self, name):
        return os.path.join(self.scratch.name, name)

    def mode(self, name):
        return stat.S_IMODE(os.stat(self.path(name)).st_mode)

    def kvarve(self, *arguments, code=GOOD, stdin=None):
        """Standard output, as JSON when --json is among the arguments."""
        done = subprocess.run([os.path.join(BINARIES, "kvarve"), *arguments], cwd=self.scratch.name, input=stdin,
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(code, done.returncode, done.stdout + done.stderr)
        self.errors = done.stderr
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    def issue(self, *arguments):
        return self.kvarve("--json", "token", "issue", "--tenant", "team-a", *arguments)

    def test_issue_and_inspect(self):
        made = self.kvarve("--json", "token", "key", "--id", "first")
        self.assertEqual("first", made["kid"])
        self.assertEqual(0o600, self.mode("kvarve-token.key"))
        self.assertEqual(0o644, self.mode("kvarve-token-keys.json"))
        token = self.issue("--for", "2h", "--verbs", "lookup,read", "--subject", "tests")["token"]
        shown = self.kvarve("--json", "token", "inspect", token, "--keys", "kvarve-token-keys.json")
        self.assertEqual("good", shown["verdict"])
        self.assertEqual({"alg": "ES256", "typ": "JWT", "kid": "first"}, shown["header"])
        claims = shown["claims"]
        self.assertEqual(("team-a", ["lookup", "read"], "tests", "kvarve"),
                         (claims["tenant"], claims["verbs"], claims["sub"], claims["aud"]))
        self.assertEqual(7200, claims["exp"] - claims["iat"])
        self.assertLess(abs(claims["iat"] - time.time()), 60)
        # The parts are what RFC 7519 says they are.
        body = token.split(".")[1]
        self.assertEqual(claims, json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))
        piped = self.kvarve("token", "inspect", "-", stdin=token + "\n")
        self.assertIn("not verified", piped)

    def test_keys_add_up(self):
        self.kvarve("token", "key", "--id", "a")
        self.kvarve("token", "key", "--id", "a", "--key", "other.key", code=FAILED)
        self.assertIn("choose another --id", self.errors)
        self.kvarve("token", "key", "--id", "b", code=FAILED)  # would write over the private key
        self.assertIn("exists", self.errors)
        self.kvarve("token", "key", "--id", "b", "--key", "b.key")
        with open(self.path("kvarve-token-keys.json"), encoding="utf-8") as f:
            self.assertEqual(["a", "b"], [key["kid"] for key in json.load(f)["keys"]])
        token = self.issue("--key", "b.key")["token"]
        self.assertEqual("good", self.kvarve("--json", "token", "inspect", token, "--keys",
                                             "kvarve-token-keys.json")["verdict"])

    def test_wrong_tokens(self):
        self.kvarve("token", "key")
        self.kvarve("token", "key", "--key", "other.key", "--keys", "other.json")
        forged = self.issue("--key", "other.key")["token"]
        shown = self.kvarve("--json", "token", "inspect", forged, "--keys", "kvarve-token-keys.json", code=FAILED)
        self.assertIn("no such key", shown["verdict"])
        elsewhere = self.issue("--audience", "another")["token"]
        shown = self.kvarve("--json", "token", "inspect", elsewhere, "--keys", "kvarve-token-keys.json", code=FAILED)
        self.assertIn("another service", shown["verdict"])
        self.kvarve("token", "inspect", "no.token", code=FAILED)
        for wrong in (("--for", "0s"), ("--for", "9999h"), ("--verbs", "fly"), ("--key", "none.key")):
            self.kvarve("token", "issue", "--tenant", "t", *wrong, code=FAILED)
        self.kvarve("token", "issue", code=USAGE)

    def test_revoke(self):
        self.kvarve("token", "key")
        token = self.issue()
        self.assertEqual(token["jti"], self.kvarve("--json", "token", "revoke", token["token"])["revoked"])
        self.kvarve("token", "revoke", "another-id")
        self.kvarve("cert", "dev")
        fingerprint = self.kvarve("--json", "cert", "show", "kvarve-dev-ca/admin.pem")["fingerprint"]
        self.kvarve("token", "revoke", "--certificate", "kvarve-dev-ca/admin.pem")
        with open(self.path("kvarve-revoked"), encoding="utf-8") as f:
            lines = [line for line in f.read().splitlines() if not line.startswith("#")]
        self.assertEqual(sorted([f"token {token['jti']} {token['expires_at']}", "token another-id",
                                 f"certificate {fingerprint}"]), sorted(lines))
        # A file is what it holds, never an id: that would revoke nothing.
        other = self.issue()
        with open(self.path("other.token"), "w", encoding="utf-8") as f:
            f.write(other["token"] + "\n")
        self.assertEqual(other["jti"], self.kvarve("--json", "token", "revoke", "other.token")["revoked"])
        fingerprint = self.kvarve("--json", "cert", "show", "kvarve-dev-ca/client.pem")["fingerprint"]
        os.rename(self.path("kvarve-dev-ca/client.pem"), self.path("client.crt"))
        self.assertEqual(fingerprint, self.kvarve("--json", "token", "revoke", "client.crt")["revoked"])
        self.kvarve("token", "revoke", "kvarve-token.key", code=FAILED)
        self.assertIn("neither a token nor a certificate", self.errors)
        self.kvarve("token", "revoke", "nowhere.pem", code=FAILED)
        self.assertIn("No such file", self.errors)
        self.kvarve("token", "revoke", "two words", code=FAILED)
        with open(self.path("kvarve-revoked"), "a", encoding="utf-8") as f:
            f.write("nonsense\n")
        self.kvarve("token", "revoke", "third", code=FAILED)  # a damaged list is not written over

    def openssl(self, *arguments, code=0):
        done = subprocess.run(["openssl", *arguments], cwd=self.path("kvarve-dev-ca"), capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual(code, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def test_development_certificates(self):
        self.kvarve("cert", "dev", "--tenant", "team-a,team b", "--host", "localhost,10.1.2.3", "--days", "5")
        files = sorted(os.listdir(self.path("kvarve-dev-ca")))
        stems = ["admin", "ca", "client", "client-team-a", "client-team_b", "server"]
        self.assertEqual(sorted(f"{stem}.{kind}" for stem in stems for kind in ("key", "pem")), files)
        for name in files:
            self.assertEqual(0o600 if name.endswith(".key") else 0o644, self.mode("kvarve-dev-ca/" + name))
        self.assertEqual(0o700, self.mode("kvarve-dev-ca"))
        for stem in stems:
            server = ["-purpose", "sslserver"] if stem == "server" else []
            self.openssl("verify", "-x509_strict", "-CAfile", "ca.pem", *server, f"{stem}.pem")
        self.openssl("verify", "-CAfile", "ca.pem", "-purpose", "sslserver", "admin.pem", code=2)
        self.openssl("verify", "-CAfile", "ca.pem", "-verify_ip", "10.1.2.3", "-verify_hostname", "localhost",
                     "server.pem")
        text = self.openssl("x509", "-in", "client-team_b.pem", "-noout", "-ext", "subjectAltName")
        self.assertIn("URI:kvarve://client/team%20b", text)
        for stem, role, tenant in (("admin", "admin", ""), ("server", "peer", ""), ("client", "client", ""),
                                   ("client-team_b", "client", "team b")):
            shown = self.kvarve("--json", "cert", "show", f"kvarve-dev-ca/{stem}.pem")
            self.assertEqual((role, tenant), (shown["role"], shown["tenant"]))
        fingerprint = self.openssl("x509", "-in", "admin.pem", "-noout", "-fingerprint", "-sha256")
        shown = self.kvarve("--json", "cert", "show", "kvarve-dev-ca/admin.pem")
        self.assertEqual(fingerprint.split("=")[1].strip().replace(":", "").lower(), shown["fingerprint"])

    def test_the_same_command_renews(self):
        self.kvarve("cert", "dev")
        authority = self.openssl("x509", "-in", "ca.pem", "-noout", "-serial")
        first = self.openssl("x509", "-in", "server.pem", "-noout", "-serial")
        self.kvarve("cert", "dev")
        self.assertEqual(authority, self.openssl("x509", "-in", "ca.pem", "-noout", "-serial"))
        self.assertNotEqual(first, self.openssl("x509", "-in", "server.pem", "-noout", "-serial"))
        self.kvarve("cert", "dev", "--days", "0", code=FAILED)
        self.kvarve("cert", "dev", "--host", "a,DNS:b\nc", code=FAILED)
        self.kvarve("cert", "show", "kvarve-dev-ca/ca.key", code=FAILED)


if __name__ == "__main__":
    BINARIES = os.path.abspath(sys.argv.pop(1))
    unittest.main()
