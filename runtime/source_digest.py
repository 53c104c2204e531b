"""The state of the sources that a measurement speaks of: a digest of their code, which comments and docstrings are no part of."""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

Span = tuple[tuple[int, int], tuple[int, int]]
"""Begin and end in a text: line from 1, character from 0."""


def sources_digest(patterns: Sequence[str], root: Path) -> str:
    """SHA-256 over the names and the code, or other contents, of the files below `root` that match, in order of their names."""
    files = sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()})
    digest = hashlib.sha256()
    for path in files:
        name = path.relative_to(root).as_posix()
        content = path.read_bytes()
        if path.suffix == ".py":
            content = code_of(content.decode()).encode()
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def code_of(source: str) -> str:
    """The text without comments, docstrings and blank lines: the same under every version of Python, because it is cut and not
    written anew. A text that is no Python stays as it is."""
    try:
        spans = [*_comments(source), *_docstrings(source)]
    except (SyntaxError, tokenize.TokenError, ValueError):
        return source
    lines = source.splitlines()
    for (first, begin), (last, end) in sorted(spans, reverse=True):
        lines[first - 1 : last] = [lines[first - 1][:begin] + lines[last - 1][end:]]
    return "\n".join(stripped for line in lines if (stripped := line.rstrip()))


def _comments(source: str) -> list[Span]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(token.start, token.end) for token in tokens if token.type == tokenize.COMMENT]


def _docstrings(source: str) -> list[Span]:
    """Texts that stand alone as a statement: docstrings, and those under an attribute or a constant."""
    lines = source.splitlines()

    def character(line: int, byte: int) -> int:
        return len(lines[line - 1].encode()[:byte].decode())

    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            end_line, end_byte = node.end_lineno or node.lineno, node.end_col_offset or 0
            begin = (node.lineno, character(node.lineno, node.col_offset))
            found.append((begin, (end_line, character(end_line, end_byte))))
    return found
