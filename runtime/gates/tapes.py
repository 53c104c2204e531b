"""The tapes of a run: their memory, what their kernels mean, and how they are read, once, when the run is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphs.tape import Tape, Tapes
from kernels.tape import NO_ID, TAPE_FIELDS
from runtime.device import Device
from runtime.errors import DraftgraphError


@dataclass(frozen=True)
class TapeRow:
    """Ids of one batch row in one step; `position` is that of the first."""

    slot: int
    position: int
    ids: tuple[int, ...]


def allocate_tapes(device: Device, *, steps: int, num_slots: int, num_ids: int) -> Tapes:
    """Tapes for a run of at most `steps` steps of `num_slots` rows of `num_ids` = 1 + k ids."""

    def tape(name: str) -> Tape:
        records = device.array(f"tape_{name}", (steps, num_slots, TAPE_FIELDS + num_ids), np.int32)
        cursor = device.array(f"tape_{name}_cursor", (1,), np.int32)
        device.upload(cursor, np.zeros(1, np.int32))
        return Tape(records, cursor)

    return Tapes(tape("drafted"), tape("fed"), tape("compared"))


def read_tape(device: Device, tape: Tape) -> list[list[TapeRow]]:
    """Every record, oldest first, each with the rows that were live. Waits for the device.

    Raises:
        DraftgraphError: the run was longer than the tape.
    """
    capacity, count = tape.records.shape[0], int(device.download(tape.cursor)[0])
    if count > capacity:
        raise DraftgraphError(f"{tape.records.name}: {count} records on a tape of {capacity}; allocate it for the whole run")
    records = device.download(tape.records)[:count].tolist()
    return [
        [TapeRow(row[0], row[1], tuple(row[TAPE_FIELDS : TAPE_FIELDS + row[2]])) for row in record if row[0] >= 0]
        for record in records
    ]


def rows_record(
    width: int,
    num_rows: int,
    ids: Sequence[int],
    logits_indices: Sequence[int],
    positions: Sequence[int],
    cu_num_logits: Sequence[int],
    slots: Sequence[int],
) -> list[list[int]]:
    """Meaning of kernels.tape.tape_rows: one record of `num_rows` rows of `width` columns; `slots` has the live rows."""
    record = []
    for row, slot in enumerate(slots):
        places = list(logits_indices[cu_num_logits[row] : cu_num_logits[row + 1]])[: width - TAPE_FIELDS]
        position = positions[places[0]] if places else -1
        record.append(_padded([slot, position, len(places), *(ids[place] for place in places)], width))
    return record + [_padded([-1, -1, 0], width)] * (num_rows - len(slots))


def drafts_record(
    width: int, num_rows: int, drafts: Sequence[Sequence[int]], total_len: Sequence[int], slots: Sequence[int]
) -> list[list[int]]:
    """Meaning of kernels.tape.tape_drafts."""
    record = [_padded([slot, total_len[slot], len(drafts[slot]), *drafts[slot]], width) for slot in slots]
    return record + [_padded([-1, -1, 0], width)] * (num_rows - len(slots))


def _padded(values: list[int], width: int) -> list[int]:
    return values + [NO_ID] * (width - len(values))
