"""What a loaded engine consists of is no work for Python's garbage collector while it decodes.

Modules, compiled kernels and captured graphs are hundreds of thousands of objects that live as long as the program. A full
collection looks at each of them, in the middle of whichever step makes one object too many.
"""

from __future__ import annotations

import gc


def settle_heap() -> None:
    """Collect what is garbage by now, and set what lives aside: later collections of this process look at later objects alone.

    For programs that own their process. What is set aside is freed as ever when nothing refers to it any more, but for cycles:
    those wait for the next call.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
