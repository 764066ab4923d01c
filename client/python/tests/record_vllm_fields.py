"""Writes kvarve/connectors/vllm/vllm_fields.json from the vLLM of this interpreter.

Run it after reading what changed in vLLM: a field that the connector does not know may change what KV means.
"""

import json
from pathlib import Path

import vllm

from kvarve.connectors.vllm import identity

if __name__ == "__main__":
    path = Path(__file__).parents[1] / "kvarve" / "connectors" / "vllm" / "vllm_fields.json"
    path.write_text(json.dumps({"version": vllm.__version__, "fields": identity.vllm_fields()}, indent=1) + "\n")
