"""Gate G1: routing and token identity over the regression matrix, and the number of tokens that each row must emit."""

from __future__ import annotations

from collections import Counter

from graphs.key import Family, GraphKey
from kernels.toy import NO_DRAFT
from runtime.gates.case_run import CaseRun, model_of
from runtime.gates.device_model import ExpectedRow
from runtime.gates.recording import RecordedStep
from runtime.gates.toy import sequential_decode
from runtime.gates.toy_engine import DRAFTERS
from runtime.gates.verdict import Ledger

TITLE = "routing and token identity"
AXES = (
    "token identity",
    "emitted counts",
    "first decode drafts",
    "drafts a row",
    "graph family",
    "one proposal a step",
    "the context is up to date",
    "graph size",
    "no synchronisation",
    "steps in flight",
    "overlap",
    "the arms differ",
    "races",
    "nothing leaks",
)
_BEHIND = (Family.PROPOSE, Family.CONTEXT)

MUST_COVER = (
    "preemptions",
    "frames dropped",
    "slots given again",
    "padded rows",
    "rows that skipped a step",
    "drafts accepted",
    "drafts rejected",
    "drafts missing",
    "steps deferred",
    "blocks cut by an end",
    "ended: stop",
    "ended: length",
    "ended: cancelled",
)
"""Paths that a whole matrix must have taken: a gate is not green because nothing happened."""


def check_g1(run: CaseRun, ledger: Ledger) -> None:
    """Check one case; adds what its rows went through to `run.coverage`."""
    _check_tokens(run, ledger)
    _check_steps(run, ledger)
    _check_turns(run, ledger)
    _check_arm(run, ledger)
    ledger.check("races", not run.races, run.case, f"{len(run.races)} races, the first: {next(iter(run.races), '')}")
    ledger.check("nothing leaks", not run.leaks, run.case, f"still held at the end: {run.leaks}")


def _check_tokens(run: CaseRun, ledger: Ledger) -> None:
    """Every request as the sequential oracle has it; a cancelled one as far as it got."""
    longest, memory, eos = run.options.effective_max_model_len, run.options.memory, run.options.eos_token_ids
    for plan, generation, streamed in zip(run.requests, run.generations, run.streamed, strict=True):
        output = generation.output
        assert output is not None
        got, name = list(output.token_ids), generation.request.request_id
        expected, reason = sequential_decode(plan.prompt, plan.params, longest, memory, eos)
        if output.finish_reason == "cancelled":
            expected, reason = expected[: len(got)], "cancelled"
        same = (got, output.finish_reason) == (expected, reason) and streamed == got
        text = f"{name}: {got} ({output.finish_reason}), streamed {streamed}; the oracle: {expected} ({reason})"
        ledger.check("token identity", same, run.case, text)


def _check_steps(run: CaseRun, ledger: Ledger) -> None:
    model = model_of(run)
    decoded: set[int] = set()  # epochs that have had a decode row
    untold = 0  # steps whose rows the drafter has not been told of
    for step in run.steps:
        plan, result = step.plan, step.result
        prefilling = model.prefilling(plan)
        waiting = {name for name, decodes in model.running().items() if decodes} - {row.request_id for row in plan.rows}
        expected = model.run(plan)
        num_drafts = _drafts_of(run, plan.step)
        planned = {row.num_drafts for row in plan.rows if not row.is_prefilling}
        text = f"step {plan.step}: rows of {sorted(planned)} drafts; {num_drafts} are right"
        ledger.check("drafts a row", planned <= {num_drafts}, run.case, text)
        _check_route(run, ledger, plan.step, step.launched, len(plan.rows), prefilling)
        untold = _check_context(run, ledger, plan.step, step.launched, untold)
        _check_waits(run, ledger, plan.step, step.launch_counters, step.collect_counters)
        _check_overlap(run, ledger, step)
        assert result is not None
        run.coverage["rows that skipped a step"] += len(waiting) if run.case.event == "skip" else 0
        for index, (row, wanted) in enumerate(zip(plan.rows, expected, strict=True)):
            got = (result.tokens(index), int(result.num_drafts[index]), int(result.finished[index]))
            want = (list(wanted.tokens), wanted.num_drafts, wanted.finished)
            text = f"step {plan.step}, {row.request_id}: tokens, drafts, finished = {got}; computed: {want}"
            ledger.check("emitted counts", got == want, run.case, text)
            _cover(run, wanted)
            if not row.is_prefilling and row.epoch not in decoded:
                decoded.add(row.epoch)
                if _always_drafts(run) and wanted.finished == 0:
                    text = f"step {plan.step}, {row.request_id}: first decode row carries {got[1]} drafts of {num_drafts}"
                    ledger.check("first decode drafts", got[1] == num_drafts, run.case, text)


