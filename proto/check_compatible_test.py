"""Each kind of break is seen, and nothing else is one."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_compatible

OLD = """
syntax = "proto3";
package t.v1;
message A {
  uint32 one = 1;
  repeated string two = 2;
  oneof choice { bytes three = 3; bool four = 4; }
  message Inner { fixed64 five = 5; optional uint32 six = 6; }
  Inner inner = 7;
  enum Kind { NONE = 0; SOME = 1; }
}
message B {}
enum Color { BLACK = 0; RED = 1; }
service S {
  rpc Ask(A) returns (B);
  rpc Watch(A) returns (stream B);
}
"""


def compiled(text):
    with tempfile.TemporaryDirectory() as folder:
        source, result = os.path.join(folder, "t.proto"), os.path.join(folder, "t.binpb")
        with open(source, "w", encoding="utf-8") as f:
            f.write(text)
        subprocess.run(["protoc", "-I", folder, "--descriptor_set_out=" + result, source], check=True)
        return check_compatible.read(result)


def breaks(*changes):
    new = OLD
    for before, after in changes:
        assert before in new
        new = new.replace(before, after, 1)
    return list(check_compatible.breaks(compiled(OLD), compiled(new)))


class Breaks(unittest.TestCase):
    def refused(self, text, *changes):
        found = breaks(*changes)
        self.assertTrue(any(text in line for line in found), (text, found))

    def test_nothing_changed(self):
        self.assertEqual(breaks(), [])

    def test_additions(self):
        self.assertEqual(breaks(("uint32 one = 1;", "uint32 one = 1; uint64 more = 9;"),
                                ("RED = 1;", "RED = 1; BLUE = 2;"),
                                ("rpc Ask", "rpc More(B) returns (B); rpc Ask"),
                                ("message B {}", "message B {} message C {}")), [])

    def test_removed_and_reserved(self):
        self.refused("t.v1.A.one = 1: is gone", ("uint32 one = 1;", ""))
        self.refused("is gone", ("uint32 one = 1;", "reserved 1;"))
        self.assertEqual(breaks(("uint32 one = 1;", 'reserved 1; reserved "one";')), [])
        self.refused("t.v1.Color.RED = 1: is gone", ("RED = 1;", "GREEN = 2;"))
        self.assertEqual(breaks(("RED = 1;", 'reserved 1; reserved "RED";')), [])

    def test_renumbered(self):
        self.refused("t.v1.A.one = 1: is gone", ("one = 1;", "one = 12;"))
        self.refused("became GREEN", ("RED = 1", "GREEN = 1"))

    def test_renamed_and_retyped(self):
        self.refused("another name", ("uint32 one", "uint32 uno"))
        self.refused("another type", ("uint32 one", "int32 one"))
        self.refused("another type", ("Inner inner = 7", "B inner = 7"))
        self.refused("another label", ("repeated string two", "string two"))
        self.refused("another oneof", ("oneof choice { bytes three = 3;", "bytes three = 3; oneof choice {"))
        self.refused("another presence", ("optional uint32 six", "uint32 six"))
        self.refused("t.v1.A.Inner.five", ("fixed64 five", "uint64 five"))

    def test_declarations_gone(self):
        self.refused("t.v1.A.Kind: the enum is gone", ("enum Kind { NONE = 0; SOME = 1; }", ""))
        self.refused("t.v1.B: the message is gone", ("message B {}", "message C {}"),
                     ("returns (B)", "returns (C)"), ("stream B", "stream C"))
        self.refused("t.v1.S: the service is gone", ("service S", "service T"))

    def test_calls(self):
        self.refused("t.v1.S.Ask: is gone", ("rpc Ask(A) returns (B);", ""))
        self.refused("another input_type", ("Ask(A)", "Ask(B)"))
        self.refused("another output_type", ("Ask(A) returns (B)", "Ask(A) returns (A)"))
        self.refused("another server_streaming", ("returns (stream B)", "returns (B)"))
        self.refused("another client_streaming", ("Watch(A)", "Watch(stream A)"))

    def test_a_golden_set_behind_is_not_current(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("old", "new")]
            more = OLD.replace("message B {}", "message B { bool b = 1; }")
            for path, text in zip(paths, (OLD, more)):
                with open(path, "wb") as f:
                    f.write(compiled(text).SerializeToString())
            self.assertEqual(check_compatible.main(paths), 1)
            self.assertEqual(check_compatible.main(["--write", *paths]), 0)
            self.assertEqual(check_compatible.main(paths), 0)
            self.assertEqual(check_compatible.main(paths[::-1]), 0)


if __name__ == "__main__":
    unittest.main()
