"""One pass of a profile in a process of its own: `python -m runtime.profile.child REQUEST`, a JSON file of the parent.

The request names the file that receives the trace, or an error's text; a crash leaves neither.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from runtime.cli_session import open_engine
from runtime.config import load_config
from runtime.errors import DraftgraphError
from runtime.profile.one_pass import collector_of, run_pass
from runtime.profile.trace import Mode
from runtime.profile.workload import Workload


def main(request_file: str) -> None:
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    config = load_config(request["config"])
    workload = Workload(request["prompts"], request["warmup_steps"], request["steps"])
    try:
        collector = collector_of(Mode(request["mode"]))
        trace = run_pass(config, collector, workload, lambda expects: open_engine(config, request["quiet"], expects))
        answer: dict[str, Any] = {"trace": trace.as_dict()}
    except DraftgraphError as error:
        answer = {"error": str(error), "kind": type(error).__name__}
    Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
