"""Every kernel compiles for an H200 with the types that it is launched with, and computes nothing in double.

The simulator and the CPU would both accept `f32 * 0.5`; on a GPU it is a double product, thirty-two times slower.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.held_head import held_argmax
from kernels.lang import Kernel
from tests.kernel_signatures import SIGNATURES, storages_of
from tests.ptx_order import START, before_wait
from tests.test_kernels_contracts import KERNELS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def ptx() -> dict[str, dict[str, dict[str, str]]]:
    """PTX for sm_90, or why there is none, by kernel name and storage type; from one process without the simulator."""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    command = [sys.executable, "-m", "tests.compile_ptx"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode and re.search(r"NvvmSupportError|DynamicLibNotFoundError", done.stderr):
        pytest.skip("libnvvm is not installed: pip install -e '.[ptx]' (or cu12, cu13)")
    assert done.returncode == 0, done.stderr
    compiled: dict[str, dict[str, dict[str, str]]] = json.loads(done.stdout)
    return compiled


CASES = [(kernel.name, storage) for kernel in KERNELS for storage in storages_of(SIGNATURES.get(kernel.name, ""))]


@pytest.mark.parametrize(("name", "storage"), CASES)
def test_kernel_compiles_to_ptx_without_doubles(ptx: dict[str, dict[str, dict[str, str]]], name: str, storage: str) -> None:
    compiled = ptx[name][storage]
    assert "error" not in compiled, compiled["error"]
    text = compiled["ptx"]
    assert re.search(r"\.target\s+sm_90a", text)
    assert re.search(rf"\.entry\s+\w*{name}", text)
    doubles = [line.strip() for line in text.splitlines() if re.search(r"\.f64\b", line)]
    assert not doubles


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "name",
    [
        "norm_project",
        "norm_gate_up",
        "project_residual",
        "project_argmax",
        "attend_step",
        "norm_attend_step",
        "attend_rows",
        "attend_wide_rows",
        "block_attend",
    ],
)
def test_products_load_sixteen_bytes_into_tensor_cores(
    ptx: dict[str, dict[str, dict[str, str]]], name: str, storage: str
) -> None:
    """The common form compiles for 16-bit types as well, and is several times slower: nothing else would show it."""
    text = ptx[name][storage].get("ptx", "")
    kind = {"float16": "f16", "bfloat16": "bf16"}[storage]
    assert f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32" in text
    assert "cp.async.cg.shared.global" in text
    assert ".local" not in text


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "hinted"),
    [("project_residual_two", True), ("project_residual_two_tap", True), ("project_residual", False), ("norm_project_two", False)],
)
def test_large_weights_that_are_added_to_the_residual_are_the_first_to_leave_the_l2(
    ptx: dict[str, dict[str, dict[str, str]]], name: str, hinted: bool, storage: str
) -> None:
    """And activations are not: every block reads them."""
    text = ptx[name][storage].get("ptx", "")
    assert bool(re.search(r"cp\.async\.cg\.shared\.global\.L2::cache_hint\.L2::256B", text)) == hinted
    assert bool(re.search(r"createpolicy\.fractional\.L2::evict_first", text)) == hinted
    assert re.search(r"cp\.async\.cg\.shared\.global\.L2::256B", text)


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["flow_project", "flow_gate_up", "slab_gate_up", "flow_residual", "flow_argmax"])
def test_weights_that_flow_are_copied_in_runs(ptx: dict[str, dict[str, dict[str, str]]], name: str, storage: str) -> None:
    """As above. Activations stay in registers: local memory would be read for each tile."""
    text = ptx[name][storage].get("ptx", "")
    kind = {"float16": "f16", "bfloat16": "bf16"}[storage]
    assert f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32" in text
    assert "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes" in text
    assert ".local" not in text


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
def test_weights_that_are_held_are_loaded_where_they_are_asked_for(
    ptx: dict[str, dict[str, dict[str, str]]], storage: str
) -> None:
    """As above; a plain load would be moved behind the wait, and the first tile with it."""
    text = ptx["held_argmax"][storage].get("ptx", "")
    kind, early = {"float16": "f16", "bfloat16": "bf16"}[storage], text.partition("griddepcontrol.wait")[0]
    assert text.count(f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32") == 36
    assert early.count("ld.relaxed.gpu.global.L1::no_allocate.L2::128B.v4.u32") == 36
    assert ".local" not in text
    assert before_wait(held_argmax, text, SIGNATURES["held_argmax"]).reads == {"weight"}


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["wide_gate_up", "wide_parts", "wide_head"])
def test_wide_products_are_those_of_warp_groups(ptx: dict[str, dict[str, dict[str, str]]], name: str, storage: str) -> None:
    """As above."""
    text = ptx[name][storage].get("ptx", "")
    kind = {"float16": "f16", "bfloat16": "bf16"}[storage]
    assert f"wgmma.mma_async.sync.aligned.m64n96k16.f32.{kind}.{kind}" in text
    assert "cp.async.cg.shared.global" in text
    assert ".local" not in text


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["wide_gate_up", "wide_parts", "wide_head"])
def test_products_of_warp_groups_stay_under_way(
    ptx: dict[str, dict[str, dict[str, str]]], name: str, storage: str, tmp_path: Path
) -> None:
    """Where the assembler cannot tell that nothing touches their sums meanwhile, it waits behind each, and says so (C75..)."""
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("ptxas is not installed: pip install nvidia-cuda-nvcc, and its bin on PATH")
    source = tmp_path / f"{name}.ptx"
    source.write_text(ptx[name][storage]["ptx"])
    command = [ptxas, "-arch=sm_90a", "-v", "-maxrregcount=128", str(source), "-o", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "Unsupported .version" in done.stderr:
        pytest.skip(f"ptxas is older than libnvvm: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    assert "(C75" not in done.stdout + done.stderr
    assert "0 bytes spill stores" in done.stdout + done.stderr


OVERLAPPING = [(kernel, storage) for kernel in KERNELS if kernel.overlap for storage in storages_of(SIGNATURES[kernel.name])]


@pytest.mark.parametrize(("kernel", "storage"), OVERLAPPING, ids=str)
def test_overlapping_kernels_touch_nothing_before_their_wait(
    ptx: dict[str, dict[str, dict[str, str]]], kernel: Kernel, storage: str
) -> None:
    """The launch before may still run until then: nothing is stored, and nothing read but what the kernel says it reads early."""
    before = before_wait(kernel, ptx[kernel.name][storage].get("ptx", ""), SIGNATURES[kernel.name])
    assert before.waits
    assert before.stores == ()
    assert before.reads <= kernel.early
    assert not before.starts


def test_other_kernels_do_not_wait(ptx: dict[str, dict[str, dict[str, str]]]) -> None:
    """A kernel that lets the next one start and is not launched as one that may overlap would be declared by mistake."""
    plain = [kernel.name for kernel in KERNELS if not kernel.overlap]
    assert [name for name in plain if any(START in form.get("ptx", "") for form in ptx[name].values())] == []


def test_signatures_have_a_word_for_each_parameter() -> None:
    params = {kernel.name: len(kernel.params) for kernel in KERNELS}
    words = {name: len(signature.split()) for name, signature in SIGNATURES.items()}
    assert words == params
