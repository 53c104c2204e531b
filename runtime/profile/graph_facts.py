"""What is known of a graph before it runs: the family of each operation in it, and the bytes that a replay has to read."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from graphs.key import Family
from graphs.launch import Array
from graphs.library import GraphLibrary
from graphs.trace import Node
from runtime.profile.families import ATTENTION, COPIES, DRAFTER, PRODUCTS, family_of_module


def families_of(library: GraphLibrary) -> dict[str, str]:
    """Operation -> family of everything that some graph launches. A matrix product of the device's library is `matmul`."""
    return {node.name: _family(node) for trace in library.traces.values() for node in trace.nodes}


def bytes_read(library: GraphLibrary, context_bytes: int) -> dict[str, dict[str, int]]:
    """By key and family, what one replay has to read: of products the weights, each once; of attention in a decode or verify step
    the keys and values of the requests so far. Tables of which an operation reads a few rows, such as an embedding, are left out.

    Args:
        context_bytes: of the keys and values of all requests, in the middle of the window.
    """
    found: dict[str, dict[str, int]] = {}
    for key, trace in library.traces.items():
        totals: defaultdict[str, int] = defaultdict(int)
        for node in trace.nodes:
            family = _family(node)
            if family in (PRODUCTS, DRAFTER):
                weights = {array.name: array.nbytes for array in node.args if _is_constant(array)}
                totals[family] += sum(weights.values())
        if key.family in (Family.DECODE, Family.VERIFY):
            totals[ATTENTION] = context_bytes
        found[str(key)] = {family: nbytes for family, nbytes in totals.items() if nbytes}
    return found


def _family(node: Node) -> str:
    if node.kernel is not None:
        return family_of_module(node.kernel.py_func.__module__)
    return PRODUCTS if node.name == "matmul" else COPIES


def _is_constant(array: Any) -> bool:
    return isinstance(array, Array) and getattr(getattr(array, "allocation", None), "kind", None) == "constant"
