"""A virtual device whose kernels run as the Python that they are."""

from __future__ import annotations

from runtime.virtual_device import VirtualDevice
from tests.fuzz_interpreter import PythonExecutor


def make(**options) -> VirtualDevice:
    return VirtualDevice(PythonExecutor(), **options)
