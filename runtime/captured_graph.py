"""What graphs of every device share: what they refuse to be launched on, and their picture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from runtime.errors import DeviceError
from runtime.race_detector import UseAfterFree


class DrawnNode(Protocol):
    """One piece of work of a graph."""

    @property
    def index(self) -> int: ...

    @property
    def dependencies(self) -> tuple[int, ...]: ...

    @property
    def label(self) -> str:
        """What it does."""

    @property
    def stream(self) -> str | None:
        """Where it was recorded."""


def refuse_other_device(graph: str, device: object, stream: Any) -> None:
    """DeviceError: the stream to launch on is of another device than the graph."""
    if stream.device is not device:
        raise DeviceError(f"graph `{graph}` was captured on another device than stream `{stream.name}`")


def refuse_freed(graph: str, allocations: Iterable[Any]) -> None:
    """UseAfterFree: the graph has the address of an array that was freed since."""
    for allocation in allocations:
        if allocation.freed:
            raise UseAfterFree(
                f"graph `{graph}` uses `{allocation.name}`, which was freed after the capture; capture the graph again, "
                "or keep the array for as long as the graph"
            )


def dot(graph: str, nodes: Iterable[DrawnNode]) -> str:
    """The graph in Graphviz's language."""
    lines = [f'digraph "{graph}" {{']
    for node in nodes:
        lines.append(f'  n{node.index} [label="{node.label}\\n{node.stream}"];')
        lines.extend(f"  n{dependency} -> n{node.index};" for dependency in node.dependencies)
    return "\n".join([*lines, "}"])
