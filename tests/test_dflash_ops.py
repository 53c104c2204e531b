"""Which sets of operations record the layers of a drafter: the target's own where they are of the same sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graphs.fused_ops import FusedOps
from graphs.ops import HeadOps, OpTable
from graphs.plain_ops import PlainOps
from graphs.tile_layouts import Layout
from runtime.checkpoint.random import RandomCheckpoint
from runtime.models.upload import decoder_shape
from runtime.speculators.dflash_ops import TargetOps, build_draft_ops
from runtime.speculators.dflash_upload import allocate_draft_scratch
from runtime.speculators.random_drafter import RandomDrafter
from runtime.step_buffers import StepSizes
from runtime.virtual_device import VirtualDevice
from tests.tiny_engine import EXECUTOR


def layers_of(source: str, **changes: int) -> Any:
    """The table of a drafter of a tiny target, whose own table knows one row count, with a layout and with the library."""
    target, device = RandomCheckpoint("random:tiny").spec, VirtualDevice(EXECUTOR)
    spec, sizes = RandomDrafter(source, target).spec, StepSizes(2, 3, 64, 40, 4, 1)
    nothing: Any = None
    fused = FusedOps(nothing, nothing, layouts={"down": Layout(1, 1, 4, 7), "qkv": None})
    table = OpTable(PlainOps(nothing), ((2, PlainOps(nothing)), (8, HeadOps(fused, PlainOps(nothing)))))
    shape = replace(decoder_shape(target), **changes)
    scratch = allocate_draft_scratch(device, spec, sizes)
    given = TargetOps(shape, table)
    return build_draft_ops(device, spec, sizes, scratch, "float32", on_gpu=False, choice="fused", target=given).layers


def test_layers_of_the_targets_sizes_take_its_choices() -> None:
    """A row count's set and the forms of its products; activations are the drafter's own."""
    table = layers_of("random:dflash").table
    assert [(rows, type(ops)) for rows, ops in table.few] == [(2, PlainOps), (8, FusedOps)]
    assert isinstance(table.many, PlainOps)
    assert table.few[1][1].layouts == {"down": Layout(1, 1, 4, 7), "qkv": None}
    assert table.few[1][1].scratch.squares.name == "draft.squares"


def test_layers_of_other_sizes_take_the_usual_forms() -> None:
    table = layers_of("random:dflash", intermediate_size=24).table
    assert [(rows, type(ops)) for rows, ops in table.few] == [(8, FusedOps)]
    assert table.few[0][1].layouts == {}


def test_layers_with_convolutions_are_recorded_part_by_part() -> None:
    assert layers_of("random:dflash2") is None
