"""What can be known before weights are read and graphs are captured is told by then: requests that cannot be taken, and places that
cannot be written."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from runtime import assembly
from runtime.cli_usage import tool_exit_code
from runtime.errors import CapacityError, ConfigError, PromptError, SamplingError
from runtime.intake import Intake
from runtime.output_path import refuse_unwritable, writable_folder, write_text
from runtime.sampling import SamplingParams
from tests.tiny_checkpoint import TinyModel, TinyShape, write_tiny_checkpoint
from tests.tiny_command import refused, write_tiny_config
from tests.tiny_engine import open_tiny

LONG, OUTSIDE = [5] * 64, [5, 300]
_AUTO = "scheduler.max_model_len=auto"
ARMS = ("--arms", "runner.async=true", "runner.async=false")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("early"), TinyShape())


@pytest.fixture
def config(tmp_path: Path, model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whoever reads weights of it fails."""
    monkeypatch.setattr(assembly, "upload_model", lambda *_, **__: pytest.fail("weights were read"))
    return write_tiny_config(tmp_path, model.path)




# ---- requests


@pytest.mark.parametrize(
    "command",
    [["run"], ["bench", "--repeats", "1"], ["compare", *ARMS], ["profile", "--steps", "4"]],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (LONG, "prompt {}: 64 tokens and one new token exceed max_model_len = 64; shorten the prompt"),
        (OUTSIDE, "prompt {}: token id 300 is outside the vocabulary of 300 (ids 0..299)"),
        ([{"role": "user", "content": "hello"}], "prompt {}: is a chat, but the model has no chat template"),
    ],
    ids=["long", "outside", "chat"],
)
def test_a_prompt_that_cannot_be_taken(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], prompt: Any, message: str
) -> None:
    file = tmp_path / "prompts.json"
    prompts = [prompt] if command[0] == "profile" else ["hello", prompt]
    file.write_text(json.dumps(prompts))
    said = refused(capsys, command[0], config, *command[1:], "--prompt-file", str(file), "-q")
    assert message.format(len(prompts)) in said


