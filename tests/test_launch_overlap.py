"""Which launches of a step may start early, on a GPU on which nothing runs, and that a configuration can forbid it."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.compare_arms import path_taken
from runtime.engine import Engine
from tests.idle_gpu import idle_gpu


def step_of(*, overlap: bool) -> tuple[bool, dict[str, int], dict[str, int], dict[str, Any]]:
    """Does the device overlap; nodes and early nodes of each decode graph; what a comparison says of the path of a run."""
    with idle_gpu() as module, Engine.from_config(
        {},
        on_device=module.CudaDevice(overlap=overlap),
        device="cuda",
        model__source="random:smollm2-135m?layers=2",
        model__dtype="bfloat16",
        scheduler__max_num_seqs=1,
        scheduler__max_model_len=64,
        scheduler__max_num_batched_tokens=16,
        graphs__ops="fused",
        run__chat=False,
    ) as engine:
        graphs: Any = {str(key): graph.executable for key, graph in engine.runner.library.graphs.items() if "decode" in str(key)}
        nodes = {key: graph.num_nodes for key, graph in graphs.items()}
        early = {key: graph.num_early for key, graph in graphs.items()}
        path = path_taken(engine, {}, {f"graph {key}": 1 for key in graphs})
        return engine.runner.device.overlaps, nodes, early, path["graphs"]


def test_a_decode_step_starts_nearly_all_of_its_launches_early_unless_it_must_not() -> None:
    overlaps, nodes, early, path = step_of(overlap=True)
    assert overlaps
    assert nodes
    assert all(early[key] >= nodes[key] - 4 for key in nodes), (early, nodes)
    ordered, same_nodes, none, other_path = step_of(overlap=False)
    assert not ordered
    assert same_nodes == nodes
    assert set(none.values()) == {0}
    assert path.keys() == other_path.keys()
    assert path != other_path, "arms that differ in this alone are no tautology"


@pytest.mark.parametrize("overlap", [True, False])
def test_the_configuration_reaches_the_device(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with idle_gpu() as module:
        given: list[bool] = []

        def opened(kind: str, **options: Any) -> Any:
            given.append(options["overlap"])
            return module.CudaDevice()

        monkeypatch.setattr("runtime.assembly.refuse_absent_gpu", lambda kind: None)
        monkeypatch.setattr("runtime.assembly.open_device", opened)
        Engine.from_config(
            {"model": {"source": "random:tiny"}, "device": "cuda", "graphs": {"overlap": overlap}, "run": {"chat": False}}
        ).close()
    assert given == [overlap]
