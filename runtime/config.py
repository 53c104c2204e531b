"""RunConfig: everything a run is told, read from YAML, frozen, and checked before a model is opened.

Every key, with type, default and meaning, stands in configs/reference.yaml. Unknown keys are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from runtime.config_errors import describe
from runtime.config_file import as_written, merge, parse_override, read_yaml
from runtime.config_values import (
    Acceptance,
    AutoCount,
    BlockSize,
    Buckets,
    DraftCounts,
    Items,
    LogitBias,
    OptionalItems,
    Prompts,
    behind_key,
)
from runtime.errors import ConfigError, SamplingError
from runtime.sampling import SamplingParams
from runtime.shown_value import shown

MOST_WHEN_AUTO = 7

_SCHEME = re.compile(r"(pypi|hf|random):")


MAX_NUM_SEQS = 4096


class Section(BaseModel):
    """Base of every section: frozen, no unknown key, no silent conversion ("8" is not 8, 1 is not true)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _empty_section(cls, data: Any) -> Any:
        return {} if data is None else data  # "runner:" with nothing below it, all keys commented out


class ModelConfig(Section):
    """The checkpoint and the type its weights are held in."""

    source: str = Field(min_length=1)
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    revision: str | None = None


class MirrorConfig(Section):
    """Where the two copies of a value that both host and device use live."""

    policy: Literal["auto", "discrete", "integrated"] = "auto"
    poison: bool = False


class RunnerConfig(Section):
    """How far the host runs ahead. The YAML key `async` is the attribute `async_`."""

    async_: bool = Field(default=True, alias="async")
    steps_in_flight: int = Field(default=2, ge=2, le=8)
    cpu_threads: AutoCount = "auto"


class GraphsConfig(Section):
    """Which step shapes become graphs."""

    mode: Literal["graph", "eager"] = "graph"
    ops: Literal["auto", "plain", "fused"] = "auto"
    overlap: bool = True
    buckets: Buckets = "auto"
    token_buckets: Buckets = "auto"
    dot: str | None = Field(default=None, min_length=1)


class SchedulerConfig(Section):
    """Sizes of the batch and of the KV cache. Lengths in tokens, `num_blocks` in blocks."""

    max_num_seqs: int = Field(default=8, ge=1, le=MAX_NUM_SEQS)
    max_model_len: AutoCount = "auto"
    max_num_batched_tokens: int = Field(default=512, ge=1)
    block_size: BlockSize = 16
    num_blocks: AutoCount = "auto"


class SpeculatorConfig(Section):
    """Who proposes drafts. `k` is what the rest of the program reads."""

    method: Literal["none", "ngram", "dflash"] = "none"
    draft_source: str | None = Field(default=None, min_length=1)
    num_speculative_tokens: DraftCounts = 4
    ngram_min: int = Field(default=1, ge=1)
    ngram_max: int = Field(default=4, ge=1)
    verification: Literal["standard", "block"] = "standard"
    acceptance: Acceptance = "real"

    @property
    def k(self) -> int:
        """Most drafts that a step verifies per request; 0 means no speculation."""
        if self.method == "none":
            return 0
        asked = self.num_speculative_tokens
        return MOST_WHEN_AUTO if asked == "auto" else max(asked.values()) if isinstance(asked, dict) else asked

    @property
    def ranges(self) -> dict[int, int] | None:
        """Smallest number of requests -> drafts; None where there is one number, or it is chosen from what pays."""
        asked = self.num_speculative_tokens
        return asked if isinstance(asked, dict) and self.k else None

    @property
    def adapts(self) -> bool:
        """The number of drafts is chosen from what pays."""
        return self.num_speculative_tokens == "auto" and self.k > 0

    @property
    def pauses(self) -> bool:
        """Some steps verify no drafts."""
        return self.adapts or (self.ranges is not None and 0 in self.ranges.values())

    @property
    def synthetic_acceptance(self) -> float | None:
        """The rate at which drafts are accepted whatever the target says; None where the target decides."""
        kind, _, rate = self.acceptance.partition(":")
        return float(rate) if kind == "synthetic" and self.k else None


