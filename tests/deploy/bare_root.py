"""A bare Debian in a folder, which programs take for the whole machine."""
import os
import pathlib
import shutil
import subprocess

from conftest import ROOT, TOOLS, run

PACKAGES = pathlib.Path(os.environ.get("KVARVE_PACKAGES", ROOT / "build/packages"))


class Root:
    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        run("tar", "-C", folder, "-xf", TOOLS / "root.tar")
        for name in ("/etc/resolv.conf", "/etc/apt/apt.conf.d", "/etc/apt/sources.list", "/etc/apt/sources.list.d"):
            source = pathlib.Path(name)
            if source.is_dir():
                shutil.copytree(source, folder / name[1:], dirs_exist_ok=True)
            elif source.exists():
                shutil.copy(source, folder / name[1:])

    def run(self, script, check=True):
        inner = f"set -e; export DEBIAN_FRONTEND=noninteractive HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin; {script}"
        mounts = f"mount -t proc none {self.folder}/proc; mount --rbind /dev {self.folder}/dev"
        outer = f"set -e; {mounts}; mount -t tmpfs none {self.folder}/tmp; exec chroot {self.folder} bash -c \"$1\""
        environment = {k: v for k, v in os.environ.items() if "proxy" in k.lower()} | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", outer, "bash", inner],
                              capture_output=True, text=True, timeout=240, check=False, env=environment)
        assert not check or done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    def files(self):
        skipped = {"proc", "dev", "sys", "tmp"}
        found = set()
        for place, folders, names in os.walk(self.folder):
            if pathlib.Path(place) == self.folder:
                folders[:] = [name for name in folders if name not in skipped]
            found |= {os.path.relpath(os.path.join(place, name), self.folder) for name in names}
        return found
