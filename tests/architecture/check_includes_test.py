"""check_includes.py finds planted offences and nothing else."""
import os
import tempfile
import unittest

import check_includes


class CheckIncludes(unittest.TestCase):
    def offences(self, files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                    f.write(text)
            return [line.split(": ")[0] for line in check_includes.check(root)]

    def test_downwards_is_allowed(self):
        self.assertEqual([], self.offences({
            "storage/cache/cache.cc": '#include "storage/arena/arena.h"\n#include "storage/base/units.h"\n',
            "services/kvarved/main.cc": '#include "storage/cache/cache.h"\n#include "client/local/messages.h"\n',
        }))

    def test_siblings_and_upwards_are_refused(self):
        self.assertEqual(["storage/arena/a.cc:1", "storage/base/b.h:2", "storage/index/c.cc:1"], self.offences({
            "storage/arena/a.cc": '#include "storage/index/index.h"\n',
            "storage/base/b.h": '\n  #  include "storage/block/layout.h"\n',
            "storage/index/c.cc": '#include "services/metrics/metrics.h"\n',
        }))

    def test_client_knows_no_cache(self):
        self.assertEqual(["client/cpp/client.cc:1"], self.offences({
            "client/cpp/client.cc": '#include "storage/cache/cache.h"\n',
        }))

    def test_third_party_only_through_its_door(self):
        self.assertEqual(["storage/cache/cache.cc:1"], self.offences({
            "storage/cache/cache.cc": "#include <prometheus/registry.h>\n",
            "services/metrics/metrics.cc": "#include <prometheus/registry.h>\n",
        }))

    def test_production_includes_no_test_code(self):
        self.assertEqual(["storage/index/index.cc:1"], self.offences({
            "storage/index/index.cc": '#include "storage/index/naive_index_testing.h"\n',
            "storage/index/index_test.cc": '#include "storage/index/naive_index_testing.h"\n',
        }))

    def test_own_header_comes_first(self):
        self.assertEqual(["storage/base/late.cc:1"], self.offences({
            "storage/base/late.h": "",
            "storage/base/late.cc": '#include <vector>\n\n#include "storage/base/late.h"\n',
            "storage/base/first.h": "",
            "storage/base/first.cc": '// What it does.\n#include "storage/base/first.h"\n\n#include <vector>\n',
            "storage/base/alone.cc": "#include <vector>\n",
        }))

    def test_unknown_folder_needs_a_rule(self):
        self.assertEqual(["elsewhere/x.cc:1"], self.offences({"elsewhere/x.cc": '#include "storage/base/units.h"\n'}))


if __name__ == "__main__":
    unittest.main()
