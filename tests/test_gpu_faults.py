"""Faults of a kernel on a GPU, in processes of their own: CUDA takes no more work in one that has seen a fault."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.lang import f32, kernel
from tests.conftest import ROOT

pytestmark = pytest.mark.gpu


@kernel(writes=("y",))
def out_of_bounds(y, index):
    """Stores where nothing is."""
    y[index] = f32(1)


def test_an_illegal_address_is_told_and_nothing_hangs() -> None:
    command = [sys.executable, "-c", ILLEGAL_ADDRESS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Which of the two depends on what lies there.
    text = r"synchronize of stream `s` failed on .*: cudaError(IllegalAddress|InvalidAddressSpace)"
    assert re.search(text, done.stdout), done.stdout
    assert done.stdout.count("compute-sanitizer") == 3
    assert "Traceback" not in done.stderr


ILLEGAL_ADDRESS = """
import numpy as np
from runtime.device import open_device
from runtime.errors import DeviceError
from tests.test_gpu_faults import out_of_bounds
device = open_device("cuda")
stream, y = device.stream("s"), device.array("y", (1,), np.float32)
stream.launch(out_of_bounds, 1, 1, y, 2**30)
for call in (stream.synchronize, device.synchronize, lambda: stream.fill(y, 0)):
    try:
        call()
    except DeviceError as error:
        print(error)
    else:
        raise SystemExit("no error")
device.close()
"""


def test_a_kernel_that_fails_in_a_decode_ends_the_command_with_one_line(tmp_path: Path) -> None:
    """CUDA refuses to free what the engine holds then, hundreds of arrays; each refusal used to be a traceback."""
    config = tmp_path / "run.yaml"
    config.write_text("model: {source: random:tiny}\ndevice: cuda\nspeculator: {method: none}\nrun: {prompts: [hi], chat: false}\n")
    command = [sys.executable, "-W", "ignore", "-c", FAULT_IN_A_DECODE, "run", str(config), "--max-tokens", "40", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    lines = done.stderr.splitlines()
    assert done.returncode == 2, done.stderr[-2000:]
    assert len(lines) == 1, done.stderr[:2000]
    assert re.match(r"error: .* failed on .*: cudaError(IllegalAddress|InvalidAddressSpace).*compute-sanitizer", lines[0])


FAULT_IN_A_DECODE = """
import sys
import numpy as np
from runtime.engine import Engine
from tests.test_gpu_faults import out_of_bounds
opened = Engine.from_config
def planted(*arguments, **options):
    engine = opened(*arguments, **options)
    runner, steps = engine.runner, []
    launch, y = runner.launch, runner.device.array("y", (1,), np.float32)
    def launch_and_spoil(plan):
        steps.append(plan)
        if len(steps) == 5:
            runner.compute.launch(out_of_bounds, 1, 1, y, 2**30)
        return launch(plan)
    runner.launch = launch_and_spoil
    return engine
Engine.from_config = planted
from runtime.cli import main
sys.argv[0] = "draftgraph"
main()
"""
