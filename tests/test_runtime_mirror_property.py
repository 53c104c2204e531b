"""Any sequence of calls: what a mirrored buffer yields is the newest value ever written, or an error."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.landing import PendingRead
from runtime.mirror_errors import StagingBusyError, StaleReadError, TwoWritersError
from runtime.mirror_table import MirrorTable
from runtime.truth import Truth
from tests.mirror_steps import POLICIES, open_virtual, policy_of

ACTIONS = [
    "write_host",
    "read_host",
    "upload",
    "poll",
    "device_write",
    "device_read",
    "download",
    "take",
    "take_last",
    "synchronize",
]


@given(
    policy=st.sampled_from(POLICIES),
    schedule=st.sampled_from([("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]),
    poison=st.booleans(),
    actions=st.lists(st.sampled_from(ACTIONS), max_size=40),
)
@example("integrated", ("eager", 0), False, ["upload", "download", "write_host", "take"])
@example("integrated", ("lazy", 0), False, ["device_write", "download", "download", "take_last", "device_write"])
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_read_is_the_newest_value_or_refused(policy: str, schedule: tuple[str, int], poison: bool, actions: list[str]) -> None:
    with open_virtual(*schedule) as device:
        compute = device.stream("compute")
        table = MirrorTable(device, policy_of(policy), compute, steps_in_flight=2, poison=poison)
        buffer = table.create("input_token_ids", (2,), Truth.EITHER)
        copied = device.array("copied", (2,), "int32")  # what a kernel saw
        newest, writes = 0, 0
        on_device: int | None = None  # the value that work queued now would see
        pending: list[tuple[PendingRead, int]] = []
        for action in actions:
            try:
                if action == "write_host":
                    buffer.write_host(writes + 1)
                    writes += 1
                    newest = writes
                elif action == "read_host":
                    assert buffer.read_host().tolist() == [newest] * 2
                elif action == "upload":
                    buffer.upload(compute)
                    on_device = newest
                elif action == "poll":
                    assert buffer.poll() == buffer.state
                elif action == "device_write":
                    with table.eager("verify", writes=["input_token_ids"]):
                        compute.fill(buffer.device_array, writes + 1)
                    writes += 1
                    newest = on_device = writes
                elif action == "device_read":
                    with table.eager("reader", reads=["input_token_ids"]):
                        compute.copy(copied, buffer.device_array)
                    assert on_device == newest
                    assert device.counters.transfers == 0
                elif action == "download":
                    pending.append((buffer.download(compute), newest))
                elif action in ("take", "take_last") and pending:
                    read, value = pending.pop(0 if action == "take" else -1)
                    assert read.take().tolist() == [value] * 2
                elif action == "synchronize":
                    device.synchronize()
            except (StaleReadError, TwoWritersError):
                # Refused only where the two copies differ, or none exists.
                assert buffer.host_version != buffer.device_version or buffer.device_version == 0
            except StagingBusyError:
                assert schedule[0] != "eager" or pending
        for read, value in pending:
            assert read.take().tolist() == [value] * 2
        if buffer.host_version == buffer.device_version:
            assert buffer.read_host().tolist() == device.download(buffer.device_array).tolist() == [newest] * 2  # type: ignore[arg-type]
        assert device.races == []
