"""Mistakes of a program that uses the engine: an error of ours with name, value and what it must be, and nothing is queued."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.config import load_config
from runtime.engine import Engine
from runtime.errors import ConfigError, DeviceError, DraftgraphError, PromptError, SamplingError
from runtime.sampling import SamplingParams
from tests.tiny_checkpoint import write_tiny_checkpoint
from tests.tiny_engine import LOOPING, open_tiny

THREE = SamplingParams(max_tokens=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("api") / "model", LOOPING).path


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with open_tiny(model) as opened:
        yield opened


def refused(call: Callable[[], object], kind: type[DraftgraphError]) -> str:
    with pytest.raises(DraftgraphError) as caught:
        call()
    assert type(caught.value) is kind
    assert len(str(caught.value)) < 250
    return str(caught.value)


PROMPTS = {
    "None": None,
    "a number": 5,
    "an object": object(),
    "bytes": b"abc",
    "a bytearray": bytearray(b"abc"),
    "a memoryview": memoryview(b"abc"),
    "a message": {"role": "user", "content": "hello"},
    "a class": str,
    "a scalar": np.array(3),
}


@pytest.mark.parametrize("prompts", PROMPTS.values(), ids=PROMPTS.keys())
def test_what_are_no_prompts(engine: Engine, prompts: Any) -> None:
    message = refused(lambda: engine.generate(prompts, THREE), PromptError)
    assert message.startswith("prompts = ")
    assert message.endswith(": must be a text, a chat (list of {role, content}), token ids, or a list of these")
    assert not engine.has_unfinished


ONE_OF_THEM = {
    "None": (["a", None], "prompt 2 = None: must be a text"),
    "a number behind a text": (["a", 1], "prompt 2 = 1: must be a text"),
    "a text behind an id": ([1, "a"], "prompt 1: element 1 = 'a' must be an integer token id"),
    "empty": ([[1], []], "prompt 2: empty; give at least one message or token id"),
    "nothing": ([], "prompts: empty; give at least one prompt"),
    "no array elements": (np.array([]), "prompts: empty"),
    "floats": (np.array([[1.0, 2.0]]), "prompt 1: element 0 = 1.0 must be an integer token id"),
    "truth": (np.array([True, False]), "prompt 1: element 0 = True must be an integer token id"),
    "below": ([-1], "prompt 1: token id -1 is outside the vocabulary of 300 (ids 0..299)"),
    "above": ([[1], [300]], "prompt 2: token id 300 is outside"),
    "far above": ([10**5000], "prompt 1: token id an integer of thousands of digits is outside"),
    "too deep": ([[[1]]], "prompt 1: element 0 = [1] must be an integer token id"),
    "too long": ([1] * 64, "prompt 1: 64 tokens and one new token exceed max_model_len = 64"),
}


@pytest.mark.parametrize(("prompts", "message"), ONE_OF_THEM.values(), ids=ONE_OF_THEM.keys())
def test_one_of_the_prompts(engine: Engine, prompts: Any, message: str) -> None:
    assert refused(lambda: engine.generate(prompts, THREE), PromptError).startswith(message)
    assert not engine.has_unfinished


def test_ids_come_in_every_container(engine: Engine) -> None:
    """One prompt, or several: lists, tuples, generators, and arrays of any library."""
    ids = [7, 8, 9]
    one = [output.token_ids for output in engine.generate(ids, THREE)]
    arrays = (np.array(ids), np.array(ids, np.uint8), array.array("i", ids), [np.array(ids)])
    for same in (tuple(ids), range(7, 10), iter(ids), *arrays):
        assert [output.token_ids for output in engine.generate(same, THREE)] == one
    for twice in ([ids, ids], (ids, ids), np.array([ids, ids]), (prompt for prompt in (ids, np.array(ids)))):
        assert [output.token_ids for output in engine.generate(twice, THREE)] == one * 2
    generation = engine.submit(np.array(ids), THREE)  # type: ignore[arg-type]
    while engine.has_unfinished:
        engine.step()
    assert generation.output is not None
    assert [generation.output.token_ids] == one


@pytest.mark.parametrize("params", [3, 0, "", False, {}, {"max_tokens": 3}, SamplingParams], ids=repr)
def test_what_are_no_parameters(engine: Engine, params: Any) -> None:
    """Also what is false, which would pass for parameters that nobody gave."""
    for call in (lambda: engine.generate("a", params), lambda: engine.submit("a", params)):
        assert refused(call, SamplingError).startswith("params = ")
    assert not engine.has_unfinished


@pytest.mark.parametrize("params", [[], [THREE], [THREE] * 3], ids=["none", "one", "three"])
def test_parameters_for_another_number_of_prompts(engine: Engine, params: Any) -> None:
    message = refused(lambda: engine.generate(["a", "b"], params), SamplingError)
    entries = "1 entry" if len(params) == 1 else f"{len(params)} entries"
    assert message == f"params has {entries} for 2 prompts: give one for all, or one for each"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["x"], "names has 1 entry for 2 prompts: give one for each"),
        ("xy", "names = 'xy': must be a list of texts, one for each prompt"),
        (3, "names = 3: must be a list of texts"),
        ([None, None], "names = [None, None]: must be a list of texts"),
    ],
)
def test_names_of_other_prompts(engine: Engine, names: Any, message: str) -> None:
    assert refused(lambda: list(engine.stream(["a", "b"], THREE, names=names)), PromptError).startswith(message)


def test_places_and_ids_of_requests(engine: Engine) -> None:
    for index in (None, "1", -1, True):
        assert refused(lambda: engine.submit("a", THREE, index=index), PromptError).startswith("index = ")  # type: ignore[arg-type] # noqa: B023
    generation = engine.submit("a", THREE)
    assert refused(lambda: engine.cancel(generation), PromptError).startswith("request_id = ")  # type: ignore[arg-type]
    assert engine.cancel(generation.request.request_id)
    assert not engine.cancel("nobody")


@pytest.mark.parametrize("source", [None, 3, [], b"x", True, dict], ids=repr)
def test_what_is_no_configuration(source: Any) -> None:
    message = refused(lambda: Engine.from_config(source), ConfigError)
    assert message.endswith(": must be the path of a YAML file, a mapping of its shape or a RunConfig")


def test_what_else_an_engine_is_opened_with(model: Path) -> None:
    settings = {"model": {"source": str(model)}, "device": "cpu"}
    assert refused(lambda: Engine.from_config(settings, progress=3), ConfigError) == "progress = 3: must be a function, or None"
    assert "expects = 3" in refused(lambda: Engine.from_config(settings, expects=3), ConfigError)  # type: ignore[arg-type]
    assert "on_device = 3: must be an open device" in refused(lambda: Engine.from_config(settings, on_device=3), DeviceError)
    assert "overrides = 'device=cpu'" in refused(lambda: load_config(settings, "device=cpu"), ConfigError)


def test_values_of_a_program_are_taken_as_a_file_has_them(model: Path) -> None:
    """A path is a text there, and NumPy's numbers are numbers."""
    numbers = {"max_num_seqs": np.int64(2), "max_model_len": np.int32(64)}
    config = load_config({"model": {"source": model}, "scheduler": numbers}, sampling__temperature=np.float32(0.5))
    assert (config.model.source, config.scheduler.max_num_seqs, config.scheduler.max_model_len) == (str(model), 2, 64)
    assert config.sampling.temperature == 0.5
    assert load_config(config, model__source=model, sampling__stop_token_ids=np.array([3, 4])).sampling.stop_token_ids == (3, 4)
    itself: dict[str, Any] = {}
    itself["scheduler"] = itself
    assert "holds itself" in refused(lambda: load_config({"model": {"source": "x"}}, scheduler=itself), ConfigError)
