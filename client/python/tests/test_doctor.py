"""`kvarve doctor` asks the engine's Python whether the connector takes the settings of a command line."""
import json
import os
import subprocess
import sys

import pytest


def findings(*command: str) -> dict[str, dict]:
    build = os.environ.get("KVARVE_BUILD")
    if not build:
        pytest.skip("KVARVE_BUILD names no build to take kvarve from")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KVARVE")}
    answer = subprocess.run([f"{build}/bin/kvarve", "--json", "--endpoint", "unix:///nonexistent/socket", "doctor",
                             "--python", sys.executable, "--", *command],
                            capture_output=True, text=True, env=clean, check=False)
    return {finding["check"]: finding for finding in json.loads(answer.stdout)["findings"]}


def test_settings_of_a_command_line():
    extra = "--kv-transfer-config.kv_connector_extra_config."
    good = findings("KVARVE_STRICT=1", "vllm", "serve", "m", extra + "block_tokens=256")
    assert good["connector settings"]["level"] == "ok"
    unknown = findings("vllm", "serve", "m", extra + "block_token", "256")["connector settings"]
    assert (unknown["level"], unknown["text"]) == (
        "problem", "kvarve: no setting is called 'block_token'; did you mean 'block_tokens'?")
    outside = findings("env", "KVARVE_HOLD_MS=70000", "vllm", "serve", "m")["connector settings"]
    assert "hold_ms lies in 0..60000" in outside["text"]
