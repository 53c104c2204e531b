"""On a GPU, by the tracer and not by our own counters: a steady step waits for the copy stream's event and for nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.machine import ROOT
from runtime.profile.host_calls import HostCalls
from tests.planted_waits import PLANTED, SOUND

pytestmark = pytest.mark.gpu

LIMIT_S = 200


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, HostCalls]:
    pytest.importorskip("cupti", reason="CUPTI is not installed: extra profile")
    file = tmp_path_factory.mktemp("waits") / "calls.json"
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command, environment = [sys.executable, "-m", "tests.planted_waits", str(file)], os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT_S, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: HostCalls.from_dict(values) for name, values in json.loads(Path(file).read_text()).items()}


@pytest.mark.parametrize("case", [*SOUND, "ngram again"])
def test_a_steady_step_waits_for_one_event_of_the_copy_stream(
    traced: dict[str, HostCalls], record_property: Any, case: str
) -> None:
    calls = traced[case]
    assert calls.findings() == []
    assert calls.allowed == ("compute" if case == "integrated" else "copy")
    assert dict(calls.waits()) == {f"cudaEventSynchronize for an event of {calls.allowed}": calls.steps}
    assert calls.counted["graph_launches"] == sum(call.name == "cudaGraphLaunch" for call in calls.calls) >= calls.steps
    waits = ", ".join(f"{count} {wait}" for wait, count in calls.waits().items())
    record_property(f"waits of the host in {calls.steps} steps by CUPTI, {case}", waits)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_wait_is_reported(traced: dict[str, HostCalls], name: str) -> None:
    calls = traced[f"planted {name}"]
    findings = calls.findings()
    assert any(re.search(rf"({PLANTED[name][1]}).*: {calls.steps} times", finding) for finding in findings), findings
    unseen = [finding for finding in findings if finding.startswith("our counters")]
    assert bool(unseen) == (name in ("stream", "device", "driver")), "what our counters do not see, and what they do"
