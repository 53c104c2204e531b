"""A recorder run against nothing: the launches it would issue, with what each reads and writes.

Used where the order of work matters and its result does not: the reads and writes that a graph declares to the mirrors, the
signatures that must compile for a GPU, node counts, and a drawing of the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from graphs.launch import Array, Grid, Launcher
from kernels.lang import MAX_THREADS, Kernel


@dataclass(frozen=True)
class Node:
    """One launch, product, copy or fill. `reads` and `writes` name arrays; `args` are as the recorder gave them."""

    name: str
    reads: frozenset[str]
    writes: frozenset[str]
    kernel: Kernel | None = None
    grid: Grid = 1
    block: int = 1
    args: tuple[Any, ...] = ()


@dataclass
class Trace:
    """A Launcher that runs nothing and remembers the order, forks in line. Events and waits are refused: a graph has one stream,
    and what it forks."""

    nodes: list[Node] = field(default_factory=list)

    @classmethod
    def of(cls, recorder: Callable[[Launcher], None]) -> Trace:
        trace = cls()
        recorder(trace)
        return trace

    @property
    def reads(self) -> frozenset[str]:
        """Arrays that some node reads, whether or not an earlier node of the same graph wrote them."""
        return frozenset().union(*(node.reads for node in self.nodes))

    @property
    def writes(self) -> frozenset[str]:
        return frozenset().union(*(node.writes for node in self.nodes))

    def launch(self, kernel: Kernel, grid: Grid, block: int, *args: Array | int | float) -> None:
        check_launch(kernel, block, args)
        arrays = {name: arg.name for name, arg in zip(kernel.params, args, strict=True) if isinstance(arg, Array)}
        writes = frozenset(array for name, array in arrays.items() if name in kernel.writes)
        reads = frozenset(array for name, array in arrays.items() if name not in kernel.writes)
        self.nodes.append(Node(kernel.name, reads, writes, kernel, grid, block, args))

    def matmul(self, out: Array, x: Array, weight: Array, rows: Array) -> None:
        reads = frozenset((x.name, weight.name, rows.name))
        self.nodes.append(Node("matmul", reads, frozenset((out.name,)), args=(out, x, weight, rows)))

    def copy(self, dst: Array, src: Array) -> None:
        self.nodes.append(Node("copy", frozenset((src.name,)), frozenset((dst.name,)), args=(dst, src)))

    def fill(self, dst: Array, value: int | float) -> None:
        self.nodes.append(Node("fill", frozenset(), frozenset((dst.name,)), args=(dst, value)))

    def record(self, event: Any) -> None:
        raise TypeError("a recorder must not record events: one graph is one stream, and the caller orders graphs")

    def wait(self, event: Any) -> None:
        raise TypeError("a recorder must not wait for events: one graph is one stream, and the caller orders graphs")

    def fork(self) -> Trace:
        return self

    def join(self, beside: Launcher) -> None:
        """Its nodes stand where they were recorded."""

    def dot(self, title: str) -> str:
        """The order of nodes as Graphviz text, with an edge wherever a node reads or overwrites what another last wrote."""
        lines = [f'digraph "{title}" {{', "  node [shape=box, fontname=monospace];"]
        last_writer: dict[str, int] = {}
        for index, node in enumerate(self.nodes):
            lines.append(f'  n{index} [label="{index} {node.name}\\n-> {", ".join(sorted(node.writes))}"];')
            touched = node.reads | node.writes
            for source in sorted({last_writer[name] for name in touched if name in last_writer}):
                lines.append(f"  n{source} -> n{index};")
            last_writer.update(dict.fromkeys(node.writes, index))
        return "\n".join([*lines, "}"]) + "\n"


def check_launch(kernel: Kernel, block: int, args: tuple[Any, ...]) -> None:
    """Refuse what every executor would get wrong: a block beyond the shared scratch, or arguments that do not fit the kernel.

    Raises:
        TypeError: the number of arguments differs from the kernel's parameters.
        ValueError: `block` is outside 1..MAX_THREADS.
    """
    if len(args) != len(kernel.params):
        raise TypeError(f"{kernel.name}: got {len(args)} arguments, its {len(kernel.params)} parameters are {kernel.params}")
    if not 1 <= block <= MAX_THREADS:
        raise ValueError(f"{kernel.name}: block = {block}, limit 1..{MAX_THREADS} (the length of the shared scratch)")