def test_a_prompt_of_the_file_is_called_by_its_line(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text('"hello"\n{"prompt": "hello", "stop_token_ids": [999]}\n')
    said = refused(capsys, "run", config, "--prompt-file", str(file), "-q")
    assert f"prompt file {file}: line 2: stop_token_ids: token id 999 is outside the vocabulary" in said


def test_a_pool_that_a_prompt_outgrows(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "run", config, "-q", "-p", "x" * 24, "--set", "scheduler.num_blocks=2")
    assert "tokens and one new token need" in said
    assert "KV blocks of 4 positions, above scheduler.num_blocks = 2" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--input-len", "64", "--set", "scheduler={num_blocks: 16, block_size: 4}"], "--input-len 64"),
        (["bench", "--input-len", "200", "--output-len", "57", "--set", _AUTO], "lower --output-len to 56"),
        (["bench", "--max-tokens", "60", "--ignore-eos"], "prompt 1: its 5 tokens and 60 new ones"),
        (["compare", *ARMS, "--input-len", "200", "--output-len", "57", "--set", _AUTO], "lower --output-len to 56"),
        (["profile", "--steps", "60"], "--steps = 60: with 1 tokens a step a request may grow by 70 tokens, and 59 are left"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_answers_that_have_no_room(config: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert message in refused(capsys, arguments[0], config, *arguments[1:], "-q")


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        (_AUTO.replace("auto", "64"), "are above scheduler.max_model_len = 64"),
        ("speculator.method=dflash speculator.draft_source=/nowhere", "speculator.draft_source = /nowhere: no such file or folder"),
        ("model.source=/nowhere.gguf", "model.source = /nowhere.gguf: no such file or folder"),
        ("device=cpu model.dtype=bfloat16", "model.dtype = bfloat16: device = cpu computes in float32"),
    ],
    ids=lambda value: value.split("=")[0],
)
def test_an_arm_that_comes_second(config: str, capsys: pytest.CaptureFixture[str], arm: str, message: str) -> None:
    """It is opened once the first has been measured against itself, and is looked at before."""
    assert message in refused(capsys, "compare", config, "--arms", _AUTO, arm, "--output-len", "60", "-q")


def test_an_answer_that_a_stop_may_end_is_waited_for(model: TinyModel) -> None:
    from runtime.cut_short import refuse_untimed

    seen: list[Intake] = []
    with open_tiny(model.path, k=0, expects=seen.append):
        (intake,) = seen
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    with pytest.raises(ConfigError, match="prompt 2: its 5 tokens and 60 new ones"):
        refuse_untimed(intake, [[5] * 4, [5] * 5], params)
    for may_end in (SamplingParams(max_tokens=60), SamplingParams(max_tokens=60, ignore_eos=True, stop=("x",))):
        refuse_untimed(intake, [[5] * 5], may_end)


def test_an_intake_takes_all_requests_or_none(model: TinyModel) -> None:
    seen: list[Intake] = []
    with open_tiny(model.path, k=0, scheduler__num_blocks=8, expects=seen.append) as engine:
        (intake,) = seen
        assert intake.max_model_len == 32 == engine.scheduler.max_model_len
        greedy = SamplingParams()
        assert intake.requests([[5], [6, 7]], greedy) == [([5], greedy), ([6, 7], greedy)]
        with pytest.raises(PromptError, match="prompt 2: token id 300 is outside"):
            intake.requests([[5], OUTSIDE], greedy)
        with pytest.raises(CapacityError, match="second: 32 tokens and one new token need 9 KV blocks of 4 positions"):
            intake.requests([[5], [5] * 32], greedy, ["first", "second"])
        with pytest.raises(SamplingError, match=r"prompt 2: params = 5: must be SamplingParams"):
            intake.requests([[5], [6]], [greedy, 5])  # type: ignore[list-item]
        with pytest.raises(SamplingError, match="2 entries for 1 prompt: give"):
            intake.requests([[5]], [greedy, greedy])
        with pytest.raises(CapacityError, match="prompt 2: 32 tokens"):
            next(engine.stream([[5], [5] * 32]))
        assert not engine.has_unfinished


# ---- places


@pytest.mark.parametrize(
    "command",
    [
        ["run", "--set", "graphs.dot=PLACE"],
        ["bench", "--json", "PLACE"],
        ["compare", *ARMS, "--json", "PLACE"],
        ["compare", *ARMS, "--record", "PLACE"],
        ["gates", "G3", "--record", "PLACE"],
        ["profile", "--out", "PLACE"],
    ],
    ids=lambda command: f"{command[0]} {command[-2].removeprefix('--')}",
)
@pytest.mark.parametrize("place", ["/proc/draftgraph", "FILE/below", "~nobody-by-this-name/x"])
def test_a_place_that_cannot_be_written(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], place: str
) -> None:
    (tmp_path / "file").touch()
    place = place.replace("FILE", str(tmp_path / "file"))
    options = [word.replace("PLACE", place) for word in command[1:]]
    said = refused(capsys, command[0], *([] if command[0] == "gates" else [config]), *options, "-q")
    reason = "nobody's home folder" if place.startswith("~") else "cannot be written: "
    assert said.startswith("error: ")
    assert f"{place}: {reason}" in said or f"{place}: ~nobody-by-this-name is {reason}" in said


