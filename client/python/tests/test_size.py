"""The connector stays small enough to be read in one go: what is not vLLM's lies beside it or in C++."""

import ast
import io
import tokenize
from pathlib import Path

CODE_LINES_MAX = 600
_SPACE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(path: Path) -> int:
    """Lines that are neither blank, comment nor docstring."""
    text, lines = path.read_text(), set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SPACE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def test_the_connector_is_small():
    files = sorted((Path(__file__).parents[1] / "kvarve" / "connectors" / "vllm").glob("*.py"))
    assert 0 < sum(code_lines(path) for path in files) <= CODE_LINES_MAX
