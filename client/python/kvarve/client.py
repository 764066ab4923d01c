"""The client of a kvarved, on this host or another."""

import json
from typing import Any

from kvarve import _native
from kvarve.events import Events

_YEAR_SECONDS = 365 * 24 * 3600.0


class Client(_native.Client):
    """A process's connection to kvarved. Needs no daemon to be made: it joins when one appears, and again after a
    restart; until then calls raise kvarve.Error with code UNAVAILABLE at once. After a fork the child makes its own.

    endpoint: empty: KVARVE_ENDPOINT of the environment, with KVARVE_TOKEN_FILE and KVARVE_TLS_* beside it, else
    unix:///run/kvarve/kvarved.sock; unix://PATH, or another host's: kvarves://HOST:PORT, with the daemons' authorities in tls_ca_file and
    this client's tls_certificate_file and tls_key_file, or the token in token_file; kvarve://HOST:PORT is plaintext,
    and goes to this host only unless insecure_plaintext_off_loopback. engine_id: processes of one engine end their
    leases together; empty: this process alone.
    role: tool, scheduler or worker. ranks: (data, pipeline, tensor). staging_bytes: memory for puts, 0 for a process
    that only reads. timeout, put_timeout: seconds.
    """

    def admin(self, op: str, **fields: Any) -> dict[str, Any]:
        """An administrative request: status, stats, namespaces, resize, invalidate."""
        return json.loads(self.admin_json(json.dumps({"op": op, **fields})))

    def status(self) -> dict[str, Any]:
        return self.admin("status")

    def stats(self) -> dict[str, Any]:
        return self.admin("stats")

    def namespaces(self) -> dict[str, Any]:
        return self.admin("namespaces")

    def events(self, since: tuple[int, int] = (0, 0), timeout: float = _YEAR_SECONDS) -> Events:
        """What is stored, removed or moved of this client's tenant, for `timeout` seconds: from now on, or from the
        cursor of a watch before it on. Of a gRPC endpoint."""
        return Events(self.watch_events(timeout, *since))
