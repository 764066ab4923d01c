"""`pip install client/python`: the wheel carries the native module, its types, and vLLM's entry point."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


def test_the_wheel_is_whole(tmp_path):
    build = os.environ.get("KVARVE_BUILD")
    if not build:
        pytest.skip("KVARVE_BUILD names no build to take the native module from")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path,
                    Path(__file__).parents[1]], check=True, env=os.environ | {"KVARVE_BUILD_DIR": build})
    [wheel] = tmp_path.glob("kvarve-*.whl")
    with zipfile.ZipFile(wheel) as contents:
        names = contents.namelist()
        assert any(name.startswith("kvarve/_native.") and name.endswith(".so") for name in names)
        assert {"kvarve/py.typed", "kvarve/_native.pyi", "kvarve/connectors/vllm/connector.py",
                "kvarve/connectors/vllm/vllm_fields.json"} <= set(names)
        [points] = [name for name in names if name.endswith("entry_points.txt")]
        assert b"kvarve = kvarve.connectors.vllm:register" in contents.read(points)
        contents.extractall(tmp_path / "site")
    # Loaded from the wheel and from nowhere else.
    said = subprocess.run([sys.executable, "-c", "import kvarve; print(kvarve.__file__, kvarve.Client('unix:///none').state())"],
                          check=True, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path / "site")}).stdout
    assert said.startswith(str(tmp_path)) and "'connected': False" in said
