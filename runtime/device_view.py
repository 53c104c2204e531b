"""What arrays of every device refuse: a host that looks inside, and views that would be copies."""

from __future__ import annotations

from typing import Any, NoReturn

from runtime.errors import DeviceError


class DeviceView:
    """Base of the arrays of a device."""

    __slots__ = ()

    allocation: Any

    @property
    def name(self) -> str:
        return str(self.allocation.name)

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError(
            f"the host reads {self.allocation.kind} memory `{self.name}` implicitly; copy it to page-locked memory and wait "
            "for the event, or call device.download() in a test"
        )

    def __iter__(self) -> NoReturn:
        raise TypeError(f"the host iterates over {self.allocation.kind} memory `{self.name}`")

    def _slices(self, index: Any) -> tuple[slice, ...]:
        """The index of a view, one slice an axis. DeviceError: an element, or a step."""
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if not isinstance(part, slice):
                raise DeviceError(f"{self.name}[{index!r}]: views are cut by slices; an index would read the element on the host")
            if part.step not in (None, 1):
                raise DeviceError(f"{self.name}[{index!r}]: step = {part.step}, only steps of 1 make a view")
        return parts
