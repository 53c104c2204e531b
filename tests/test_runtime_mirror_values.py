"""Integers that know whether they are exact, and the resolution of mirror.policy."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import pytest

from runtime.errors import ConfigError, DeviceError, DraftgraphError
from runtime.mirror_errors import MirrorError, StaleValueError
from runtime.mirror_policy import resolve_policy
from runtime.truth import HostExact, HostUpperBound, require_exact
from tests.mirror_steps import open_virtual


def test_exact_and_exact_is_exact() -> None:
    assert HostExact(3) + HostExact(4) == HostExact(7)
    assert HostExact(3) + 1 == 1 + HostExact(3) == HostExact(4)
    assert HostExact(3) - 1 == HostExact(2)


def test_a_bound_makes_every_sum_a_bound() -> None:
    bound = HostUpperBound(3)
    for total in (bound + HostExact(4), HostExact(4) + bound, bound + 4, 4 + bound, bound + HostUpperBound(4)):
        assert total == HostUpperBound(7)
    assert HostUpperBound(7) - HostExact(4) == HostUpperBound(7) - 4 == HostUpperBound(3)
    assert HostUpperBound(7).at_most(5) == HostUpperBound(5)
    assert HostUpperBound(7).at_most(HostExact(9)) == HostUpperBound(7)


@pytest.mark.parametrize("left", [HostExact(9), HostUpperBound(9), 9])
def test_nothing_is_subtracted_by_a_bound(left: HostExact | HostUpperBound | int) -> None:
    with pytest.raises(StaleValueError, match=r"- HostUpperBound\(limit=2\): the difference is no upper bound"):
        left - HostUpperBound(2)


def test_only_exact_values_are_indices() -> None:
    assert [10, 20, 30][HostExact(1)] == 20
    assert list(range(HostExact(2))) == [0, 1]
    with pytest.raises(TypeError):
        operator.index(HostUpperBound(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        [10, 20, 30][HostUpperBound(1)]  # type: ignore[call-overload]


def test_require_exact_names_the_value_and_the_remedy() -> None:
    assert require_exact(HostExact(3), "slot") == require_exact(3, "slot") == 3
    with pytest.raises(StaleValueError, match=r"seq_len = HostUpperBound\(limit=12\).*collect the step's outcome") as caught:
        require_exact(HostUpperBound(12), "seq_len")
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, MirrorError)
    assert isinstance(caught.value, DraftgraphError)


@dataclass
class Card:
    name: str = "GB10"
    integrated: bool = True
    can_map: bool = True


@pytest.mark.parametrize(
    ("requested", "integrated", "can_map", "resolved", "reason"),
    [
        ("auto", True, True, "integrated", "auto: GB10 shares memory with the host"),
        ("auto", True, False, "discrete", "auto: GB10 shares memory with the host but cannot map it"),
        ("auto", False, True, "discrete", "auto: GB10 has memory of its own"),
        ("discrete", True, True, "discrete", "asked for by mirror.policy"),
        ("integrated", False, True, "integrated", "asked for by mirror.policy"),
    ],
)
def test_policy_and_reason(requested: str, integrated: bool, can_map: bool, resolved: str, reason: str) -> None:
    policy = resolve_policy(requested, Card(integrated=integrated, can_map=can_map))
    assert (policy.name, policy.reason, policy.integrated) == (resolved, reason, resolved == "integrated")
    assert str(policy) == f"{resolved} ({reason})"


def test_integrated_on_a_card_that_cannot_map_is_an_error() -> None:
    with pytest.raises(DeviceError, match=r"mirror.policy = integrated: GB10 cannot map.*can_map = False.*discrete or auto"):
        resolve_policy("integrated", Card(can_map=False))


def test_unknown_policy_names_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"mirror\.policy = unified: must be one of auto, discrete, integrated"):
        resolve_policy("unified", Card())


def test_the_virtual_device_answers_for_itself() -> None:
    with open_virtual(integrated=True) as device:
        assert resolve_policy("auto", device).name == "integrated"
    with open_virtual(integrated=True, can_map=False) as device:
        assert resolve_policy("auto", device).name == "discrete"
