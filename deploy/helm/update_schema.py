#!/usr/bin/env python3
"""Puts the daemon's table of settings into the chart's values.schema.json, as the schema of the value `config`.

usage: update_schema.py KVARVED [--check]   --check: changes nothing, exits 1 when the chart's is another.
"""
import json
import pathlib
import subprocess
import sys

SCHEMA = pathlib.Path(__file__).resolve().parent / "kvarve" / "values.schema.json"


def config_schema(kvarved):
    schema = json.loads(subprocess.run([kvarved, "--print-schema"], check=True, capture_output=True, text=True).stdout)
    del schema["$schema"]
    return schema


def main():
    chart = json.loads(SCHEMA.read_text(encoding="utf-8"))
    wanted = config_schema(sys.argv[1])
    if "--check" in sys.argv:
        return 0 if chart["properties"]["config"] == wanted else 1
    chart["properties"]["config"] = wanted
    SCHEMA.write_text(json.dumps(chart, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
