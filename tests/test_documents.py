"""README and docs against the program: the commands, options, modules, targets, keys and files that they name are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from runtime.cli import app
from runtime.config import RunConfig, Section
from tests.conftest import ROOT
from tests.tiny_checkpoint import TinyShape, write_tiny_checkpoint

DOCS = [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "mutants.md"]
PAGES = ["README.md", "CHANGELOG.md", *DOCS]
SECTIONS = {name: kind.annotation for name, kind in RunConfig.model_fields.items()}
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
OTHER_OPTIONS = {"--prompts", "--text-only"}
"""Of tools beside `draftgraph` (docs/training.md), where a page speaks of one without its program."""
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


def test_every_target_stands_in_the_readme() -> None:
    (named,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [target for target in named.split() if f"make {target}" not in text] == ["clean"]


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


def test_the_python_of_the_readme_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands, but for the model and for an id that the tiny one has not."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    model = write_tiny_checkpoint(tmp_path / "model", TinyShape())
    config = yaml.safe_load((ROOT / "configs" / "tiny.yaml").read_text(encoding="utf-8"))
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(config | {"model": {"source": str(model.path)}}), encoding="utf-8")
    for ours, tiny in (("configs/smollm2.yaml", str(tmp_path / "tiny.yaml")), ("4093", "93")):
        assert ours in code
        code = code.replace(ours, tiny)
    exec(compile(code, "README.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_commands_of_the_pages_are_whole_words() -> None:
    """A quote left open would be a command that nobody can paste."""
    for page in PAGES:
        for line in commands(page, "draftgraph"):
            if "[" not in line:
                shlex.split(line)


@pytest.mark.parametrize("page", PAGES)
def test_options_that_stand_alone(page: str) -> None:
    """`--watch` in a sentence is an option of some command; those of other programs stand behind their name."""
    text = (ROOT / page).read_text(encoding="utf-8")
    known = {option for name in COMMANDS.commands for option in options_of(name)} | {"--version"} | OTHER_OPTIONS
    assert set(re.findall(r"`(--?[a-z][\w-]*)[^`]*`", text)) - known == set()


@pytest.mark.parametrize("page", PAGES)
def test_names_of_files_tests_and_extras(page: str) -> None:
    """Patterns of files match some, tests and extras are there, and a name that is said to be in a file is in it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for pattern in re.findall(r"`((?:kernels|graphs|runtime|tests|configs|docs)/[\w./-]*\*[\w./*-]*)`", text):
        assert list(ROOT.glob(pattern)), f"{page}: {pattern}"
    tests = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("*.py")))
    for name in re.findall(r"`(test_\w+)(?:\.\.\.)?`", text):
        assert f"def {name}" in tests or f"{name}.py" in tests, f"{page}: {name}"
    optional = PROJECT.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = re.findall(r"^(\w+) = \[", optional, re.MULTILINE)
    named = [name for group in re.findall(r"\.\[([\w,]+)\]", text) for name in group.split(",")]
    assert set(named) | set(re.findall(r"extra `(\w+)`", text)) <= set(extras), page
    for name, file in re.findall(r"`(\w+)`(?: in|\n?\s*\() ?`([\w/]+\.py)`", text):
        assert re.search(rf"\b{name}\b", (ROOT / file).read_text(encoding="utf-8")), f"{page}: {name} in {file}"


def test_every_dependency_is_explained_with_its_range() -> None:
    needed = PROJECT.partition("\ndependencies = [\n")[2].partition("\n]")[0]
    ranges = dict(re.findall(r"^ +\"([\w-]+)([^;\"]+)", needed, re.MULTILINE))
    rows = re.findall(r"^\| ([\w-]+) \| ([<>=]\S+) \|", (ROOT / "docs/dependencies.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(rows) == ranges


def test_figures_of_the_readme_say_where_they_are_from() -> None:
    """GPU, driver and date in front, the command of each table in it or behind it, and the page with all of them."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## How fast\n")[2].partition("\n## ")[0]
    head = section.strip().split("\n\n")[0]
    assert re.search(r"NVIDIA \w+, driver [\d.]+, \d{4}-\d\d-\d\d", head)
    (page,) = re.findall(r"\]\((docs/records/[\d-]+\.md)\)", head)
    assert (ROOT / page).read_text(encoding="utf-8").startswith("# ")
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert tables
    assert len(re.findall(r"`draftgraph (?:bench|compare) ", section)) >= len(tables)
