"""What every message about a file must say beside what is wrong: what to do about it."""

from __future__ import annotations

import re

_VERBS = (
    "add belong belongs check convert fetch give install lower make measure mend merge name pip put raise remove set use write"
)
_REMEDY = re.compile(rf"[;:,] (?:or )?(?:{_VERBS.replace(' ', '|')})\b")


def says_what_to_do(message: str) -> bool:
    return _REMEDY.search(message) is not None
