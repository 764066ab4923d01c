"""What the tests of deploy/ share: helm, the rendered objects, daemons."""
import os
import pathlib
import subprocess

import pytest
import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CHART = ROOT / "deploy/helm/kvarve"
VALUES = sorted((HERE / "testdata/values").glob("*.yaml"))
BUILD = pathlib.Path(os.environ.get("KVARVE_BUILD", ROOT / "build/release"))
TOOLS = pathlib.Path(os.environ.get("KVARVE_DEPLOY_TOOLS", ROOT / "build/deploy"))


def run(*command, check=True, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, check=False, **more)
    assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


def helm(*arguments, check=True, **more):
    return run(TOOLS / "bin/helm", *arguments, check=check, **more)


def render(*arguments, chart=CHART):
    return helm("template", "demo", chart, "--namespace=inference", *arguments).stdout


def objects(text):
    return [each for each in yaml.safe_load_all(text) if each]


@pytest.fixture(params=VALUES, ids=lambda path: path.stem, scope="session")
def variant(request):
    """A file of values, and what the chart makes of it."""
    return request.param, render("--values", request.param)
