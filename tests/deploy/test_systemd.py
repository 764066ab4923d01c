"""The unit: as hard as it says, and kvarved lives with the system calls that it leaves."""
import json
import re
import subprocess
import time

from conftest import BUILD, HERE, ROOT, run

UNIT = ROOT / "deploy/systemd/kvarved.service"
EXPOSURE_TENTHS_MAX = 17  # what it has; 30 would be good already
WAIT_SECONDS_MAX = 30


def test_exposure():
    answer = run("systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_TENTHS_MAX}", "--no-pager", UNIT, check=False)
    assert answer.returncode == 0, answer.stdout[-2000:]
    exposure = float(re.search(r"Overall exposure level for kvarved.service: ([\d.]+)", answer.stdout)[1])
    assert exposure <= EXPOSURE_TENTHS_MAX / 10


def set_of(name):
    """The system calls of a set, those of sets within it too."""
    calls = set()
    for line in run("systemd-analyze", "syscall-filter", name).stdout.splitlines()[1:]:
        word = line.strip().split(" ")[0]
        if word.startswith("@"):
            calls |= set_of(word)
        elif word and not word.startswith("#"):
            calls.add(word)
    return calls


def allowed_by_the_unit():
    allowed = set()
    for words in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.M):
        named = set().union(*(set_of(word.lstrip("~")) for word in words.split()))
        allowed = allowed - named if words.startswith("~") else allowed | named
    return allowed | set_of("@default")


def test_kvarved_lives_with_the_filter(tmp_path):
    profile = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": sorted(allowed_by_the_unit()), "action": "SCMP_ACT_ALLOW"}]}
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    log_path = tmp_path / "log"
    with open(log_path, "wb") as log:
        daemon = subprocess.Popen(
            ["/usr/bin/python3", HERE / "with_seccomp.py", tmp_path / "profile.json", BUILD / "bin/kvarved",
             f"--socket.path={tmp_path}/run/s", "--arena.capacity_bytes=96MiB", "--arena.chunk_bytes=32MiB", "--metrics.listen=127.0.0.1:0",
             f"--nvme.devices={tmp_path}/nvme0", "--nvme.device_bytes=640MiB", f"--tenant.state_dir={tmp_path}/state"], stderr=log)
    try:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while "kvarved started" not in log_path.read_text():
            assert daemon.poll() is None and time.monotonic() < deadline, log_path.read_text()
            time.sleep(0.05)
        tokens = ",".join(str(i) for i in range(64))
        shape = ("--block-bytes", "64KiB", "--block-tokens", "16", "--tokens", tokens)
        data = "kvarve" * 43691  # four blocks and two bytes: cut below
        client = (BUILD / "bin/kvarve", "--endpoint", f"unix://{tmp_path}/run/s")
        run(*client, "put", *shape, input=data[:262144])
        assert run(*client, "get", *shape).stdout == data[:262144]
    finally:
        daemon.terminate()
        assert daemon.wait(WAIT_SECONDS_MAX) == 0
    assert "backend=io_uring" in log_path.read_text()
    assert "Operation not permitted" not in log_path.read_text()


def test_it_names_what_the_package_installs():
    unit = UNIT.read_text()
    assert "ExecStart=/usr/bin/kvarved\n" in unit and "User=kvarve\n" in unit
    stop = int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M)[1])
    assert stop > 20  # nvme.stop_timeout's default
    assert "RestartPreventExitStatus=2 3" in unit
