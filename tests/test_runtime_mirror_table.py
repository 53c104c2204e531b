"""MirrorTable: names, packs, graphs that move tags, and whole steps under every schedule and policy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from runtime.mirror_errors import MirrorError, MovedBufferError, PinnedBufferError, StaleReadError, TwoWritersError
from runtime.race_detector import UseAfterFree
from runtime.truth import Truth
from tests.mirror_steps import POLICIES, SCHEDULES, Graph, Steps, expected, open_virtual, rows_of_outcomes


@pytest.fixture(params=POLICIES)
def steps(request: pytest.FixtureRequest) -> Iterator[Steps]:
    with open_virtual("lazy") as device:
        yield Steps(device, request.param)
        assert device.races == []


def graph(key: str, reads: set[str], writes: set[str]) -> Graph:
    return Graph(key, frozenset(reads), frozenset(writes), None)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize(("steps_in_flight", "ahead"), [(2, 0), (2, 1), (3, 2)])
def test_steps_in_flight(policy: str, schedule: str, seed: int, steps_in_flight: int, ahead: int) -> None:
    """ahead = 0 is the synchronous arm: the same calls, each step collected before the next is staged."""
    with open_virtual(schedule, seed) as device:
        steps = Steps(device, policy, steps_in_flight=steps_in_flight, ahead=ahead)
        before = device.counters.copy()
        assert rows_of_outcomes(list(steps.run(13))) == expected(13)
        used = device.counters.since(before)
        assert (used.stream_synchronizes, used.device_synchronizes, used.transfers) == (0, 0, 0)
        assert used.event_synchronizes == 13  # one a step, in collect()
        assert device.races == []


def test_a_step_moves_the_tags(steps: Steps) -> None:
    table = steps.table
    assert table["total"].state == "device newer"  # the first fill
    list(steps.run(4))  # the last step has a row for every slot
    assert (table["total"].device_version, table["draft_tokens"].device_version) == (5, 5)
    assert table["block_tables"].host_version == table["block_tables"].device_version
    with pytest.raises(StaleReadError, match=r"total on the host: host version 0, device version 5.*verify\[R=4\]"):
        table["total"].read_host()
    with pytest.raises(StaleReadError, match=r"draft_tokens.*propose\[R=4\]"):
        table["draft_tokens"].read_host()
    assert table["draft_tokens"].download(steps.compute).take().tolist() == [
        total + 1 for total in table["total"].download(steps.compute).take()
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_moves_the_tags_of_what_nothing_poisons(policy: str) -> None:
    with open_virtual("eager") as device:
        steps = Steps(device, policy, poison=False)
        list(steps.run(4))
        assert (steps.table["total"].device_version, steps.table["draft_tokens"].device_version) == (5, 5)
        with pytest.raises(StaleReadError, match=r"total on the host: host version 0, device version 5.*verify\[R=4\]"):
            steps.table["total"].read_host()


def test_what_an_adopted_graph_writes_is_poisoned_from_the_start_or_not_at_all() -> None:
    """A launch knows since then whose tags it only counts."""
    with open_virtual("eager") as device:
        table = Steps(device, "discrete", poison=False).table
        with pytest.raises(PinnedBufferError, match=r"total cannot be poisoned now: verify\[R=4\] writes it"):
            table.poison_when_overtaken("total")
        assert not table["total"].poison


def test_a_graph_that_reads_a_newer_host_copy_is_not_launched(steps: Steps) -> None:
    list(steps.run(1))
    steps.pack["amounts"].write_host(5)
    with pytest.raises(StaleReadError, match=r"amounts on the device by verify\[R=4\].*write_host.*upload\(stream\)"):
        steps.launch(steps.verify)
    assert steps.table["total"].device_version == 2


def test_an_upload_on_another_stream_stops_a_launch_however_often_it_passed(steps: Steps) -> None:
    list(steps.run(1))
    steps.device.synchronize()
    steps.pack.upload(1, steps.device.stream("other"))
    with pytest.raises(StaleReadError, match=r"on stream compute.*call order_after_upload\(compute\)"):
        steps.launch(steps.verify)


def test_diffs_that_were_not_staged_stop_the_launch(steps: Steps) -> None:
    list(steps.run(1))
    steps.table["block_tables"].write_host(9, (0, 0))
    with pytest.raises(StaleReadError, match=r"block_tables.*stage the diffs that the launch applies"):
        steps.launch(steps.verify)


def test_staged_diffs_do_not_help_a_graph_that_does_not_apply_them(steps: Steps) -> None:
    reader = graph("attend[R=4]", {"block_tables"}, {"total"})
    steps.table.adopt(reader)
    steps.table["block_tables"].write_host(9, (0, 0))
    steps.table["block_tables"].take_diffs(4)
    with pytest.raises(StaleReadError, match=r"block_tables on the device by attend\[R=4\]"):
        steps.table.before_launch(reader)


def test_a_graph_cannot_write_a_pack(steps: Steps) -> None:
    with pytest.raises(TwoWritersError, match=r"verify\[R=8\] writes inputs: only the host writes a pack"):
        steps.table.adopt(graph("verify[R=8]", set(), {"inputs"}))


def test_names_that_are_not_the_tables_are_reported(steps: Steps) -> None:
    assert steps.untracked == frozenset()
    assert steps.table.adopt(graph("forward", {"weights", "total"}, {"logits"})) == {"weights", "logits"}


def test_a_graph_that_was_not_adopted_is_not_launched(steps: Steps) -> None:
    with pytest.raises(MovedBufferError, match=r"verify\[R=1\] was not adopted.*adopt\(\) it first"):
        steps.table.before_launch(graph("verify[R=1]", {"total"}, set()))
    with pytest.raises(MovedBufferError, match=r"verify\[R=4\] was not adopted"):  # another graph under a known key
        steps.table.before_launch(graph("verify[R=4]", {"total"}, set()))


def test_pinned_buffers_do_not_move_and_moved_buffers_are_noticed(steps: Steps) -> None:
    table = steps.table
    list(steps.run(1))
    with pytest.raises(PinnedBufferError, match=r"draft_tokens \[4\] cannot be resized to \[8\]: pinned by verify|propose"):
        table.resize("draft_tokens", (8,))
    table.release(steps.propose)
    steps.device.synchronize()
    table.resize("draft_tokens", (8,))
    with pytest.raises(MovedBufferError, match=r"propose\[R=4\].*draft_tokens: planned \[4\] at move 0, got \[8\] at move 1"):
        steps.launch(steps.propose)


def test_fields_move_with_their_pack_only(steps: Steps) -> None:
    field = steps.table["amounts"]
    assert field is steps.pack["amounts"]
    with pytest.raises(MirrorError, match=r"pack inputs does not move alone; call upload\(step, stream\)"):
        field.upload(steps.compute)
    with pytest.raises(MirrorError, match="amounts: a field of a pack cannot be resized alone"):
        steps.table.resize("amounts", (9,))
    list(steps.run(1))
    with pytest.raises(MirrorError, match=r"pack inputs is written by the host alone; read_host\(\)"):
        field.download(steps.compute)


def test_fields_lie_back_to_back_and_one_copy_moves_them(steps: Steps) -> None:
    """All but the rows of the last field that the step does not use: the device keeps what it had there."""
    before, counters = steps.device.counters.copy(), steps.table.counters
    uploads, uploaded = counters.uploads, counters.uploaded_bytes
    steps.device.upload(steps.pack.array, np.full(22, 77, np.int32))
    steps.stage(0)
    used, counters = steps.device.counters.since(before), steps.table.counters
    rows = int(steps.pack["num_block_writes"].read_host()[0])
    assert 0 < rows < 4
    words = 1 + 4 + 4 + 1 + 3 * rows
    assert (used.copies, used.copied_bytes, counters.uploads - uploads) == (1, 4 * words, 1)
    assert counters.uploaded_bytes - uploaded == 4 * words
    packed = steps.device.download(steps.pack.array).tolist()  # type: ignore[arg-type]
    fields = [value for field in steps.pack.fields.values() for value in field.read_host().ravel().tolist()]
    assert packed == fields[:words] + [77] * (22 - words)
    assert {field.device_array.name for field in steps.pack.fields.values()} == {"inputs"}


@pytest.mark.parametrize("rows", [-1, 5])
def test_a_pack_has_no_more_rows_than_it_has(steps: Steps, rows: int) -> None:
    with pytest.raises(MirrorError, match=f"inputs: last_rows = {rows}: block_writes has 4 rows"):
        steps.pack.upload(0, steps.compute, rows)
    steps.pack.upload(0, steps.compute, 4)


def test_a_name_is_taken_once(steps: Steps) -> None:
    for name in ("total", "inputs", "amounts", "outcomes"):
        with pytest.raises(MirrorError, match=f"{name}: the table has it already"):
            steps.table.create(name, (1,), Truth.DEVICE_EXACT)
    with pytest.raises(MirrorError, match=r"no mirrored buffer is named totals; known: .*total"):
        steps.table["totals"]


def test_eager_work_moves_tags_unless_it_fails(steps: Steps) -> None:
    table = steps.table
    version = table["total"].device_version
    with pytest.raises(ZeroDivisionError), table.eager("admit slot 3", writes=["total"]):
        raise ZeroDivisionError
    assert table["total"].device_version == version
    with table.eager("admit slot 3", writes=["total"]):
        steps.compute.fill(table["total"].device_array, 0)
    assert table["total"].tag.device_writer == "admit slot 3"
    with pytest.raises(StaleReadError, match="live on the device by warm-up"), table.eager("warm-up", reads=["inputs"]):
        pass


def test_an_admission_pack_brings_host_exact_fields(steps: Steps) -> None:
    """Several admissions in one step: the pack counts its own uploads, each carries its slot's fields to the device."""
    table = steps.table
    record = table.pack("admission", {"prompt_len": (1,)}, depth=4)
    prefill_len = table.create("prefill_len", (4,), Truth.HOST_EXACT, apart=True)
    prefill_len.upload(steps.compute)
    steps.device.synchronize()
    for count, (slot, length) in enumerate([(2, 7), (0, 5), (2, 9)]):
        record["prompt_len"].write_host(length)
        record.upload(count, steps.compute)
        prefill_len.write_host(length, slot)
        prefill_len.carry()
        with table.eager(f"admit slot {slot}", reads=["admission"], writes=["prefill_len"]):
            steps.compute.copy(prefill_len.device_array[slot : slot + 1], record["prompt_len"].device_array)
    assert prefill_len.host_version == prefill_len.device_version
    steps.device.synchronize()
    assert prefill_len.read_host().tolist() == [5, 0, 9, 0]