def _drafts_of(run: CaseRun, step: int) -> int:
    """Of each decode row of a step, by the table of the case."""
    lengths = run.case.draft_lengths()
    return lengths[step % len(lengths)]


def _always_drafts(run: CaseRun) -> bool:
    return run.case.speculator == "scripted" and all(NO_DRAFT not in row for row in run.options.script)


def _check_route(
    run: CaseRun, ledger: Ledger, step: int, launched: dict[GraphKey, int], num_rows: int, prefilling: bool
) -> None:
    """Which graphs a step took, from the state of its rows as the model has it and not as the plan says."""
    query_len = 1 + _drafts_of(run, step)
    family = Family.MIXED if prefilling else Family.VERIFY if query_len > 1 else Family.DECODE
    targets = [key for key in launched if key.family not in (*_BEHIND, Family.CATCH_UP)]
    # A drafter whose drafts nobody will verify appends its context and drafts nothing; of a step that only decodes it hears later.
    pauses = run.case.speculator in DRAFTERS and not _drafts_of(run, step + 1)
    behind, defers = Family.CONTEXT if pauses else Family.PROPOSE, pauses and family is Family.DECODE
    proposals = sum(count for key, count in launched.items() if key.family is behind)
    others = sum(count for key, count in launched.items() if key.family in _BEHIND) - proposals
    fits = len(targets) == 1 and targets[0].family is family and launched[targets[0]] == 1
    fits = fits and targets[0].num_requests >= num_rows and targets[0].query_len == (0 if prefilling else query_len)
    fits = fits and targets[0].defers == defers
    names = ", ".join(map(str, launched))
    ledger.check("graph family", fits, run.case, f"step {step} of {num_rows} rows launched {names}; its family is {family.value}")
    wanted = 1 if run.case.k and not defers else 0
    text = f"step {step} launched {proposals} {behind.value} graphs and {others} others behind its own; {wanted} and none are right"
    ledger.check("one proposal a step", (proposals, others) == (wanted, 0), run.case, text)
    _check_sizes(run, ledger, step, launched, num_rows, prefilling)


def _check_context(run: CaseRun, ledger: Ledger, step: int, launched: dict[GraphKey, int], untold: int) -> int:
    """Whoever drafts does so from every row that was committed. untold: steps that were deferred and not caught up with before this
    one. Returns how many there are behind it."""
    caught_up = sum(count for key, count in launched.items() if key.family is Family.CATCH_UP)
    if caught_up:
        untold = 0
    drafts, deferred = any(key.family is Family.PROPOSE for key in launched), sum(key.defers for key in launched)
    text = f"step {step} drafts with {untold} steps that its drafter was not told of; {caught_up} graphs caught up before it"
    ledger.check("the context is up to date", caught_up <= 1 and not (drafts and untold), run.case, text)
    run.coverage["steps deferred"] += deferred
    return untold + deferred


