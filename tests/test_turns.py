"""Threads in turns: what they see at a meeting, in which order they come, and how a run ends that cannot go on."""

from __future__ import annotations

import threading

import pytest

from tests.turns import Meeting, Turns


def test_all_see_what_all_offer_again_and_again() -> None:
    turns, seen = Turns(), []
    meeting = Meeting(turns, 4)

    def body(thread: int) -> None:
        for turn in range(3):
            seen.append(meeting.wait(10 * turn + thread, sum))

    turns.run(body, 4)
    assert seen == [6] * 4 + [46] * 4 + [86] * 4


def test_the_order_turns_round_at_each_meeting() -> None:
    turns, order = Turns(), []
    meeting = Meeting(turns, 3)

    def body(thread: int) -> None:
        for _ in range(3):
            order.append(thread)
            meeting.wait()

    turns.run(body, 3)
    assert order == [0, 1, 2, 2, 1, 0, 0, 1, 2]


def test_meetings_of_some_go_on_beside_those_of_others() -> None:
    turns = Turns()
    pairs, everyone = [Meeting(turns, 2) for _ in range(2)], Meeting(turns, 4)

    def body(thread: int) -> None:
        turns.local.sum = pairs[thread // 2].wait(thread, sum)
        assert everyone.wait(turns.local.sum) == [1, 1, 5, 5]

    turns.run(body, 4)


@pytest.mark.parametrize("failing", [0, 2])
def test_a_thread_that_fails_ends_them_all(failing: int) -> None:
    turns, before = Turns(), threading.active_count()
    meeting = Meeting(turns, 3)

    def body(thread: int) -> None:
        if thread == failing:
            raise ValueError(f"thread {thread}")
        meeting.wait()

    with pytest.raises(ValueError, match=f"thread {failing}"):
        turns.run(body, 3)
    assert threading.active_count() == before


def test_threads_that_wait_for_nobody_are_a_fault() -> None:
    turns, before = Turns(), threading.active_count()
    meeting, waiting = Meeting(turns, 3), []

    def body(thread: int) -> None:
        if thread == 0:
            turns.park_with(waiting)
        elif thread == 1:
            meeting.wait()

    with pytest.raises(RuntimeError, match="2 threads wait and nobody is left to come"):
        turns.run(body, 3)
    assert threading.active_count() == before