def test_describe_is_a_table_of_everything(steps: Steps) -> None:
    list(steps.run(2))
    first, header, *lines, total = steps.table.describe().splitlines()
    assert first == f"mirrors: {steps.table.policy}; 2 steps in flight; poison on"
    assert header.split() == ["buffer", "type", "truth", "state", "host", "device", "graphs", "bytes"]
    named = {line.split()[0]: line for line in lines}
    assert list(named) == ["total", "draft_tokens", "block_tables", "inputs", *steps.pack.fields, "outcomes"]
    assert len({len(line) for line in (header, *lines)}) == 1
    for part in ("int32[4]", "device exact", "device newer", "v0", "v3", " 2 "):
        assert part in named["total"]
    assert "ring of 3" in named["inputs"]
    assert "ring of 2" in named["outcomes"]
    assert f"total {steps.table.nbytes:,} bytes; uploads 3" in total
    assert "stale reads refused 0" in total
    assert str(steps.table) == steps.table.describe()


def test_nbytes_is_what_the_device_and_the_host_hold(steps: Steps) -> None:
    held = steps.device.allocated_bytes()
    twins = sum(4 * size for size in ([22] if steps.table.policy.integrated else [22, 4, 4]))  # NumPy copies of pack, total, drafts
    assert steps.table.nbytes == held["device"] + held["pinned"] + held["mapped"] + twins + 4 * 12  # block_tables


def test_close_waits_before_it_frees_and_is_idempotent(steps: Steps) -> None:
    list(steps.run(3))
    steps.launch(steps.propose)
    steps.table.close()
    assert sum(steps.device.allocated_bytes().values()) == 0
    steps.table.close()


def test_close_without_the_wait_would_free_under_queued_work(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    list(steps.run(3))
    steps.launch(steps.propose)
    with monkeypatch.context() as patch:
        patch.setattr(steps.device, "synchronize", lambda: None)
        with pytest.raises(UseAfterFree):
            steps.table.close()
    steps.device.races.clear()