_SCALARS = (
    "temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", "min_tokens", "include_stop_str_in_output", "ignore_eos",
    "repetition_penalty", "presence_penalty", "frequency_penalty", "n", "logprobs", "prompt_logprobs",
)  # fmt: skip


class SamplingConfig(Section):
    """Defaults of every request; types and ranges are checked by SamplingParams."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 128
    min_tokens: int = 0
    stop: Items = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: Items = ()
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: LogitBias = ()
    allowed_token_ids: OptionalItems = None
    bad_words: Items = ()
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @field_validator("stop", "stop_token_ids", "allowed_token_ids", "bad_words")
    @classmethod
    def _of_items(cls, value: Any, info: ValidationInfo) -> Any:
        return cls._in_range(value, info)

    @field_validator(*_SCALARS, mode="plain")
    @classmethod
    def _in_range(cls, value: Any, info: ValidationInfo) -> Any:
        """One value alone, so that each mistake has its line; what contradicts another is told by `params`."""
        name = str(info.field_name)
        others: dict[str, dict[str, Any]] = {"n": {"temperature": 1.0}, "min_tokens": {"max_tokens": 2**31 - 1}}
        try:
            return getattr(SamplingParams(**{name: value}, **others.get(name, {})), name)
        except SamplingError as error:
            raise PydanticCustomError("sampling", "{text}", {"text": behind_key(name, str(error))}) from error

    def params(self) -> SamplingParams:
        """The same values as SamplingParams. Raises SamplingError."""
        return SamplingParams(**dict(self))

    def params_to_time(self) -> SamplingParams:
        """The same for a command that times prompts. Raises ConfigError for more than one sequence of each."""
        if self.n > 1:
            raise ConfigError(f"sampling.n = {self.n}: prompts are timed with one sequence each; set sampling.n to 1")
        return self.params()


class PromptsConfig(Section):
    """What `draftgraph run` answers when the command line gives no prompt."""

    prompts: Prompts = ()
    system: str | None = None
    chat: bool = True
    stream: bool = True


class RunConfig(Section):
    """A whole configuration. Build it with `load_config`, which names every mistake at once."""

    model: ModelConfig
    device: Literal["auto", "cuda", "cpu", "simulator"] = "auto"
    mirror: MirrorConfig = MirrorConfig()
    runner: RunnerConfig = RunnerConfig()
    graphs: GraphsConfig = GraphsConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    speculator: SpeculatorConfig = SpeculatorConfig()
    numerics: Literal["fast", "batch_invariant"] = "fast"
    seed: int = Field(default=0, ge=0, lt=2**63)
    sampling: SamplingConfig = SamplingConfig()
    run: PromptsConfig = PromptsConfig()

    @model_validator(mode="after")
    def _check_together(self) -> RunConfig:
        if problems := _contradictions(self):
            # Not a ValueError: pydantic passes it on as it is, one line for each problem.
            raise ConfigError("\n".join(problems))
        return self

    def as_dict(self) -> dict[str, Any]:
        """The configuration with its YAML names, ready for `load_config` or JSON."""
        # pydantic warns of the bucket tuples because the strict union expects no list in their place.
        return self.model_dump(mode="json", by_alias=True, warnings=False)


def _contradictions(config: RunConfig) -> list[str]:
    """Rules between keys that need no model; what needs one is checked where the model is opened."""
    problems: list[str] = []
    scheduler, speculator = config.scheduler, config.speculator
    rows = 1 + speculator.k
    if rows > scheduler.max_num_batched_tokens:
        asked, budget = speculator.num_speculative_tokens, scheduler.max_num_batched_tokens
        most = f"up to {speculator.k} drafts, and " if speculator.k != asked else ""
        fewer = f"set a number of {budget - 1} or less" if budget > 1 else "set speculator.method to none"
        problems.append(
            f"speculator.num_speculative_tokens = {shown(asked)}: {most}verifying one request takes {rows} tokens, above "
            f"scheduler.max_num_batched_tokens = {budget}; raise that to {rows}, or {fewer}"
        )
    if scheduler.max_model_len != "auto" and scheduler.max_model_len < 2:
        problems.append("scheduler.max_model_len = 1: must hold a prompt token and one new token; set at least 2")
    if speculator.method == "dflash" and speculator.draft_source is None:
        problems.append("speculator.draft_source: missing; method = dflash needs a folder, hf:ORG/NAME or random:dflash2")
    if speculator.ngram_min > speculator.ngram_max:
        problems.append(
            f"speculator.ngram_min = {speculator.ngram_min}: above speculator.ngram_max = {speculator.ngram_max}"
        )
    if config.run.system is not None and not config.run.chat:
        problems.append("run.system is set but run.chat = false: a plain prompt has no system turn; remove one of them")
    try:
        config.sampling.params()
    except SamplingError as error:
        problems.append(f"sampling.{error}")
    return problems


def _beside(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """A drafter that a file names by a relative path lies beside that file, wherever the program was started."""
    speculator = data.get("speculator")
    source = speculator.get("draft_source") if isinstance(speculator, dict) else None
    if not isinstance(source, str) or not source or _SCHEME.match(source) or source.startswith("~") or Path(source).is_absolute():
        return data
    return merge(data, {"speculator": {"draft_source": str(path.parent / source)}})


def _has_sections(data: Mapping[str, Any]) -> bool:
    """Every section that is written is a mapping, or empty."""
    kinds = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    sections = [name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Section)]
    return all(data.get(name) is None or isinstance(data[name], Mapping) for name in sections)


ConfigSource: TypeAlias = "str | PathLike[str] | Mapping[str, Any] | RunConfig"


def load_config(source: ConfigSource, overrides: Sequence[str] = (), **keywords: Any) -> RunConfig:
    """Reads a configuration and applies overrides, later ones winning.

    source     path of a YAML file, a mapping of the same shape, or a RunConfig to change; a relative speculator.draft_source of a
               file is taken from the file's folder, any other from the working folder
    overrides  "a.b=c" strings as `--set` takes them, c parsed as YAML
    keywords   sections as dicts or dotted keys with two underscores for the dot:
               load_config(p, device="cpu", scheduler={"max_num_seqs": 2}, runner__async=False)

    Raises ConfigError, which lists every mistake with its dotted key, its value and what is allowed.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides = {shown(overrides)}: must be a list of texts, as in ['device=cpu']")
    if isinstance(source, RunConfig):
        data, name = source.as_dict(), "configuration"
    elif isinstance(source, Mapping):
        try:
            data, name = merge({}, as_written(source)), "configuration"
        except RecursionError:
            raise ConfigError("configuration: a mapping in it holds itself") from None
    elif not isinstance(source, str | PathLike):
        wanted = "must be the path of a YAML file, a mapping of its shape or a RunConfig"
        raise ConfigError(f"configuration = {shown(source)}: {wanted}")
    else:
        data, name = _beside(read_yaml(source), Path(source)), str(source)
    for text in overrides:
        # A section that is none any more is refused below, before an override of a key in it makes it one again.
        if not _has_sections(data):
            break
        data = merge(data, parse_override(text))
    for key, value in keywords.items():
        try:
            value = as_written(value)
        except RecursionError:
            raise ConfigError(f"{key}: a mapping in it holds itself") from None
        for part in reversed(key.split("__")):
            value = {part: value}
        data = merge(data, value)
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        problems = describe(error, RunConfig)
    except ConfigError as error:
        problems = str(error).split("\n")
    count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
    raise ConfigError("\n  ".join([f"{name}: {count}", *problems]))
