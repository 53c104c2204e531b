"""Values, paths and files that nobody means well: each is one message and exit code 2, soon, whatever it stands for."""

from __future__ import annotations

import copy
import errno
import math
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from runtime import assembly
from runtime.checkpoint.cache import cache_folder
from runtime.checkpoint.checkpoint import open_checkpoint
from runtime.checkpoint.random import RandomCheckpoint
from runtime.checkpoint.source import resolve_source
from runtime.cli_session import system_reason
from runtime.config import load_config
from runtime.errors import CheckpointError, ConfigError, SourceError
from runtime.models.spec import from_hf_config
from runtime.prompts import check_prompt
from runtime.random_prompts import random_prompts
from runtime.sampling import SamplingParams
from runtime.shown_value import SHOWN_VALUE_CHARS, shown
from runtime.speculators.dflash_config import check_target, read_draft_config
from tests.tiny_checkpoint import TinyModel, TinyShape, tiny_config, write_tiny_checkpoint
from tests.tiny_command import refused, write_tiny_config
from tests.tiny_drafter import DrafterShape, drafter_config
from tests.tiny_engine import open_tiny

BOMB = "a: &a [x]\n" + "\n".join(f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]" for below, name in pairwise("abcdefghijkl"))
"""Twelve lines of YAML that stand for 9 ** 11 texts: whoever spells them out, copies or counts them does not come back."""


class Counted:
    def __init__(self) -> None:
        self.times = 0

    def __repr__(self) -> str:
        self.times += 1
        return "x"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("hostile"), TinyShape())


@pytest.fixture
def config(tmp_path: Path, model: TinyModel) -> str:
    return write_tiny_config(tmp_path, model.path)


@pytest.mark.parametrize("value", [5, "a", None, True, 1.5, [1, "b", [None]], {"a": [1], 2: {}}, [], {}, (1, 2), [[]], {"a": {}}])
def test_a_short_value_is_shown_as_python_spells_it(value: object) -> None:
    assert shown(value) == repr(value)


def test_no_more_of_a_value_is_looked_at_than_is_shown() -> None:
    leaf = Counted()
    wide: Any = [leaf] * 10_000
    assert shown(wide).startswith("[x, x, x")
    assert leaf.times < SHOWN_VALUE_CHARS
    holds_itself: Any = {"a": []}
    holds_itself["a"].append(holds_itself)
    nested: Any = "x"
    for _ in range(12):
        nested = {"y": [nested] * 9}
    for endless in (holds_itself, nested, "x" * 5000, list(range(5000))):
        assert len(shown(endless)) == SHOWN_VALUE_CHARS
        assert shown(endless).endswith("...")
    assert shown(10**5000) == "an integer of thousands of digits"


@pytest.mark.parametrize(
    "place",
    [
        "run: {prompts: *l}", "run: {prompts: [*l]}", "run: {prompts: [{a: *l}]}", "run: {prompts: [[{role: *l, content: a}]]}",
        "sampling: {stop: *l}", "sampling: {logit_bias: {1: *l}}", "sampling: {temperature: *l}", "sampling: {bad_words: [*l]}",
        "speculator: {num_speculative_tokens: {1: *l}}", "graphs: {buckets: *l}", "scheduler: {block_size: *l}", "device: *l",
        "sampling: *l", "model: *l",
    ],
)  # fmt: skip
def test_a_few_lines_that_stand_for_gigabytes(tmp_path: Path, place: str) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(f"{BOMB}\n{place}\n" + ("" if place.startswith("model") else "model: {source: a}\n"))
    with pytest.raises(ConfigError, match="mistakes"):
        load_config(path)


def test_a_mapping_that_holds_itself() -> None:
    endless: dict[str, Any] = {"model": {"source": "a"}}
    endless["runner"] = endless
    with pytest.raises(ConfigError, match="a mapping in it holds itself"):
        load_config(endless)


@pytest.mark.parametrize("prompt", [{"a": 1}, [{"role": "user"}], [{"role": [1] * 99, "content": "a"}], [[1] * 99]], ids=str)
def test_a_prompt_that_is_none_is_shown_in_short(prompt: Any) -> None:
    with pytest.raises(Exception, match="must") as error:
        check_prompt(prompt, "prompt 1")
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(("text", "value"), [("1e-5", 1e-5), ("1E5", 1e5), ("-2.e+3", -2000.0), ("1.5e-3", 0.0015)])
def test_numbers_with_an_exponent_are_numbers(text: str, value: float) -> None:
    """For PyYAML alone 1e-5 is a text, and so was what --min-p 0.00001 became on its way."""
    assert load_config({"model": {"source": "a"}}, [f"sampling.logit_bias={{1: {text}}}"] if abs(value) <= 100 else []).model
    assert load_config({"model": {"source": text}}, ["model.source=1e-5x"]).model.source == "1e-5x"
    with pytest.raises(ConfigError, match=rf"scheduler.max_num_seqs = {value!r}: must be"):
        load_config({"model": {"source": "a"}}, [f"scheduler.max_num_seqs={text}"])
    assert load_config({"model": {"source": "a"}}, ["sampling.min_p=1e-5"]).sampling.min_p == 1e-5


