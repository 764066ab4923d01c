"""The image, without a container engine: the last stage's steps are carried out in a bare Debian, and its entry point is run."""
import json
import os
import re
import shlex
import shutil

import pytest
from bare_root import PACKAGES, Root
from conftest import CHART, ROOT
from yaml import safe_load

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a root of its own needs root")
KNOWN = {"FROM", "RUN", "COPY", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "WORKDIR", "ENV"}


def instructions(name):
    """The stages of a Dockerfile: lists of (instruction, rest)."""
    stages = []
    for line in (ROOT / "deploy/docker" / name).read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, rest = line.split(None, 1)
        assert word in KNOWN
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, rest))
    return stages


def value(stage, word):
    return next(rest for name, rest in stage if name == word)


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    root = Root(tmp_path_factory.mktemp("image") / "root")
    for word, rest in instructions("Dockerfile")[-1]:
        if word == "RUN":
            # /tmp is a fresh one in each step: packages wait beside it.
            root.run(("cp /debs/* /tmp/; " if "/tmp/*.deb" in rest else "") + rest)
        elif word == "COPY":
            source, _ = rest.split()[-2:]
            assert source == "/src/build/packages/*.deb"
            (root.folder / "debs").mkdir()
            for deb in PACKAGES.glob("*.deb"):
                shutil.copy(deb, root.folder / "debs")
    shutil.rmtree(root.folder / "debs")
    return root


def test_it_has_only_what_runs(image):
    assert (image.folder / "usr/bin/kvarved").exists() and (image.folder / "usr/bin/kvarve").exists()
    assert not (image.folder / "usr/include/kvarve").exists()
    for absent in ("usr/bin/g++", "usr/bin/gcc", "usr/bin/cmake", "usr/share/man/man1/kvarve.1"):
        assert not (image.folder / absent).exists()
    assert not list((image.folder / "var/lib/apt/lists").glob("*_Packages*"))


def test_it_serves_as_the_charts_user_and_stops_within_the_grace_period(image):
    stage = instructions("Dockerfile")[-1]
    uid, gid = value(stage, "USER").split(":")
    values = safe_load((CHART / "values.yaml").read_text())
    assert (int(uid), int(gid)) == (values["user"]["uid"], values["user"]["gid"])
    (entry,) = json.loads(value(stage, "ENTRYPOINT"))
    health = shlex.join(json.loads(re.search(r"CMD (\[.*\])", value(stage, "HEALTHCHECK"))[1]))
    tokens = ",".join(str(i) for i in range(64))
    chain = f"--block-bytes 64KiB --block-tokens 16 --tokens {tokens}"
    user = f"setpriv --reuid {uid} --regid {gid} --clear-groups --bounding-set=-all --no-new-privs"
    grace = values["terminationGracePeriodSeconds"]
    text = image.run(f"""
{user} {entry} --arena.capacity_bytes=96MiB --arena.chunk_bytes=32MiB 2> /tmp/log & daemon=$!
for i in $(seq 300); do {user} {health} > /dev/null 2>&1 && break; kill -0 $daemon || {{ cat /tmp/log; exit 1; }}; sleep 0.1; done
{user} {health}
head -c 262144 /dev/urandom > /tmp/in; chmod 644 /tmp/in
{user} kvarve put {chain} < /tmp/in
{user} kvarve get {chain} | cmp - /tmp/in
{user} kvarve doctor
kill -{value(stage, "STOPSIGNAL")[3:]} $daemon
timeout {grace} tail --pid=$daemon -f /dev/null
wait $daemon; echo ended with $?""")
    assert "0 problems" in text and "ended with 0" in text


def test_both_images_are_built_from_the_package():
    for name in ("Dockerfile", "vllm.Dockerfile"):
        build, last = instructions(name)
        assert "./dev package" in value(build, "RUN")
        assert int(value(last, "USER").split(":")[0]) > 0
        assert any(word == "COPY" and "/src/build/packages/" in rest for word, rest in last)
