"""Entries of the hazard list that no mutation stands for, with the reason. The catalogue and this list name every entry.

D1..D9 are those of the check-list of block drafters (DFlash), D10 is a checkpoint that cannot be what it says it is,
D11 a mistake of somebody who uses the program, which has to be told.
"""

from __future__ import annotations

ENTRIES = frozenset(
    [
        *(f"9a-{number}" for number in range(1, 18)),
        *(f"9b-{number}" for number in range(18, 31)),
        *(f"9c-{number}" for number in range(31, 43)),
        *(f"9d-{number}" for number in range(43, 53)),
        *(f"9e-{number}" for number in range(53, 64)),
        *(f"B{number}" for number in range(1, 48) if number not in (3, 17, 21, 30, 33, 35, 44, 46)),
        *(f"D{number}" for number in range(1, 12)),
    ]
)

_EVIDENCE = "about evidence, not about code"

WITHOUT_MUTANT = {
    "9a-7": "an unbounded store of a device kernel shows under a sanitizer on a GPU; the size of the pool is refused (9a-6)",
    "9a-16": "there is no registry of models that read host ids: every target reads the device array",
    "9b-20": "kernels have no scratch outside their block",
    "9b-22": "there is no verify object: what is in flight belongs to rings that outlive the steps",
    "9b-23": "nothing that owns buffers can be moved",
    "9b-28": "one drain before anything is freed, in MirrorTable.close: see 9b-21",
    "9c-34": "about tests: the gates compute the family from their own model",
    "9c-41": "a row without drafts holds -1; a step has the same rows whether or not it drafts",
    "9d-50": "no layer with a recurrent state",
    "9d-51": "slots never move, so no forward reads what moves",
    "9d-52": "CUDA and CPU only",
    "9e-53": "every mutation names the words that its failure must hold",
    "9e-55": "G1 demands that partial acceptance, ends inside a block and padded rows have occurred",
    "9e-56": _EVIDENCE,
    "9e-63": "tests that need a GPU skip visibly, with the reason",
    "B15": "a recorder cannot allocate, so no output lies outside of what a capture writes",
    "B18": "no graph has memory of its own: every output is an array of the table",
    "B20": "one k for the whole run",
    "B22": "the rows of a drafter's block have arrays of their own, sized by slots and not by tokens of a step",
    "B24": "a capture runs nothing, and every index buffer is initialised before it",
    "B41": "no grammars",
    "B43": "one scheduler and one runner for both arms; G1 runs both",
}
