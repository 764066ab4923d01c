#!/usr/bin/env python3
"""Pages that are made from the programs, or that name parts of them, say what is so.

usage: pages_test.py FOLDER_OF_BINARIES [TEST...]
"""
import os
import re
import subprocess
import sys

import daemon_case
from daemon_case import Case, main


class PagesTest(Case):
    def test_generated_pages(self):
        for flag, page in (("--print-docs", "docs/configuration.md"), ("--print-metrics", "docs/metrics.md")):
            with open(page, encoding="utf-8") as f:
                self.assertEqual(self.run_kvarved(flag).stdout, f.read(), page)
        self.assertRegex(self.run_kvarved("--version").stdout, r"^kvarved \d+\.\d+\.\d+\n$")
        self.assertIn("--arena.capacity_bytes", self.run_kvarved("--help").stdout)

    def test_the_chart_has_the_table_of_settings(self):
        answer = subprocess.run([sys.executable, "deploy/helm/update_schema.py", os.path.join(daemon_case.BINARIES, "kvarved"), "--check"],
                                check=False)
        self.assertEqual(answer.returncode, 0, "run deploy/helm/update_schema.py KVARVED")

    def test_the_operators_page_names_what_is_logged_and_counted(self):
        with open("docs/operations.md", encoding="utf-8") as f:
            page = f.read()
        events = set()
        for folder in ("services", "storage"):
            for place, _, files in os.walk(folder):
                for name in files:
                    if name.endswith(".cc") and not name.endswith("_test.cc"):
                        with open(os.path.join(place, name), encoding="utf-8") as f:
                            events |= set(re.findall(r'KvLog\(LogLevel::\w+,\s*"([^"]+)"', f.read()))
        self.assertGreater(len(events), 5)
        for event in events:
            self.assertIn(f"`{event}`", page)
        metrics = self.run_kvarved("--print-metrics").stdout
        for name in set(re.findall(r"`(kvarve_\w+)", page)):
            self.assertIn(f"`{name}`", metrics)

    def test_the_security_page_names_tests_that_exist(self):
        with open("docs/security.md", encoding="utf-8") as f:
            page = f.read()
        rows = re.findall(r"`([\w/]+_(?:test|fuzz)\.cc)`((?: \w+(?: \([^)]*\))?,?)*)", page)
        self.assertGreater(len(rows), 10)
        for path, names in rows:
            with open(path, encoding="utf-8") as f:
                text = f.read()
            for name in re.findall(r"\w+", re.sub(r"\([^)]*\)", "", names)):
                self.assertRegex(text, rf"TEST(_\w)?\(\w+, {name}\)", path)


if __name__ == "__main__":
    main()