def _check_sizes(
    run: CaseRun, ledger: Ledger, step: int, launched: dict[GraphKey, int], num_rows: int, prefilling: bool
) -> None:
    """Rows that each graph was captured for: never below the rows of the step, and no larger than it need be.

    Buckets are powers of two and the number of slots. A mixed graph has the rows of all slots; the propose graph behind it has
    those of the step, the ones that still prefill included, or those of all slots where it reads the step's token rows.
    """
    bucket = min(1 << (num_rows - 1).bit_length(), run.case.batch)
    for key in launched:
        if key.family is Family.CATCH_UP:
            continue  # of slots, and whose rows wait is not told by the rows of this step
        whole = key.family not in _BEHIND or run.case.speculator in DRAFTERS
        wanted = run.case.batch if prefilling and whole else bucket
        text = f"step {step} of {num_rows} rows launched {key}; {wanted} rows are right"
        ledger.check("graph size", key.num_requests == wanted, run.case, text)


def _check_waits(run: CaseRun, ledger: Ledger, step: int, launch: object, collect: object) -> None:
    """A launch waits for nothing; a collection for one event, and for no stream."""
    names = ("stream_synchronizes", "device_synchronizes", "transfers", "event_synchronizes")
    waits = [tuple(getattr(counters, name) for name in names) for counters in (launch, collect)]
    text = f"step {step}: waits (streams, device, transfers, events) = {waits[0]} at launch, {waits[1]} at collection"
    ledger.check("no synchronisation", waits == [(0, 0, 0, 0), (0, 0, 0, 1)], run.case, text)


def _check_overlap(run: CaseRun, ledger: Ledger, step: RecordedStep) -> None:
    """Collecting a step runs nothing that is queued behind its outcome: neither its own propose graph nor any later step.

    Exact under the lazy schedule alone, which runs what a wait needs and no more: whoever waits for too much makes the queue too
    short. The other schedules run work early of their own accord.
    """
    if run.case.schedule == "lazy":
        text = (
            f"step {step.plan.step}: after its collection {step.queued} operations were queued; {step.needless} stand behind its "
            f"outcome ({step.num_proposing} propose, the rest belong to {step.behind} later steps) and must not have run"
        )
        ledger.check("overlap", step.queued >= step.needless, run.case, text)


def _check_turns(run: CaseRun, ledger: Ledger) -> None:
    """As long as there is something to launch, each collection leaves steps_in_flight - 1 steps behind it; one a turn."""
    launching = {step.launched_in for step in run.steps}
    collections = Counter(step.collected_in for step in run.steps)
    ahead = run.case.steps_in_flight - 1
    for step in run.steps:
        steady = step.collected_in in launching
        holds = collections[step.collected_in] == 1 and (step.behind == ahead or not steady)
        wanted = f"{ahead} are right" if steady else "nothing was left to launch"
        text = (
            f"step {step.plan.step}: after its collection {step.behind} steps were in flight; {wanted}; "
            f"{collections[step.collected_in]} collections in one turn of the loop"
        )
        ledger.check("steps in flight", holds, run.case, text)


def _check_arm(run: CaseRun, ledger: Ledger) -> None:
    """Synchronous: every outcome at once. Asynchronous: late, but for the ends of the work."""
    late, at_once = run.paths.collected_late, run.paths.collected_at_once
    asynchronous = run.case.steps_in_flight > 1
    differ = late > 0 if asynchronous and len(run.steps) > run.case.steps_in_flight else late == 0 or asynchronous
    differ = differ and late + at_once == len(run.steps)
    text = f"{late} outcomes collected late and {at_once} at once, steps_in_flight = {run.case.steps_in_flight}"
    ledger.check("the arms differ", differ, run.case, text)


def _cover(run: CaseRun, row: ExpectedRow) -> None:
    accepted = max(0, len(row.tokens) - 1)
    run.coverage["drafts accepted"] += accepted
    if row.tokens and len(row.fed) > 1:
        run.coverage["drafts missing"] += len(row.fed) - 1 - row.num_drafts
        cut = row.finished and accepted < row.num_drafts and row.fed[1 + accepted] >= 0
        run.coverage["blocks cut by an end" if cut else "drafts rejected"] += max(0, row.num_drafts - accepted)
