"""`python -m tests.sanitize.workload`: a few steps of the engine with a DFlash2 drafter that is right now and then, on the GPU.

As small as the kernels of a GPU allow: two blocks of 64 channels, one block of the drafter, three answers in two slots, every
launch by itself, every cluster of one block, as on GPUs that know none. Racecheck looks at the shared memory of a block, and under
it (version 2025.3.1) launches in larger clusters did not end, or ended with an illegal address that memcheck does not see. The last
line is JSON: the kernels that were launched, under which name, with how much shared memory, and the drafts.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernels.lang import Kernel
from runtime.device import open_device
from runtime.engine import Engine
from runtime.sampling import SamplingParams
from tests.tiny_checkpoint import TinyShape, write_tiny_checkpoint
from tests.tiny_drafter import DrafterShape, write_tiny_drafter
from tests.tiny_engine import Arrival, drive, open_tiny

TARGET = TinyShape(seed=3, attention_scale=0.3, num_likely_ids=3, num_heads=3, num_kv_heads=1, head_dim=64, intermediate_size=128)
DRAFTER = DrafterShape(
    version=2,
    num_layers=1,
    taps=(0,),
    num_heads=3,
    num_kv_heads=1,
    head_dim=64,
    intermediate_size=128,
    selector_rank=64,
    selector_top_k=16,
    seed=2,
)
NUM_DRAFTS = 3
ANSWER = SamplingParams(max_tokens=12, ignore_eos=True)
ARRIVALS = (
    Arrival(list(range(3, 23)), ANSWER, 0),  # longer than a step: prefilled in two
    Arrival([4, 9, 14, 7, 5], ANSWER, 1),
    Arrival([21, 3, 3, 8], ANSWER, 1),  # waits for a slot
)
SETTINGS: dict[str, Any] = {
    "model__dtype": "bfloat16",
    "numerics": "batch_invariant",
    "graphs__mode": "eager",
    "scheduler__max_num_seqs": 2,
    "scheduler__max_num_batched_tokens": 16,
    "speculator__method": "dflash",
}


def run(folder: Path, on: Any = None, **settings: Any) -> dict[str, Any]:
    """{"kernels": see `launched`, "drafted": tokens, "accepted": of them}."""
    model = write_tiny_checkpoint(folder / "target", TARGET)
    drafter = write_tiny_drafter(folder / "drafter", TARGET, DRAFTER)
    chosen = SETTINGS | {"speculator__draft_source": str(drafter.path)} | settings
    with open_tiny(model.path, k=NUM_DRAFTS, on=on, **chosen) as engine:
        outputs = drive(engine, ARRIVALS)
        found = [output.acceptance for output in outputs if output.acceptance is not None]
        drafted, accepted = (sum(getattr(each, f"num_{name}_tokens") for each in found) for name in ("draft", "accepted"))
        return {"kernels": launched(engine), "drafted": drafted, "accepted": accepted}


@contextmanager
def clusters_of_one() -> Iterator[None]:
    """While it lasts, launches on a GPU are of clusters of one block."""
    import runtime.cuda_stream

    cuda_stream: Any = runtime.cuda_stream
    bind, alone = cuda_stream.bind_launch, dict[Kernel, Kernel]()

    def bind_alone(stream: Any, kernel: Kernel, *rest: Any) -> Any:
        return bind(stream, alone.setdefault(kernel, replace(kernel, cluster=1)), *rest)

    cuda_stream.bind_launch = bind_alone
    try:
        yield
    finally:
        cuda_stream.bind_launch = bind


def launched(engine: Engine) -> list[dict[str, Any]]:
    """{"name", "entry": in the module that the driver loads, "shared": bytes of a block} of every kernel; none without a GPU."""
    compiler: Any = getattr(engine.runner.device, "_compiler", None)  # type: ignore[attr-defined]
    found = {}
    for kernel, types in () if compiler is None else compiler._compiled:
        loaded = kernel.jit.compile(types)  # has been
        shared = int(loaded.shared_mem_per_block) + kernel.shared
        found[loaded.entry_name] = {"name": kernel.name, "entry": loaded.entry_name, "shared": shared}
    return list(found.values())


def main() -> int:
    device: Any = open_device("cuda", poison=True)
    with tempfile.TemporaryDirectory() as folder, device, clusters_of_one():
        found = run(Path(folder), device, device="cuda")
    print(json.dumps(found), flush=True)
    return 0 if 0 < found["accepted"] < found["drafted"] else 1


if __name__ == "__main__":
    sys.exit(main())
