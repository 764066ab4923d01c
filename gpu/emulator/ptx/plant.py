#!/usr/bin/env python3
"""Writes the attention kernels with a bug in them, one file a bug: what the tests of attention are tested by.

usage: plant.py SOURCE FOLDER   FOLDER/planted_attention_NAME.cu for each bug, and `none` without one.

A bug is one place of the source, replaced; a place that is not there exactly once is an error, so that no bug gets lost when the
source changes. Of the entries only those that the tests of the bugs need are kept.
"""
import sys

BUGS = {
    "none": ("", ""),
    "lse_in_base_2": ("nothing ? -kInfinity : state.largest + Log2(state.sum) * kLn2;",
                      "nothing ? -kInfinity : state.largest * kLog2E + Log2(state.sum);"),
    "sink_per_split": ("if (sink != -kInfinity) total += Exp(sink - largest);",
                       "if (sink != -kInfinity) total += item.part_count * Exp(sink - largest);"),
    "fully_masked_split": ("const float base = largest == -kInfinity ? 0 : largest;", "const float base = largest;"),
    "int32_page_offset": ("p.k.base + page * p.k.page_stride", "p.k.base + static_cast<int32_t>(page * p.k.page_stride)"),
    "early_exit": ("  RowState state;\n  Sums sums;", "  if (item.begin == item.end) return;\n  RowState state;\n  Sums sums;"),
}
KEPT = ("kv_attention_bf16_64,",)


def planted(source, name):
    before, after = BUGS[name]
    if before:
        if source.count(before) != 1:
            raise SystemExit(f"{name}: its place stands {source.count(before)} times in the source: {before}")
        source = source.replace(before, after)
    lines = source.splitlines(keepends=True)
    return "".join(line for line in lines
                   if not line.startswith("KV_ATTENTION(") or line.startswith(tuple("KV_ATTENTION(" + k for k in KEPT)))


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        source = f.read()
    for name in BUGS:
        with open(f"{sys.argv[2]}/planted_attention_{name}.cu", "w", encoding="utf-8") as f:
            f.write(planted(source, name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
