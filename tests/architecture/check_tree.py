#!/usr/bin/env python3
"""Checks the tree itself: every source is built, files stay small, headers state their threads, libraries link only what
they may include, and no text speaks of unfinished work or of the place where it was written.

usage: check_tree.py [ROOT]   Prints each offence as path[:line]: reason; exits 1 when there is one.
"""
import os
import re
import sys

import check_includes

LINES_MAX = 500
LONG_FILES = {  # path -> why it is longer
    "storage/arena/arena.cc": "allocation, retirement and capacity keep one set of sums",
    "dev": "the one entry: a script that people copy alone",
}

SKIPPED_FOLDERS = ("build", "__pycache__", "testdata", "data", "node_modules")
TEXT_ENDINGS = (".cc", ".h", ".cu", ".cuh", ".py", ".sh", ".cmake", ".md", ".proto", ".txt", ".yaml", ".yml", ".toml")
COUNTED_ENDINGS = (".cc", ".h", ".cu", ".cuh", ".py", ".sh")

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|WIP)\b|\bplaceholders?\b|\bfor now\b", re.IGNORECASE)
ELSEWHERE = re.compile(r"(?<![\w.])/(work|home|root|Users)/\w|/tmp/w/|\bshared/(design|reference|prototype|traces)|"
                       r"\bissue #?\d+", re.IGNORECASE)
LOOP = re.compile(r"\bforeach\((\w+)((?:\s+[\w./]+)+)\s*\)(.*?)\bendforeach\(", re.DOTALL)
LIBRARY = re.compile(r"\bkv_(?:library|binary)\(([^)]*)\)")
KEYWORDS = ("NAME", "HDRS", "SRCS", "DEPS", "SHARED")


def walk(root):
    """Paths of the project's own files, below `root`."""
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders
                      if not f.startswith((".", "build-")) and not f.endswith(".egg-info") and f not in SKIPPED_FOLDERS]
        for name in files:
            yield os.path.relpath(os.path.join(folder, name), root)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


def check_words(path, text):
    if path.startswith("tests/architecture/"):
        return  # names the words
    for number, line in enumerate(text.split("\n"), 1):
        for pattern, reason in ((UNFINISHED, "unfinished work is not kept in the tree"),
                                (ELSEWHERE, "names a place or a plan outside the project")):
            match = pattern.search(line)
            if match:
                yield f"{path}:{number}: '{match.group(0)}': {reason}"


def check_size(path, text):
    lines = text.count("\n")
    if lines > LINES_MAX and path not in LONG_FILES:
        yield f"{path}: {lines} lines; split it, or give the reason in LONG_FILES of {os.path.basename(__file__)}"


def check_header(path, text):
    if path.endswith(".h") and not check_includes.is_test(path) and "THREADS:" not in text:
        yield f"{path}: does not state its threads (THREADS: any, one owner, externally synchronised ...)"


def unrolled(text):
    """A CMakeLists.txt with the bodies of its loops over plain words written out."""
    def bodies(match):
        variable, words, body = match.groups()
        return "\n".join(body.replace("${" + variable + "}", word) for word in words.split())
    return LOOP.sub(bodies, text)


def check_built(root, path):
    """A source stands in the CMakeLists.txt of its folder or of one above, by its path from there."""
    folder = os.path.dirname(path)
    while True:
        lists = os.path.join(folder, "CMakeLists.txt")
        if os.path.exists(os.path.join(root, lists)):
            name = os.path.relpath(path, folder or ".")
            if re.search(r"(?<![\w/])" + re.escape(name) + r"(?!\w)", unrolled(read(root, lists))):
                return
        if not folder:
            break
        folder = os.path.dirname(folder)
    yield f"{path}: in no CMakeLists.txt"


def libraries(root, lists):
    """(target, its dependencies) of each library and binary that a CMakeLists.txt defines."""
    for match in LIBRARY.finditer(read(root, lists)):
        parts, field = {}, None
        for word in re.sub(r"#.*", "", match.group(1)).split():
            if word in KEYWORDS:
                field = word
            elif field:
                parts.setdefault(field, []).append(word)
        if "NAME" in parts:
            yield parts["NAME"][0], parts.get("DEPS", [])


def check_links(root, all_lists):
    folder_of, links = {}, []
    for lists in all_lists:
        for target, dependencies in libraries(root, lists):
            folder_of[target] = os.path.dirname(lists)
            links += [(lists, target, dependency) for dependency in dependencies]
    for lists, target, dependency in links:
        folder, other = folder_of[target], folder_of.get(dependency)
        rule = check_includes.rule_of(folder)
        # A library of test code may join what its tests join.
        if other is None or rule is None or rule == "tests" or "testing" in target:
            continue
        allowed = (rule,) + check_includes.MAY_INCLUDE[rule]
        if not any(check_includes.lies_in(other, a) for a in allowed):
            yield f"{lists}: {target} links {dependency}, but {rule} may not include {other}"


def check(root):
    found = []
    paths = sorted(walk(root))
    for path in paths:
        if not path.endswith(TEXT_ENDINGS) and path != "dev":
            continue
        text = read(root, path)
        found += check_words(path, text)
        if path.endswith(COUNTED_ENDINGS) or path == "dev":
            found += check_size(path, text)
        found += check_header(path, text)
        if path.endswith((".cc", ".cu")):
            found += check_built(root, path)
    found += check_links(root, [p for p in paths if os.path.basename(p) == "CMakeLists.txt"])
    found += [f"{path}: in LONG_FILES, but not in the tree" for path in LONG_FILES
              if root_is_ours(paths) and path not in paths]
    return found


def root_is_ours(paths):
    return "tests/architecture/check_tree.py" in paths


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    found = check(os.path.normpath(root))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