@pytest.mark.parametrize(
    ("path", "reason"),
    [("~nobody-by-this-name/x", "~nobody-by-this-name is nobody's home folder here"), ("a\0b", "a path holds no NUL character")],
)
def test_paths_that_are_none(
    path: str, reason: str, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reason in refused(capsys, "run", path)
    assert f"{reason}; give a file" in refused(capsys, "run", config, "--prompt-file", path)
    with pytest.raises(SourceError, match=f"{reason}; give a path, pypi:"):
        resolve_source(path)
    drafted = tmp_path / "drafted.yaml"
    drafted.write_text(yaml.safe_dump({"model": {"source": "a"}, "speculator": {"method": "dflash", "draft_source": path}}))
    assert load_config(drafted).speculator.draft_source == (path if path[0] == "~" else str(tmp_path / path))
    if path[0] == "~":  # no environment holds a NUL
        monkeypatch.setenv("DRAFTGRAPH_CACHE", path)
        with pytest.raises(SourceError, match=f"DRAFTGRAPH_CACHE = .*{reason}"):
            cache_folder()


def test_a_source_whose_name_is_too_long() -> None:
    with pytest.raises(SourceError, match=r"model\.source = a+: File name too long; give a path"):
        resolve_source("a" * 5000)
    with pytest.raises(SourceError, match="no such file or folder"):
        resolve_source(f"{__file__}/below")


def test_a_source_that_is_neither_file_nor_folder() -> None:
    with pytest.raises(CheckpointError, match="/dev/null: neither a file nor a folder"):
        open_checkpoint("/dev/null")


def test_an_option_of_a_random_model_given_twice() -> None:
    with pytest.raises(SourceError, match="layers is given twice; leave one of them out"):
        RandomCheckpoint("random:tiny?layers=1&layers=2")


@pytest.mark.parametrize(
    "override", ["logit_bias={300: 1}", "allowed_token_ids=[7, 999]", "stop_token_ids=[300]", "bad_words=[[300]]"], ids=str
)
def test_defaults_that_no_model_of_this_vocabulary_takes(
    override: str, config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told before weights are read and graphs are captured, not by the first request."""
    monkeypatch.setattr(assembly, "upload_model", lambda *_, **__: pytest.fail("weights were read"))
    message = refused(capsys, "info", config, "-q", "--set", f"sampling.{override}")
    assert message.startswith(f"error: sampling.{override.partition('=')[0]}: token id ")
    assert "is outside the vocabulary of 300 (ids 0..299)" in message


STRANGE: list[Any] = [
    None, True, 5, -1, 0, 2**31, 2**63, 10**30, -1.5, 1e308, math.inf, math.nan, "x", "silu", [], [0], [0, 0], [-1, 5], ["a"], [[]],
    {}, {"a": 1}, {"rope_type": "yarn", "factor": 1e308, "original_max_position_embeddings": 2**31 - 1}, {"rope_type": "llama3"},
]  # fmt: skip
OPTIONAL = (
    "is_causal", "layer_types", "sliding_window", "use_swa", "rope_parameters", "rope_scaling", "rope_theta", "attention_bias",
    "logit_scale", "final_logit_softcapping", "quantization_config", "draft_vocab_size", "target_hidden_size", "num_target_layers",
)  # fmt: skip


def strange(config: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """One key or two, of the object or of one in it, gone or something else."""
    config = copy.deepcopy(config)
    for _ in range(rng.choice((1, 1, 2))):
        inner = config.get("dflash_config") if rng.random() < 0.3 else None
        values = inner if isinstance(inner, dict) and inner else config
        key = rng.choice([*values, *OPTIONAL])
        if rng.random() < 0.15:
            values.pop(key, None)
        else:
            values[key] = rng.choice(STRANGE)
    return config


@pytest.mark.parametrize("kind", ["target", "dflash", "dflash2"])
def test_a_strange_configuration_of_a_checkpoint_is_read_or_refused(kind: str) -> None:
    shape, rng = TinyShape(num_layers=4), random.Random(1)
    target = from_hf_config(tiny_config(shape))
    drafter = drafter_config(shape, DrafterShape(version=2 if kind == "dflash2" else 1))
    outcomes: Counter[str] = Counter()
    for _ in range(8000):
        try:
            if kind == "target":
                from_hf_config(strange(tiny_config(shape), rng))
            else:
                check_target(read_draft_config(strange(drafter, rng)), target, 3, "drafter")
            outcomes["read"] += 1
        except CheckpointError:
            outcomes["refused"] += 1
    assert min(outcomes["read"], outcomes["refused"]) > 1000


def test_random_prompts_that_leave_no_room(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = "--input-len 64: with a new token above scheduler.max_model_len = 64; lower it, or raise the limit"
    assert message in refused(capsys, "bench", config, "--input-len", "64")
    engine = SimpleNamespace(scheduler=SimpleNamespace(max_model_len=64), info=lambda: {"model": {"vocab_size": 300}})
    with pytest.raises(ConfigError, match=message):
        random_prompts(engine, 1, 64)
    with pytest.raises(ConfigError, match="--input-len 1000000000000: with a new token"):
        random_prompts(engine, 1, 10**12)
    first, second = random_prompts(engine, 2, 63)
    assert (len(first), len(second)) == (63, 63)
    assert first != second
    assert [first, second] == random_prompts(engine, 2, 63)


def test_several_answers_to_a_prompt_are_not_timed(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.cli_bench.open_engine", lambda *_: pytest.fail("the engine was opened"))
    several = ["--set", "sampling.n=2", "--set", "sampling.temperature=1"]
    assert "sampling.n = 2: prompts are timed with one sequence each" in refused(capsys, "bench", config, *several)


def test_more_steps_than_tokens_can_be_counted(model: TinyModel) -> None:
    from runtime.profile.collectors import Collector, ReplayLog
    from runtime.profile.workload import Workload

    with open_tiny(model.path) as engine, pytest.raises(ConfigError, match="--steps = 1000000000: with 4 tokens a step"):
        Workload([[5]], 1, 10**9).run(engine, ReplayLog(Collector()), SamplingParams())


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "cannot write the output: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/a/b"), "/a/b: Permission denied"),
    ],
)
def test_what_the_system_refuses_is_named(error: OSError, text: str) -> None:
    assert system_reason(error) == text
