"""`python -m tests.load_peak FOLDER idle|cuda`: host memory that loading a checkpoint onto a GPU takes, as JSON. Linux only.

"idle" is a GPU that does nothing (tests/idle_gpu.py): its memory is never touched, so that what is counted is the host's.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from runtime.checkpoint.checkpoint import open_checkpoint
from runtime.models.upload import upload_model
from tests.idle_gpu import idle_gpu

_PEAK_IS_NOW = "5"
"""Written to clear_refs: the largest resident size so far becomes the present one."""


def main(folder: str, kind: str) -> None:
    with idle_gpu() if kind == "idle" else nullcontext(_cuda()) as module, module.CudaDevice() as device:
        device.constant("first", b"starts what the driver allocates once")
        checkpoint = open_checkpoint(Path(folder))
        seen: list[int] = []
        Path("/proc/self/clear_refs").write_text(_PEAK_IS_NOW)
        before = _kibibytes("VmRSS")
        weights = checkpoint.stored_weights(lambda done, total: seen.append(done), "bfloat16")
        upload_model(device, checkpoint.spec, weights, max_model_len=64, num_blocks=4, block_size=16)
        took = _kibibytes("VmHWM") - before
    shards = [path.stat().st_size for path in Path(folder).glob("*.safetensors")]
    print(json.dumps({"took": took * 1024, "largest_shard": max(shards), "all": sum(shards), "read": seen[-1]}))


def _cuda() -> Any:
    import runtime.cuda_device

    return runtime.cuda_device


def _kibibytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
