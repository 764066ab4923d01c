"""The Debian package and the wheel in a Debian that has nothing: install, run as nobody much, use, stop, uninstall."""
import os
import shutil

import pytest
from bare_root import PACKAGES, Root
from conftest import run

GRACE_SECONDS = 45  # TimeoutStopSec of the unit
TOKENS = ",".join(str(i * 7) for i in range(64))
CHAIN = f"--block-bytes 64KiB --block-tokens 16 --tokens {TOKENS}"
START = """
setpriv --reuid kvarve --regid kvarve --init-groups --bounding-set=-all --no-new-privs /usr/bin/kvarved \
  --arena.capacity_bytes=96MiB --arena.chunk_bytes=32MiB --metrics.listen=127.0.0.1:19410 \
  --nvme.devices=/var/lib/kvarve/nvme0 --nvme.device_bytes=640MiB 2>> /tmp/log & echo $! > /tmp/pid
for i in $(seq 300); do kvarve status 2> /dev/null | grep -q ' ready ' && break; kill -0 $(cat /tmp/pid) || { cat /tmp/log; exit 1; }; sleep 0.1; done
"""
STOP = f"""
kill -TERM $(cat /tmp/pid)
for i in $(seq {GRACE_SECONDS * 10}); do kill -0 $(cat /tmp/pid) 2> /dev/null || break; sleep 0.1; done
! kill -0 $(cat /tmp/pid) 2> /dev/null
grep -q 'kvarved stopped' /tmp/log
"""
AS_ENGINE = "setpriv --reuid engine --regid engine --init-groups --no-new-privs"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a root of its own needs root")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = Root(tmp_path_factory.mktemp("package") / "root")
    made.run("apt-get -q update; apt-get -q install -y --no-install-recommends python3 util-linux procps; useradd --system engine")
    made.before = made.files()
    (deb,) = PACKAGES.glob("*.deb")
    shutil.copy(deb, made.folder / "srv/kvarve.deb")
    made.run("apt-get -q install -y --no-install-recommends /srv/kvarve.deb; usermod -aG kvarve engine")
    (wheel,) = PACKAGES.glob("*.whl")
    run("/usr/bin/python3", "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", made.folder / "opt/kvarve", wheel)
    return made


def test_it_installs_what_it_should(root):
    listed = root.run("dpkg -L kvarve").split()
    for path in ("/usr/bin/kvarved", "/usr/bin/kvarve", "/usr/bin/kvarve-agent", "/usr/include/kvarve/kvarve.h", "/usr/lib/systemd/system/kvarved.service",
                 "/usr/lib/sysusers.d/kvarve.conf", "/usr/lib/tmpfiles.d/kvarve.conf", "/usr/share/man/man1/kvarve.1",
                 "/usr/share/man/man8/kvarved.8", "/usr/share/man/man5/kvarved.yaml.5", "/usr/share/bash-completion/completions/kvarve"):
        assert path in listed, path
    assert any(path.endswith("pkgconfig/kvarve.pc") for path in listed)
    assert any(path.endswith("cmake/kvarve/kvarveConfig.cmake") for path in listed)
    assert "root" not in root.run("stat -c %U /var/lib/kvarve")
    assert root.run("stat -c '%U %G %a' /var/lib/kvarve /run/kvarve").split("\n")[:2] == ["kvarve kvarve 700", "kvarve kvarve 750"]


def test_kvarved_serves_users_of_its_group_and_stops_in_time(root):
    text = root.run(f"""{START}
head -c 262144 /dev/urandom > /tmp/in; chmod 644 /tmp/in
{AS_ENGINE} kvarve put {CHAIN} < /tmp/in
{AS_ENGINE} kvarve get {CHAIN} | cmp - /tmp/in
setpriv --reuid kvarve --regid kvarve --init-groups kvarve doctor
cp /tmp/in /srv/in
{STOP}""")
    assert "0 problems" in text


def test_it_is_warm_after_the_stop(root):
    root.run(f"{START} {AS_ENGINE} kvarve get {CHAIN} | cmp - /srv/in; {STOP}")


def test_who_is_not_of_the_group_is_kept_out(root):
    text = root.run(f"{START} setpriv --reuid nobody --regid nogroup --clear-groups kvarve status 2>&1 || echo refused with $?; {STOP}")
    assert "refused with" in text