def test_a_file_of_a_profile_that_cannot_be_written(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out" / "trace.json").mkdir(parents=True)
    said = refused(capsys, "profile", config, "-q", "--out", str(tmp_path / "out"))
    assert "trace.json: cannot be written: Is a directory" in said


@pytest.mark.parametrize("tool", ["bench_kernels", "bench_drafter"])
def test_a_tool_beside_the_command_says_so_too(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before it looks for a GPU."""
    main = import_module(f"runtime.{tool}").main
    arguments = [*(["x.yaml"] if tool == "bench_drafter" else []), "--json", "/proc/draftgraph"]
    assert tool_exit_code(lambda: main(arguments)) == 2
    assert "--json /proc/draftgraph: cannot be written" in capsys.readouterr().err


def test_what_is_proven_writable_is_left_as_it_was(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept.json", tmp_path / "link.json"
    kept.write_text("kept")
    link.symlink_to(tmp_path / "target.json")
    for place in (kept, link, tmp_path / "new.json", "-", None):
        refuse_unwritable("--json", place)
    writable_folder("--out", tmp_path / "a" / "b", ("kept.json",))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.json", "link.json"]
    assert kept.read_text() == "kept"
    assert link.is_symlink()
    write_text("--json", link, "written")
    assert (tmp_path / "target.json").read_text() == "written\n"


def test_a_pipe_is_not_opened_before_there_is_something_to_say(tmp_path: Path) -> None:
    """Opened and closed, it would end what its reader sees; without a reader it would not open."""
    os.mkfifo(tmp_path / "pipe")
    refuse_unwritable("--json", tmp_path / "pipe")
    (tmp_path / "pipe").chmod(0o400)
    if os.geteuid() != 0:  # root may write whatever it likes
        with pytest.raises(ConfigError, match="--json: cannot be written: Permission denied"):
            refuse_unwritable("--json", tmp_path / "pipe")


EMPTY = [
    (["run", ""], "config = : it is empty; give a YAML file"),
    (["run", "CONFIG", "--prompt-file", ""], "prompt file : it is empty; give a file"),
    (["run", "CONFIG", "--set", "model.source=''"], "model.source = '': must have at least 1 character"),
    (["run", "CONFIG", "--set", "graphs.dot=''"], "graphs.dot = '': must have at least 1 character"),
    (["bench", "CONFIG", "--json", ""], "--json : it is empty; name a place"),
    (["compare", "CONFIG", "--arms", "seed=1", "--arms", "seed=2", "--record", ""], "--record : it is empty; name a place"),
    (["profile", "CONFIG", "--out", ""], "--out : it is empty; name a place"),
    (["gates", "G4", "--record", ""], "--record : it is empty; name a place"),
    (["records", ""], "records = : it is empty; name a folder of records"),
]


@pytest.mark.parametrize(("arguments", "message"), EMPTY, ids=[" ".join(arguments) for arguments, _ in EMPTY])
def test_nothing_is_no_name_of_the_working_folder(
    config: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """What a shell makes of a variable that is not set: results would land there, or what lies there would be read."""
    assert message in refused(capsys, *(config if argument == "CONFIG" else argument for argument in arguments))


def test_a_folder_below_home_is_written_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert writable_folder("--record ~/r", "~/r") == tmp_path / "r"


@pytest.mark.parametrize("refuse", [refuse_unwritable, writable_folder])
def test_a_place_that_cannot_even_be_looked_at_is_told_by_its_option(refuse: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--json: cannot be written: File name too long; name another place"):
        refuse("--json", tmp_path / ("x" * 300))
    (tmp_path / "closed").mkdir(mode=0o000)
    if os.geteuid() != 0:  # root may search any folder
        with pytest.raises(ConfigError, match="--json: cannot be written: Permission denied"):
            refuse("--json", tmp_path / "closed" / "x.json")


def test_a_graph_has_a_picture_of_its_own(model: TinyModel, tmp_path: Path) -> None:
    """A sampled step and a greedy one of the same rows are two graphs."""
    folder = tmp_path / "graphs"
    with open_tiny(model.path, graphs__dot=str(folder), sampling__temperature=1.0) as engine:
        num_graphs = len(engine.runner.library.traces)  # type: ignore[attr-defined]
    drawn = {path.name for path in folder.iterdir()}
    assert len(drawn) == num_graphs
    assert {"verify-R-4-T-16-q-4.dot", "verify-R-4-T-16-q-4-sampled.dot"} <= drawn
    assert not [name for name in drawn if " " in name]
