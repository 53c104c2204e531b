"""Gate G2: the ids that reach the verify are the ids that the proposer produced, compared by id, through the whole engine.

Acceptance and text cannot say so: verification is lossless, so a wrong draft costs acceptance and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.gates.case_run import CaseRun, model_of
from runtime.gates.tapes import TapeRow
from runtime.gates.toy import continuation
from runtime.gates.verdict import Ledger
from runtime.plan import ScheduledRow

# fed = computed: the whole row as the device model has it, which also sees a drafter that drafts what it should not.
TITLE = "ids that are verified are ids that were drafted"
AXES = ("a record a step", "fed = drafted", "compared = fed", "committed id", "fed = computed")


@dataclass(frozen=True)
class _Proposal:
    """What a slot's drafts are at present; step None: the admission emptied them."""

    step: int | None
    position: int | None
    ids: tuple[int, ...]


@dataclass
class _Text:
    """How far the request of a slot has got, by what the device itself reported.

    stream: its text by the oracle, far enough. total: tokens committed. prefilled: tokens of the prompt that were fed.
    """

    stream: list[int]
    prefill_len: int
    total: int
    prefilled: int = 0

    def position(self, row: ScheduledRow) -> int:
        """Of the row's first logits row: the last token committed, or the last of its chunk."""
        return self.prefilled + row.num_tokens - 1 if self.prefilled < self.prefill_len else self.total - 1

    def move(self, row: ScheduledRow, num_sampled: int) -> None:
        if self.prefilled < self.prefill_len:
            self.prefilled += row.num_tokens
        self.total += num_sampled


def check_g2(run: CaseRun, ledger: Ledger) -> None:
    """Check one case that was run with tapes."""
    assert run.tapes is not None
    tapes, steps = run.tapes, len(run.steps)
    counts = {name: len(getattr(tapes, name)) for name in ("drafted", "fed", "compared")}
    text = f"{steps} steps, records on the tapes: {counts}"
    complete = set(counts.values()) == {steps}
    ledger.check("a record a step", complete, run.case, text)
    if not complete:
        return
    model = model_of(run)
    proposals: dict[int, _Proposal] = {}
    committed: dict[int, _Text] = {}
    reach = run.options.effective_max_model_len
    for number, step in enumerate(run.steps):
        assert step.result is not None
        for admission in step.plan.admissions:
            known = admission.prefill_tokens
            proposals[admission.slot] = _Proposal(None, None, (-1,) * run.case.k)
            committed[admission.slot] = _Text(continuation(known, reach, run.options.memory), len(known), len(known))
        expected = model.run(step.plan)
        for index, row in enumerate(step.plan.rows):
            fed, compared = tapes.fed[number][index], tapes.compared[number][index]
            where = _Where(run, ledger, number, row, fed)
            if not row.is_prefilling:
                where.check_drafts(proposals[row.slot])
            where.check_compared(compared)
            known_text, wanted = committed[row.slot], expected[index]
            position = known_text.position(row)
            where.check_committed(position, known_text.stream[position])
            known_text.move(row, step.result.num_sampled[index])
            where.check("fed = computed", "input_token_ids", fed.position, fed.ids == wanted.fed, fed.ids, "computed", wanted.fed)
        for drafted in tapes.drafted[number]:
            proposals[drafted.slot] = _Proposal(number, drafted.position, drafted.ids)


class _Where:
    """The checks of one row, which say step, request and position."""

    def __init__(self, run: CaseRun, ledger: Ledger, step: int, row: ScheduledRow, fed: TapeRow) -> None:
        self.run, self.ledger, self.step, self.row, self.fed = run, ledger, step, row, fed

    def check(self, axis: str, buffer: str, position: int, holds: bool, got: object, source: str, wanted: object) -> None:
        request = f"{self.row.request_id} (slot {self.row.slot})"
        text = f"{buffer}, step {self.step}, {request}, position {position}: {got}, {source}: {wanted}"
        self.ledger.check(axis, holds, self.run.case, text)

    def check_drafts(self, proposal: _Proposal) -> None:
        """Each draft that was fed is the one that the proposer last produced for this slot and position, -1 included."""
        drafts, first = self.fed.ids[1:], self.fed.position + 1
        came = "emptied at admission" if proposal.step is None else f"proposed in step {proposal.step}"
        whole = len(drafts) == self.row.num_drafts and proposal.position in (None, first)
        if not whole:
            source = f"{came} from position {proposal.position}"
            self.check("fed = drafted", "input_token_ids", first, False, f"fed {drafts}", source, proposal.ids)
            return
        # A step may verify fewer drafts than there are.
        for offset, (fed, drafted) in enumerate(zip(drafts, proposal.ids, strict=False)):
            self.check("fed = drafted", "input_token_ids", first + offset, fed == drafted, f"fed {fed}", came, drafted)

    def check_compared(self, compared: TapeRow) -> None:
        """The drafts that the accept walk reads are those that the forward was fed (docs/draft-sampled.md).

        The id at the first logits row is the committed token: it is not compared with anything, so it may be anything.
        """
        same_row = (compared.slot, compared.position, len(compared.ids)) == (self.fed.slot, self.fed.position, len(self.fed.ids))
        first = self.fed.position + 1
        if not same_row:
            self.check("compared = fed", "draft_sampled", first, False, f"compared {compared}", "fed", self.fed)
            return
        for offset, (got, fed) in enumerate(zip(compared.ids[1:], self.fed.ids[1:], strict=True)):
            self.check("compared = fed", "draft_sampled", first + offset, got == fed, f"compared {got}", "fed", fed)

    def check_committed(self, position: int, token: int) -> None:
        """The row begins where the request's text ends, with its last token."""
        holds = self.fed.position == position and self.fed.ids[:1] == (token,)
        got = f"fed {self.fed.ids[:1]} at {self.fed.position}"
        self.check("committed id", "input_token_ids", position, holds, got, "the oracle", token)
