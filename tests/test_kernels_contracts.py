"""What every kernel promises in writing, checked against its source: what it stores to, what it uses, what its docstring names."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import kernels
from graphs.cpu_executor import CpuExecutor
from kernels.lang import Kernel, block_sum, cuda, source_of

FOLDER = Path(kernels.__path__[0])
ORACLES = sorted(path.stem for path in FOLDER.glob("oracle*.py"))
LANGUAGE = sorted(path.stem for path in FOLDER.glob("lang*.py"))
FOR_GPU = sorted(path.stem for path in FOLDER.glob("*_gpu.py"))
"""GPU forms of primitives (kernels/lang_warp.py): no kernels, and nothing that the simulator could run."""
SOURCES = sorted(
    path.stem for path in FOLDER.glob("*.py") if path.stem not in {"__init__", "source_stamps", *LANGUAGE, *FOR_GPU, *ORACLES}
)
"""What kernels are written in. source_stamps.py looks at the files of the package before any of them is imported."""


def kernels_of(module: ModuleType) -> Iterator[Kernel]:
    """The kernels that are defined in `module` (not those that it imports)."""
    for member in vars(module).values():
        if isinstance(member, Kernel) and member.py_func.__module__ == module.__name__:
            yield member


KERNELS = [kernel for stem in SOURCES for kernel in kernels_of(importlib.import_module(f"kernels.{stem}"))]


def definition(function: FunctionType) -> ast.FunctionDef:
    tree = ast.parse(inspect.getsource(function)).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def root(node: ast.expr) -> str | None:
    """The name behind a chain of subscripts: `out` of out[a][b]."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def targets(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to, tuples taken apart."""
    found: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        found = list(node.targets)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For)):
        found = [node.target]
    flat: list[ast.expr] = []
    while found:
        target = found.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            found.extend(target.elts)
        else:
            flat.append(target)
    return flat


def stores(function: FunctionType) -> set[str]:
    """The parameters that `function` stores to: by subscript, by cuda.atomic, through an alias, or in a device function."""
    tree = definition(function)
    params = [arg.arg for arg in tree.args.args]
    alias = {name: name for name in params}
    stored: set[str] = set()

    def store(node: ast.expr) -> None:
        name = root(node)
        if name in alias:
            stored.add(alias[name])

    # Breadth first is not source order, so aliases come first: `row = out[i]` makes row[j] = 1 a store to out.
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Subscript, ast.Name)) and root(node.value) in params:
            alias.update({target.id: str(root(node.value)) for target in targets(node) if isinstance(target, ast.Name)})
    for node in ast.walk(tree):
        for target in targets(node):
            if isinstance(target, ast.Subscript):
                store(target)
        if isinstance(node, ast.Call):
            if ast.unparse(node.func).startswith("cuda.atomic."):
                store(node.args[0])
            if ast.unparse(node.func) == "write_eight":
                store(node.args[0])
            callee = source_of(function.__globals__.get(node.func.id)) if isinstance(node.func, ast.Name) else None
            if callee is not None:
                stored_there = stores(callee)
                for name, argument in zip(inspect.signature(callee).parameters, node.args, strict=False):
                    if name in stored_there:
                        store(argument)
                for keyword in node.keywords:
                    if keyword.arg in stored_there:
                        store(keyword.value)
    return stored


def named(function: Any) -> str:
    return str(function.name)


@pytest.mark.parametrize("kernel", KERNELS, ids=named)
def test_declared_writes_are_the_stores_of_the_source(kernel: Kernel) -> None:
    assert stores(kernel.py_func) == kernel.writes


@pytest.mark.parametrize("kernel", KERNELS, ids=named)
def test_docstring_states_the_contract(kernel: Kernel) -> None:
    text = inspect.getdoc(kernel.py_func) or ""
    assert re.search(r"Launch|Threads", text), "how to launch it, and why"
    oracle = re.search(r"Oracle:\s+((?:\w+\.)*\w+)\.(\w+)", text)
    if oracle:
        module = oracle[1] if "." in oracle[1] else f"kernels.{oracle[1]}"
        assert callable(getattr(importlib.import_module(module), oracle[2]))


@pytest.mark.parametrize("stem", [*SOURCES, *FOR_GPU])
def test_kernel_modules_import_lang_math_and_each_other(stem: str) -> None:
    """The language imports Numba, none of them NumPy: np.* in a kernel computes in double, or not at all."""
    tree = ast.parse((FOLDER / f"{stem}.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    kernel_modules = (f"kernels.{other}" for other in (*LANGUAGE, *SOURCES, *FOR_GPU))
    allowed = {"__future__", "collections.abc", "math", "typing", *kernel_modules}
    assert imported <= allowed


def test_only_lang_imports_numba() -> None:
    for path in FOLDER.glob("*.py"):
        assert path.stem in LANGUAGE or not re.search(r"^\s*(import|from) numba\b", path.read_text(), re.MULTILINE), path


@pytest.mark.parametrize("stem", [*LANGUAGE, *SOURCES, *FOR_GPU])
def test_kernels_use_only_the_part_of_cuda_that_every_executor_has(stem: str) -> None:
    """What the CPU has no stand-in for (shuffles, ballots, syncwarp, libdevice) is missing or wrong in the simulator as well."""
    stand_in = CpuExecutor(cache=False)._cuda
    tree = ast.parse((FOLDER / f"{stem}.py").read_text())
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and root_name(node) == "cuda"}
    for chain in used - ({"cuda.jit"} if stem == "lang" else set()):
        member: Any = stand_in
        for name in chain.split(".")[1:]:
            assert hasattr(member, name), f"{chain} has no stand-in in graphs/cpu_executor.py"
            member = getattr(member, name)


def root_name(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


@pytest.mark.parametrize("stem", [*LANGUAGE, *SOURCES, *FOR_GPU])
def test_one_shared_array_a_line(stem: str) -> None:
    """The simulator tells shared arrays apart by their line: two on one line would be the same memory."""
    for number, line in enumerate((FOLDER / f"{stem}.py").read_text().splitlines(), 1):
        assert len(re.findall(r"=\s*cuda\.(?:shared|local)\.array\(", line)) <= 1, f"kernels/{stem}.py:{number}"


def test_the_checks_see_every_kernel() -> None:
    """Every @kernel of the folder is among KERNELS, and names are unique (signatures and traces go by name)."""
    declared = sum(len(re.findall(r"^@kernel\(", (FOLDER / f"{stem}.py").read_text(), re.MULTILINE)) for stem in SOURCES)
    assert len(KERNELS) == declared > 0
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)


def _subject(a, b, c, scratch, counter, read):
    a[0], b[1] = read[0], read[1]
    row = c[0]
    row[0] += read[2]
    cuda.atomic.add(counter, 0, 1)
    return block_sum(read[3], scratch)


def test_stores_sees_tuples_aliases_atomics_and_device_functions() -> None:
    assert stores(_subject) == {"a", "b", "c", "scratch", "counter"}
