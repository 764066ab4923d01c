"""Builds kvarve._native and kvarve._rpc by the repository's CMake target kvarve_python. KVARVE_BUILD_DIR keeps its build folder."""

import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parents[2]


class CMakeBuild(build_ext):
    def build_extension(self, extension):
        folder = pathlib.Path(os.environ.get("KVARVE_BUILD_DIR", pathlib.Path(self.build_temp).resolve() / "cmake"))
        if not (folder / "CMakeCache.txt").exists():
            subprocess.check_call(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                                   f"-DKVARVE_PYTHON={sys.executable}"])
        subprocess.check_call(["cmake", "--build", folder, "--target", "kvarve_python"])
        target = pathlib.Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        built = next((folder / "python" / "kvarve").glob(extension.name.rsplit(".", 1)[-1] + ".*.so"))
        shutil.copy2(built, target)


setup(ext_modules=[Extension(f"kvarve.{name}", sources=[]) for name in ("_native", "_rpc")], cmdclass={"build_ext": CMakeBuild})
