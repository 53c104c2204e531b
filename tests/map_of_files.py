"""The second half of docs/map.md: one line a file, which is the first sentence of the module's own docstring.

`python -m tests.map_of_files` writes it; tests/test_map.py keeps it true.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAP = ROOT / "docs" / "map.md"
BEGIN = "<!-- files: written by python -m tests.map_of_files -->"

PACKAGES = {
    "kernels": "kernels: what is computed. One op a file, one source for GPU, CPU and simulator",
    "graphs": "graphs: how a step becomes a graph",
    "runtime": "runtime: everything else",
}


def first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z])", paragraph)[0].rstrip(".:").replace("|", "or")


def file_tables() -> str:
    lines = [BEGIN]
    for package, title in PACKAGES.items():
        lines += ["", f"### {title}", "", "| file | what |", "|---|---|"]
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name != "__init__.py":
                lines.append(f"| {path.relative_to(ROOT / package).as_posix()} | {first_sentence(path)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    MAP.write_text(MAP.read_text(encoding="utf-8").split(BEGIN)[0] + file_tables(), encoding="utf-8")
