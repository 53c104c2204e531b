"""Every row of the vectors files that the product can run is a case by its id, on the cpu executor and in the simulator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.lang import SIMULATED
from runtime.device import cuda_unavailable
from tests.vectors.adapter import open_executor, read_vectors, run_vector
from tests.vectors.compare import difference

FOLDER = Path(__file__).parent / "vectors"
VECTORS = [vector for path in sorted(FOLDER.glob("*.json")) for vector in read_vectors(path)]
NO_GPU = pytest.mark.skipif(cuda_unavailable() is None, reason="a GPU is present")
LAUNCHES = {"cpu": open_executor("cpu")}
if SIMULATED:
    LAUNCHES["simulator"] = open_executor("simulator")
    LAUNCHES["simulator-3x5"] = open_executor("simulator", grid=3, block=5)


@pytest.mark.parametrize("executor", [*LAUNCHES, pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("vector", VECTORS, ids=[vector["id"] for vector in VECTORS])
def test_vector(vector: dict[str, Any], executor: str) -> None:
    if executor not in LAUNCHES:
        LAUNCHES[executor] = open_executor(executor)
    outcome = run_vector(vector, LAUNCHES[executor])
    if outcome.status == "unsupported":
        pytest.skip(outcome.detail)
    assert outcome.status == "pass", str(outcome)


def test_ids_are_distinct() -> None:
    ids = [vector["id"] for vector in VECTORS]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("op", "inputs", "expect"),
    [
        # Fields that the form allows to be absent, null, a scalar or keyed by slot.
        ("combine", {"query_start_loc": [0, 1], "seq_lens": 6, "last_sampled": {"0": 9}}, {"input_ids": [9]}),
        (
            "post_update",  # computed lengths were moved before: only the rejected rows are taken back
            {
                "idx_mapping": [2, 0],
                "num_computed": [13, 0, 23],
                "total_len": [11, 0, 21],
                "sampled": [[5, 6, 5], [7, -1, -1]],
                "num_sampled": [3, 1],
                "num_rejected": [0, 2],
                "query_start_loc": None,
                "vocab_size": 8,
            },
            {
                "num_computed": [11, 0, 23],
                "total_len": [12, 0, 24],
                "last_sampled": {"2": 5, "0": 7},
                "history": {"2": {"21": 5, "22": 6, "23": 5}, "0": {"11": 7}},
                "counts": {"2": {"5": 2, "6": 1, "7": 0}, "0": {"7": 1}},
            },
        ),
        (
            "post_update",  # a stop inside the block: what follows it is not committed
            {
                "idx_mapping": [0],
                "num_computed": [10],
                "total_len": [11],
                "sampled": [[5, 6, 7]],
                "num_sampled": [3],
                "num_rejected": [0],
                "query_start_loc": [0, 3],
                "stop_ids": [[6]],
            },
            {"num_computed": [12], "total_len": [13], "last_sampled": [6], "num_sampled": [2], "finished": [1]},
        ),
        ("prefill_inputs", {"query_start_loc": [0, 1], "history": {"0": [4]}, "prefill_len": 1}, {"input_ids": [4]}),
        ("ngram", {"tokens": [], "min_n": 1, "num_speculative_tokens": 2}, {"drafts": []}),
        ("ngram", {"tokens": [1, 1], "min_n": 1, "max_n": 3, "num_speculative_tokens": 2}, {"drafts": [1]}),
        ("greedy_reject", {"drafts": [[], [3, -1]], "target": [None, [3, 3]], "bonus": [2, 4]}, {"output": {"1": [3, 3, -1]}}),
        ("reject_rows", {"cu_num_logits": [0, 1], "draft_sampled": [4], "row_argmax": [7]}, {"tokens": [[7, 99]]}),
        ("uniform", {"rows": [], "query_len": 1}, {"query_len": None}),
    ],
)
def test_optional_fields(op: str, inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    outcome = run_vector({"id": "x", "op": op, "inputs": inputs, "expect": expect}, LAUNCHES["cpu"])
    assert outcome.status == "pass", str(outcome)


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        ([1, 2], [1, 2], True),
        ([1, 2], [1], False),
        ([1, 2], [1, None], True),
        ([1, 2], [1, 3], False),
        ([[1], [2]], {"1": {"0": 2}}, True),
        ([[1], [2]], {"1": {"0": 1}}, False),
        ([1], {"3": 1}, False),
        (None, None, True),
        (4, None, False),
        (0.66666, 0.667, True),
        (0.6672, 0.667, True),
        (0.668, 0.667, False),
        (2.8001, 2.8, False),
    ],
)
def test_comparison(actual: Any, expected: Any, same: bool) -> None:
    assert (difference(actual, expected, "x") is None) == same


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "tests.vectors", *map(str, arguments)]
    return subprocess.run(run, cwd=FOLDER.parents[1], capture_output=True, text=True, timeout=300, check=False)


def test_command_reports_each_id_and_its_exit_code(tmp_path: Path) -> None:
    inputs = {"idx_mapping": [4], "cu_num_logits": [0, 2]}
    good = {"id": "good", "op": "expand_rows", "inputs": inputs, "expect": {"slot_of_row": [4, 4]}}
    bad = {**good, "id": "bad", "expect": {"slot_of_row": [4, 5]}}
    broken = {**good, "id": "broken", "inputs": {}}
    unknown = {"id": "unknown", "op": "nonsense", "inputs": {}, "expect": {}}
    path = tmp_path / "file.json"
    path.write_text(json.dumps([good, bad, broken, unknown]), encoding="utf-8")
    failing = command(path)
    assert failing.returncode == 1
    assert [line.split()[:2] for line in failing.stdout.splitlines()[:4]] == [
        ["pass", "good"],
        ["FAIL", "bad:"],
        ["FAIL", "broken:"],
        ["unsupported", "unknown:"],
    ]
    assert "slot_of_row[1] = 4, expected 5" in failing.stdout

    path.write_text(json.dumps([good, unknown]), encoding="utf-8")
    assert command(path).returncode == 1
    allowed = command(path, "--allow-unsupported", "--executor", "simulator")
    assert allowed.returncode == 0, allowed.stdout + allowed.stderr
    assert "(simulator)" in allowed.stdout


@pytest.mark.parametrize(
    ("text", "executor", "message"),
    [
        ("[", "cpu", "Expecting value"),
        ('{"id": 1}', "cpu", "must be a list"),
        ('[{"id": 1}]', "cpu", "lacks op, inputs"),
        pytest.param("[]", "cuda", "executor = cuda: device = cuda: ", marks=NO_GPU),
    ],
)
def test_command_refuses_what_it_cannot_use(text: str, executor: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text, encoding="utf-8")
    refused = command(path, "--executor", executor)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.gpu
def test_command_on_a_gpu() -> None:
    """Every file, in a process of its own."""
    done = command(*sorted(FOLDER.glob("*.json")), "--executor", "cuda")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(cuda)" in done.stdout
