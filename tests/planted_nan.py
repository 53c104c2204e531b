"""A token that makes NaN of every row that sees it: its embedding is NaN on the device. Of a request in whose text it stands every
later row of logits is all NaN, as is the row that would choose what follows it; no other request can tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def plant_nan(patch: pytest.MonkeyPatch, device: Any, token: int, name: str = "embed") -> Any:
    """`device`, whose constant `name` becomes NaN in row `token`. A file with NaN is refused, so this is done behind it."""
    upload = device.constant

    def constant(called: str, values: Any) -> Any:
        if called == name:
            values = values.copy()
            values[token] = 0x7FC0 if values.dtype == np.uint16 else np.nan
        return upload(called, values)

    patch.setattr(device, "constant", constant)
    return device