def test_a_python_round_trip(root):
    script = """
import kvarve
client = kvarve.Client(timeout=5.0)
client.wait_ready(10)
space = client.namespace(model="m", model_digest="d", element_type=kvarve.ElementType.BF16, layer_count=2, layer_total=2,
    kv_head_count=2, kv_head_total=2, k_dim=64, v_dim=64, block_tokens=16, block_bytes=16384, hash_version=kvarve.CHAIN_HASH_VERSION)
keys = kvarve.chain_keys(list(range(64)), 16)
blocks = [bytes([i + 1]) * 16384 for i in range(4)]
assert space.put(keys, blocks) == ["stored"] * 4
assert space.get(keys) == blocks
print("round trip of", len(blocks))
"""
    (root.folder / "srv/round.py").write_text(script)
    text = root.run(f"{START} cp /srv/round.py /tmp; PYTHONPATH=/opt/kvarve {AS_ENGINE} python3 /tmp/round.py; {STOP}")
    assert "round trip of 4" in text


def test_a_build_finds_it_by_cmake_and_by_pkg_config(root, tmp_path):
    usr = root.folder / "usr"
    (tmp_path / "program.c").write_text('#include <kvarve/kvarve.h>\nint main(void) { return 0; }\n')
    (tmp_path / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.24)\nproject(p C)\nfind_package(kvarve 0.1 REQUIRED)\n"
                                             "add_executable(p program.c)\ntarget_link_libraries(p kvarve::kvarve)\n")
    configuration = next(usr.rglob("kvarveConfig.cmake")).parent
    run("cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-Dkvarve_DIR={configuration}",
        f"-DCMAKE_EXE_LINKER_FLAGS=-Wl,--unresolved-symbols=ignore-in-shared-libs")
    run("cmake", "--build", tmp_path / "b")
    pc = next(usr.rglob("kvarve.pc")).parent
    flags = run("pkg-config", "--cflags", "--libs", "kvarve", env={"PKG_CONFIG_PATH": str(pc), "PATH": os.environ["PATH"]}).stdout
    assert "-lkvarve" in flags and str(usr / "include") in os.path.normpath(flags.split()[0])


def test_completions_are_shell(root):
    for name in ("kvarve", "kvarved"):
        path = root.folder / f"usr/share/bash-completion/completions/{name}"
        offered = run("bash", "-c", f'. {path}; COMP_WORDS=({name} --); COMP_CWORD=1; _{name}; echo "${{COMPREPLY[@]}}"').stdout.split()
        assert ("--arena.capacity_bytes" if name == "kvarved" else "--endpoint") in offered
    path = root.folder / "usr/share/bash-completion/completions/kvarve"
    offered = run("bash", "-c", f'. {path}; COMP_WORDS=(kvarve cert d); COMP_CWORD=2; _kvarve; echo "${{COMPREPLY[@]}}"').stdout.split()
    assert offered == ["dev"]


def test_man_pages_have_no_errors(root):
    for name in ("man1/kvarve.1", "man5/kvarved.yaml.5", "man8/kvarved.8"):
        text = (root.folder / "usr/share/man" / name).read_text()
        assert text.startswith(".TH ")
    settings = (root.folder / "usr/share/man/man5/kvarved.yaml.5").read_text()
    assert settings.count(".TP") > 40 and "arena.capacity_bytes" in settings


def test_uninstalling_leaves_only_data(root):
    """The last one: it takes the package away."""
    root.run("dpkg --purge kvarve")
    left = {path for path in root.files() - root.before if not path.startswith(("var/lib/dpkg", "var/lib/apt", "var/cache", "var/log", "opt/kvarve", "srv/"))}
    dependencies = set(root.run("dpkg-query -L $(dpkg-query -W -f '${Package} ') 2> /dev/null | sort -u").split("\n"))
    left = {path for path in left if "/" + path not in dependencies and "/" + path.replace("usr/lib", "lib", 1) not in dependencies}
    ours = {path for path in left if "kvarve" in path}
    assert ours and all(path.startswith("var/lib/kvarve/") for path in ours), ours
