"""The reader of PTX that guards overlapping kernels sees what it must see, and a kernel as it stands passes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.lang import Kernel
from kernels.rotate import rotate_store
from kernels.tap import tap
from tests.kernel_signatures import SIGNATURES
from tests.ptx_order import Before, before_wait

ROOT = Path(__file__).resolve().parents[1]

PTX = """
.visible .entry tap(.param .u64 tap_param_0)
{
    ld.param.u64 %rd1, [tap_param_4];
    ld.param.u64 %rd2, [tap_param_13];
    cvta.to.global.u64 %rd3, %rd2;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd4, %r1, 4;
    add.s64 %rd5, %rd3, %rd4;
EARLY
    // begin inline asm
    griddepcontrol.wait;
    // end inline asm
    griddepcontrol.launch_dependents;
    ld.global.f32 %f2, [%rd5];
    st.global.f32 [%rd1], %f2;
}
"""


def read(early: str) -> Before:
    kernel: Kernel = replace(tap, params=("out", "x"))
    return before_wait(kernel, PTX.replace("EARLY", early), "f2 f2")


def test_what_comes_before_the_wait_is_found() -> None:
    assert read("    mov.u32 %r2, 1;") == Before((), frozenset(), starts=False, waits=True)
    assert read("    ld.global.f32 %f1, [%rd5];").reads == {"x"}
    assert read("    @%p1 ld.global.cg.s32 %r3, [%rd5+4];").reads == {"x"}
    assert read("    {\n    @p ld.relaxed.gpu.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd5];\n    }").reads == {"x"}
    assert read("    cp.async.cg.shared.global [%r1], [%rd5], 16, %r1;").reads == {"x"}
    assert read("    ld.global.f32 %f1, [%rd9];").reads == {None}
    assert read("    ld.shared.f32 %f1, [%r1];\n    st.shared.f32 [%r1], %f1;") == Before((), frozenset(), starts=False, waits=True)
    assert read("    st.global.f32 [%rd5], %f1;").stores
    assert read("    red.global.add.u32 [%rd5], 1;").stores
    assert read("    griddepcontrol.launch_dependents;").starts


def test_a_value_that_was_loaded_is_no_address_of_its_array() -> None:
    """positions[token]: what is read is positions, whatever array the token came from."""
    early = ("ld.global.s32 %r3, [%rd5];", "mul.wide.s32 %rd6, %r3, 4;", "add.s64 %rd7, %rd1, %rd6;", "ld.global.s32 %r4, [%rd7];")
    assert read("\n".join(early)).reads == {"x", "out"}


def test_a_kernel_as_it_stands_waits_first() -> None:
    command = [sys.executable, "-m", "tests.compile_ptx", rotate_store.name]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip("libnvvm is not installed: pip install -e '.[ptx]' (or cu12, cu13)")
    text = json.loads(done.stdout)[rotate_store.name]["float32"]["ptx"]
    assert before_wait(rotate_store, text, SIGNATURES[rotate_store.name]) == Before((), frozenset(), starts=False, waits=True)
