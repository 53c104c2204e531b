"""What the PTX of a kernel does before `griddepcontrol.wait`, in the order of its text: stores, and which arrays it reads."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernels.lang import Kernel

WAIT, START = "griddepcontrol.wait", "griddepcontrol.launch_dependents"

_INSTRUCTION = re.compile(r"(?:@!?%?p\d*\s+)?([a-z][\w.:]*)\s+(.*);")
_STORES = re.compile(r"(st|red|atom)\.(?!shared|local|param)")
_READS = re.compile(r"ld\.(?!shared|local|param)|cp\.async\..*global")


@dataclass(frozen=True)
class Before:
    """Attributes:
    stores: instructions that store to global memory.
    reads: parameters that are read from; None stands for an address that could not be traced to one.
    starts: the next launch is let go too early.
    waits: there is a wait at all.
    """

    stores: tuple[str, ...]
    reads: frozenset[str | None]
    starts: bool
    waits: bool


def before_wait(kernel: Kernel, ptx: str, signature: str) -> Before:
    """Of the kernel's entry. signature: its words of tests/kernel_signatures.py."""
    body = ptx[re.search(r"\.entry", ptx).start() :]  # type: ignore[union-attr]
    head, wait, _ = body.partition(WAIT)
    pointers, sources = _pointers(kernel, signature), dict[str, frozenset[int]]()
    stores: list[str] = []
    reads: set[str | None] = set()
    for line in head.splitlines():
        found = _INSTRUCTION.match(line.strip())
        if not found:
            continue
        operation, operands = found.groups()
        registers = re.findall(r"%\w+", operands)
        if _STORES.match(operation):
            stores.append(line.strip())
        elif _READS.match(operation):
            address = re.findall(r"\[(%\w+)", operands)[:2][-1]  # a copy's second; behind it there may be its barrier
            arrays = {pointers[number] for number in sources.get(address, frozenset()) if number in pointers}
            reads |= arrays or {None}
            sources[registers[0]] = frozenset()
        elif registers:
            number = re.search(r"_param_(\d+)", operands)
            known = [sources.get(register, frozenset()) for register in registers[1:]]
            sources[registers[0]] = frozenset({int(number[1])}) if number else frozenset().union(*known)
    return Before(tuple(stores), frozenset(reads), START in head, bool(wait))


def _pointers(kernel: Kernel, signature: str) -> dict[int, str]:
    """PTX parameter that holds an array's address -> its name: Numba passes owner, allocation, size, item size, address first."""
    found, number = {}, 0
    for name, word in zip(kernel.params, signature.split(), strict=True):
        if word[1:]:
            found[number + 4] = name
        number += 5 + 2 * int(word[1:]) if word[1:] else 1
    return found
