"""Where the two copies of a mirrored value live: resolved once from the configuration and the device, and printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from runtime.errors import ConfigError, DeviceError

CHOICES = ("auto", "discrete", "integrated")


class MemoryTraits(Protocol):
    """What the choice depends on.

    integrated: host and device share physical memory (GB10, Jetson class). can_map: kernels can see page-locked host memory.
    """

    name: str
    integrated: bool
    can_map: bool


@dataclass(frozen=True)
class MirrorPolicy:
    """discrete: separate device memory, uploads staged through a pinned ring. integrated: one mapped allocation, no copies."""

    name: str
    reason: str

    def __post_init__(self) -> None:
        if self.name not in CHOICES[1:]:
            raise ConfigError(f"mirror policy = {self.name}: must be one of {', '.join(CHOICES[1:])} (auto: see resolve_policy)")

    @property
    def integrated(self) -> bool:
        return self.name == "integrated"

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def resolve_policy(requested: str, device: MemoryTraits) -> MirrorPolicy:
    """The policy for `mirror.policy = requested` on `device`, with the reason for `draftgraph info`.

    Raises:
        ConfigError: `requested` is none of auto, discrete, integrated.
        DeviceError: integrated was asked for and the device cannot map host memory.
    """
    if requested not in CHOICES:
        raise ConfigError(f"mirror.policy = {requested}: must be one of {', '.join(CHOICES)}")
    if requested == "integrated":
        if not device.can_map:
            raise DeviceError(
                f"mirror.policy = integrated: {device.name} cannot map host memory (can_map = False); use discrete or auto"
            )
        return MirrorPolicy("integrated", "asked for by mirror.policy")
    if requested == "discrete":
        return MirrorPolicy("discrete", "asked for by mirror.policy")
    if device.integrated and device.can_map:
        return MirrorPolicy("integrated", f"auto: {device.name} shares memory with the host")
    if device.integrated:
        return MirrorPolicy("discrete", f"auto: {device.name} shares memory with the host but cannot map it")
    return MirrorPolicy("discrete", f"auto: {device.name} has memory of its own")
