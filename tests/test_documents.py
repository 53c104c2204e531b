"""README and docs against the program: the commands, options, modules, targets, keys and files that they name are there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from runtime.cli import app
from runtime.config import RunConfig, Section
from tests.conftest import ROOT

DOCS = [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "mutants.md"]
PAGES = ["README.md", "CHANGELOG.md", *DOCS]
SECTIONS = {name: kind.annotation for name, kind in RunConfig.model_fields.items()}
COMMANDS: Any = typer.main.get_command(app)


def commands(page: str, program: str) -> Iterator[str]:
    """What stands behind `program` on lines of code, continued lines and inline code of a page, comments left out."""
    text = (ROOT / page).read_text(encoding="utf-8")
    fenced = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", fenced.sub("", text))]
    blocks = [re.sub(r"\n +(?=\[)", " ", block).splitlines() for block in fenced.findall(text)]
    for line in [line for block in blocks for line in block] + inline:
        if line.startswith(f"{program} "):
            yield line.removeprefix(f"{program} ").partition("  #")[0]


def options_of(command: str) -> set[str]:
    return {option for param in COMMANDS.commands[command].params for option in (*param.opts, *param.secondary_opts)} | {"--help"}


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_options(page: str) -> None:
    for line in commands(page, "draftgraph"):
        name = line.split()[0]
        assert name in COMMANDS.commands, f"{page}: draftgraph {line}"
        unknown = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", line)) - options_of(name)
        assert not unknown, f"{page}: draftgraph {line}"


def test_every_command_stands_in_the_readme() -> None:
    assert set(COMMANDS.commands) == {line.split()[0] for line in commands("README.md", "draftgraph")}


@pytest.mark.parametrize("page", PAGES)
def test_modules_and_files(page: str) -> None:
    """`python -m` names modules; a path in backticks, or a link, leads somewhere."""
    for line in commands(page, "python -m"):
        assert find_spec(line.split()[0]) is not None, f"{page}: python -m {line}"
    text = (ROOT / page).read_text(encoding="utf-8")
    places = set(re.findall(r"`((?:kernels|graphs|runtime|tests|configs|docs)/[\w./-]+)`", text))
    places |= {str(Path(page).parent / link) for link in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text)}
    assert [place for place in sorted(places) if not (ROOT / place).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_targets_of_make(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make (?:[A-Z]+=\S+ )?([a-z]+)", text, re.MULTILINE)) <= targets


@pytest.mark.parametrize("page", PAGES)
def test_keys_of_a_configuration(page: str) -> None:
    """In backticks, or with a value: `runner.async`, `graphs.ops: plain`, --arms speculator.method=none."""
    names = "|".join(name for name, kind in SECTIONS.items() if isinstance(kind, type) and issubclass(kind, Section))
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(rf"`({names})\.([a-z_]+)(?=[`:=])|\b({names})\.([a-z_]+)=", text)
    for section, key in ((first or third, second or fourth) for first, second, third, fourth in named):
        fields = SECTIONS[section].model_fields  # type: ignore[union-attr]
        assert key in {field.alias or name for name, field in fields.items()}, f"{page}: {section}.{key}"


def test_the_licence_is_the_one_that_is_named() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
    assert 'license = { text = "Apache-2.0" }' in (ROOT / "pyproject.toml").read_text()
    assert "Licence: Apache-2.0" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", sorted(COMMANDS.commands))
def test_help_of_every_command_says_what_each_option_is(name: str) -> None:
    command = COMMANDS.commands[name]
    assert command.help
    summary = command.help.split("\n\n")[0]
    assert len(" ".join(summary.split())) < 132, "the list of commands shows the first paragraph"
    silent = [param.name for param in command.params if not getattr(param, "help", None) and param.name not in ("help",)]
    assert silent == []


def test_every_package_is_installed() -> None:
    packages = (ROOT / "pyproject.toml").read_text().partition("packages = [")[2].partition("]")[0]
    folders = [path.parent for top in ("kernels", "graphs", "runtime") for path in (ROOT / top).rglob("__init__.py")]
    assert set(re.findall(r'"([\w.]+)"', packages)) == {".".join(folder.relative_to(ROOT).parts) for folder in folders}


def test_the_python_of_the_readme_is_python() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    compile(code, "README.md", "exec")
    imports = "\n".join(line for line in code.splitlines() if line.startswith(("from ", "import ")))
    subprocess.run([sys.executable, "-c", imports], cwd=ROOT, check=True, timeout=60)


def test_commands_of_the_pages_are_whole_words() -> None:
    """A quote left open would be a command that nobody can paste."""
    for page in PAGES:
        for line in commands(page, "draftgraph"):
            if "[" not in line:
                shlex.split(line)
