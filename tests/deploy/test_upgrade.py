"""Devices that released versions wrote are read by this one: testdata/upgrade has one a version.

Made by: a kvarved of that version with --nvme.device_bytes=640MiB, the four blocks of the file `in` put by `kvarve put`, SIGTERM.
What earlier versions said on the wire are the golden vectors of client/local/testdata and proto/testdata.
"""
import json
import os
import pathlib
import subprocess
import time

import pytest
from conftest import BUILD, HERE, run

RELEASED = sorted((HERE / "testdata/upgrade").glob("*.tar.xz"))
WAIT_SECONDS_MAX = 30
TOKENS = ",".join(str(i * 7) for i in range(64))


def serves_whole(answer):
    """It answers before its devices are recovered."""
    return answer.returncode == 0 and [device["state"] for device in json.loads(answer.stdout)["nvme"]["devices"]] == ["ready"]


@pytest.mark.parametrize("catalogue", ["kept", "lost"])
@pytest.mark.parametrize("released", RELEASED, ids=lambda path: path.name)
def test_a_device_of_an_earlier_version_is_warm(tmp_path, released, catalogue):
    run("tar", "-C", tmp_path, "-xJf", released)
    if catalogue == "lost":
        run("rm", "-r", tmp_path / "state/catalogue")
    os.chmod(tmp_path / "state", 0o700)
    endpoint = f"unix://{tmp_path}/run/s"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KVARVE")} | {"KVARVE_ENDPOINT": endpoint}
    with open(tmp_path / "log", "wb") as log:
        daemon = subprocess.Popen([BUILD / "bin/kvarved", f"--socket.path={tmp_path}/run/s", "--arena.capacity_bytes=96MiB",
                                   "--arena.chunk_bytes=32MiB", "--arena.prefault=false", "--metrics.listen=off",
                                   f"--nvme.devices={tmp_path}/nvme0", f"--tenant.state_dir={tmp_path}/state"], stderr=log, env=clean)
    try:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not serves_whole(run(BUILD / "bin/kvarve", "--json", "status", check=False, env=clean)):
            assert daemon.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        run(BUILD / "bin/kvarve", "get", "--block-bytes", "64KiB", "--block-tokens", "16", "--tokens", TOKENS, "-o", tmp_path / "out", env=clean)
        assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()
    finally:
        daemon.terminate()
        assert daemon.wait(WAIT_SECONDS_MAX) == 0


def test_there_is_a_device_of_each_released_version():
    assert [path.name for path in RELEASED] == ["0.1.0.tar.xz"]
    assert all(pathlib.Path(path).stat().st_size < 200_000 for path in RELEASED)
