"""Mutations of graphs: which one a step replays, over how many rows, and what is known of its reads and writes."""

from __future__ import annotations

from tests.mutants.mutation import Edit, gated, mutation

_RUNNER = "runtime/runner.py"
_HAZARDS = "tests/test_hazards.py::test_"

MUTATIONS = (
    gated(
        "graph-by-shape",
        "B13",
        Edit(
            _RUNNER,
            "if plan.query_len is not None:\n            defers",
            "if all(row.num_tokens == self.query_len for row in plan.rows):\n"
            "            return GraphKey.uniform(self._bucket(len(plan.rows)), self.query_len)\n            defers",
        ),
        gate="G1",
        axis="graph family",
        silent=True,
        text="one recorder serves all families here, so only what is specialised later would go wrong",
    ),
    gated(
        "graph-of-too-few-rows",
        "B14",
        Edit("graphs/key.py", "        at = bisect_left(self.sizes, n)\n", "        at = max(bisect_left(self.sizes, n) - 1, 0)\n"),
        gate="G1",
        axis="graph family",
        text="rows beyond the captured size read and write what lies behind",
    ),
    gated(
        "propose-graph-for-the-decode-rows-only",
        "B14",
        Edit(
            _RUNNER,
            "self._propose_key(key, self._bucket(len(plan.rows)), plan.proposes)",
            "self._propose_key(key, self._bucket(max(1, sum(not row.is_prefilling for row in plan.rows))), plan.proposes)",
        ),
        gate="G1",
        axis="graph size",
        silent=True,
        text="these drafters read the live count; one that is bounded by its capture would skip the rows that end their prefill",
    ),
    gated(
        "one-graph-under-every-key",
        "B16",
        Edit("graphs/library.py", "self.graphs[key] = self._capture(key)", "self.graphs[key] = self._capture(ordered[0])"),
        gate="G1",
        axis="runs to its end",
        expects="MovedBufferError",
        text="a larger graph computes the same rows, slower",
    ),
    mutation(
        "launch-without-the-check-of-the-mirrors",
        "9c-35",
        "graphs/library.py",
        "        self._before_launch(graph)\n",
        "",
        test=_HAZARDS + "a_step_graph_does_not_run_on_inputs_that_were_not_uploaded",
        expects="DID NOT RAISE|TwoWritersError",  # what is refused behind the launch comes too late
        text="the inputs of the step before are valid inputs",
    ),
    mutation(
        "graph-that-hides-its-writes",
        "9c-36",
        "graphs/library.py",
        "return StepGraph(key, trace.reads, trace.writes, len(trace.nodes), executable)",
        "return StepGraph(key, trace.reads, trace.writes & {'block_tables'}, len(trace.nodes), executable)",
        test=_HAZARDS + "the_host_cannot_read_what_a_step_has_overtaken",
        expects="DID NOT RAISE",
        text="a host copy from before the step reads as if it were true",
    ),
    mutation(
        "uniform-graphs-of-any-size",
        "B14",
        "graphs/key.py",
        "return cls(family, num_requests, query_len, num_requests * query_len, defers=defers)",
        "return cls(family, num_requests, query_len, num_requests + query_len, defers=defers)",
        test=_HAZARDS + "every_uniform_graph_holds_whole_rows",
        text="the rows that do not fit lie behind the view, in memory that is there",
    ),
)
