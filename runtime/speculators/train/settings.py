"""TrainSettings: everything a training run is told, read from YAML, frozen, and checked before a model is opened."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from runtime.config import Section
from runtime.config_errors import describe
from runtime.config_file import merge, parse_override, read_yaml
from runtime.config_values import AutoCount
from runtime.errors import ConfigError

Temperatures = Annotated[tuple[float, ...], Field(strict=False, min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]
AnswerTokens = Annotated[int, Field(ge=2)]  # of one token nothing is learnt


class TargetSettings(Section):
    """The model that the drafter is for. `source` as in a run's model.source."""

    source: str = Field(min_length=1)


class DrafterSettings(Section):
    """Shape of the drafter. Heads, hidden and feed-forward size, norms and rotation are the target's."""

    version: Literal[1, 2] = 2
    start: str | None = None  # folder of a drafter to begin from: what fits is taken over, a new layer begins as the identity
    layers: int = Field(default=2, ge=1, le=64)
    taps: Annotated[tuple[int, ...], Field(strict=False)] = ()  # blocks of the target; () = five, evenly spaced
    block_size: int = Field(default=8, ge=2, le=64)
    mask_token_id: AutoCount = "auto"  # auto: the last control token of the vocabulary
    selector_rank: int = Field(default=64, ge=1, le=1024)
    selector_top_k: int = Field(default=16, ge=2, le=256)
    conv_kernel_size: int = Field(default=2, ge=1, le=8)
    conv_group_size: int = Field(default=16, ge=1)


class Sources(Section):
    """How often a batch of prompts comes from where, as weights.

    magpie    the target writes the user's turn from nothing but the template
    seeded    it completes a user's turn, from an opener or from the first words of a composed prompt
    template  composed prompts
    passage   tasks over passages of earlier answers: summarise, repeat, correct, translate ...
    file      prompts of the user's own (`data.prompts`)
    """

    magpie: float = Field(default=1.0, ge=0)
    seeded: float = Field(default=3.0, ge=0)
    template: float = Field(default=2.5, ge=0)
    passage: float = Field(default=1.5, ge=0)
    file: float = Field(default=2.0, ge=0)


class DataSettings(Section):
    """Text that the target writes. Generation ends at whichever of `seconds` and `max_tokens` comes first."""

    seconds: float = Field(default=120.0, gt=0)
    max_tokens: int = Field(default=16_000_000, ge=1)
    batch: int = Field(default=2048, ge=1)
    max_prompt_tokens: int = Field(default=160, ge=8)
    answer_tokens: Annotated[tuple[AnswerTokens, ...], Field(strict=False, min_length=1)] = (160, 160, 160, 320)  # in turn
    greedy_share: Share = 0.8  # of the answers; the rest is sampled at one of `answer_temperatures`
    answer_temperatures: Temperatures = (0.6, 0.8, 1.0)
    prompt_temperatures: Temperatures = (0.7, 0.8, 0.9, 1.0, 1.1)
    system_share: Share = 0.15  # prompts with a system turn of their own instead of the template's default
    prompts: str | None = None  # a file as `draftgraph run --prompt-file` reads it
    also: Annotated[tuple[str, ...], Field(strict=False)] = ()  # `documents` folders of other runs (--text-only) of this target
    sources: Sources = Sources()
    seed: int = 1


class TrainingSettings(Section):
    """The optimisation. It ends at whichever of `seconds` and `steps` comes first; schedules follow that share of it."""

    seconds: float | None = Field(default=None, gt=0)
    steps: int | None = Field(default=None, ge=1)
    row_length: int = Field(default=512, ge=32, le=65536)
    rows: int = Field(default=64, ge=1)  # packed rows of a step
    anchors: int = Field(default=64, ge=1)  # blocks of each row
    # The loop's anchors are tokens that were not foreseen. 0: all positions alike; 1: those only of which the target was unsure.
    surprising_anchors: Annotated[float, Field(ge=0, lt=1)] = 0.0
    short_blocks: Share = 0.2  # of the steps draft 5 .. block_size - 1 slots, so that a smaller k costs nothing
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = Field(default=1e-3, gt=0)
    final_rate: Share = 0.02  # of the learning rate, at the end of the cosine
    warmup: Share = 0.04
    clip: float = Field(default=1.0, gt=0)
    ema: float = Field(default=0.998, ge=0, lt=1)  # decay of the averaged weights, which are what is exported
    distil: Share = 0.5  # weight of the target's distribution against the token itself
    dpace_from: Share = 0.4  # share of the run after which D-PACE replaces the fixed weights of the slots
    dpace_alpha: Share = 0.5
    chunk: int = Field(default=1024, ge=1)  # blocks that pass the head at once
    taps_gib: float = Field(default=80.0, gt=0)  # memory for taps; data beyond it takes its turn in windows
    seed: int = 3

    @model_validator(mode="after")
    def _ends(self) -> TrainingSettings:
        if self.seconds is None and self.steps is None:
            raise ConfigError("training: give seconds or steps; nothing else ends it")
        return self


class ValidationSettings(Section):
    """Prompts that are never trained on, and how often acceptance is measured on them."""

    prompts: str | None = None  # YAML: {kind: [prompt, ...]}
    max_tokens: int = Field(default=128, ge=1)
    every_seconds: float = Field(default=20.0, gt=0)


class OutputSettings(Section):
    """Where everything goes. A folder that holds an interrupted run of the same settings is continued."""

    folder: str = Field(min_length=1)
    every_seconds: float = Field(default=60.0, gt=0)  # between checkpoints, each with an export


class TrainSettings(Section):
    """A whole training run. Build it with `load_settings`."""

    target: TargetSettings
    drafter: DrafterSettings = DrafterSettings()
    data: DataSettings = DataSettings()
    training: TrainingSettings
    validation: ValidationSettings = ValidationSettings()
    output: OutputSettings
    device: Literal["auto", "cuda", "cpu"] = "auto"


def load_settings(path: str | PathLike[str], overrides: Sequence[str] = ()) -> TrainSettings:
    """Settings of a YAML file with "a.b=c" overrides laid on it. Raises ConfigError that lists every mistake."""
    data = read_yaml(path, "training configuration")
    for text in overrides:
        data = merge(data, parse_override(text))
    try:
        return TrainSettings.model_validate(data)
    except ValidationError as error:
        problems = describe(error, TrainSettings)
    except ConfigError as error:
        problems = [str(error)]
    raise ConfigError("\n  ".join([f"{path}: {len(problems)} mistake{'s' * (len(problems) > 1)}", *problems]))
