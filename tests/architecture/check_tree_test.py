"""check_tree.py finds planted offences and nothing else."""
import os
import tempfile
import unittest

import check_tree


class CheckTree(unittest.TestCase):
    def offences(self, files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                    f.write(text)
            return [line.split(": ")[0] for line in check_tree.check(root)]

    def test_a_small_whole_library_passes(self):
        self.assertEqual([], self.offences({
            "storage/base/CMakeLists.txt": "kv_library(NAME kv_base HDRS a.h SRCS a.cc)\n",
            "storage/base/a.h": "// THREADS: any.\n",
            "storage/base/a.cc": "int main() {}\n" * 500,
            "build/generated.cc": "// TODO\n",
            "storage/base/testdata/notes.txt": "for now\n",
        }))

    def test_every_source_is_built(self):
        self.assertEqual(["storage/base/cc.cc", "storage/base/deep/b.cc", "storage/base/f_test.cc"], self.offences({
            "storage/base/CMakeLists.txt": "kv_library(NAME kv_base SRCS c.cc deep/a.cc)\nkv_test(NAME x SRCS ccc.cc)\n"
                                           "foreach(name d e)\n  kv_test(NAME ${name} SRCS ${name}_test.cc)\nendforeach()\n",
            "storage/base/d_test.cc": "",
            "storage/base/e_test.cc": "",
            "storage/base/f_test.cc": "",
            "storage/base/c.cc": "",
            "storage/base/cc.cc": "",
            "storage/base/deep/a.cc": "",
            "storage/base/deep/b.cc": "",
        }))

    def test_long_files_need_a_reason(self):
        self.assertEqual(["tests/x.py"], self.offences({"tests/x.py": "pass\n" * 501, "tests/y.py": "pass\n" * 500}))

    def test_headers_state_their_threads(self):
        self.assertEqual(["storage/index/index.h"], self.offences({
            "storage/index/index.h": "// An index.\n",
            "storage/index/naive_index_testing.h": "// A model.\n",
        }))

    def test_unfinished_work_and_other_places_are_named(self):
        self.assertEqual(["a.md:1", "a.md:2", "a.md:3", "b.py:2", "b.py:3"], self.offences({
            "a.md": "TODO: write\nGood enough for now.\nA placeholder.\nNothing here.\n",
            "b.py": "# fine\n# see issue 12\nPATH = '/home/me/x'\nOTHER = 'https://example.org/work/home/x'\n",
        }))

    def test_libraries_link_only_what_they_may_include(self):
        self.assertEqual(["storage/index/CMakeLists.txt"], self.offences({
            "storage/arena/CMakeLists.txt": "kv_library(NAME kv_arena DEPS kv_base absl::status)\n",
            "storage/base/CMakeLists.txt": "kv_library(NAME kv_base)\n",
            "storage/index/CMakeLists.txt": "kv_library(NAME kv_index\n  DEPS kv_base kv_arena)\n"
                                            "kv_test(NAME index_test DEPS kv_index kv_arena)\n",
            "storage/cache/CMakeLists.txt": "kv_library(NAME kv_cache DEPS kv_arena kv_index)\n",
        }))


if __name__ == "__main__":
    unittest.main()
