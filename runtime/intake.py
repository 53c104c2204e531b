"""Intake: prompts and parameters become requests of one model, or are refused.

It is whole as soon as tokenizer and configuration are read. Whoever knows what it is going to ask lets the intake see it then
(`Expects`), so that a prompt that cannot be used costs no minute of reading weights and capturing graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from runtime.errors import CapacityError, PromptError, SamplingError
from runtime.prompts import Prompt, PromptEncoder
from runtime.resolve_sampling import ParamsResolver
from runtime.sampling import SamplingParams
from runtime.shown_value import counted, shown

Expects: TypeAlias = "Callable[[Intake], object]"
"""Sees the intake before weights are read, and raises what is wrong with the requests that will come."""


@dataclass(frozen=True)
class Intake:
    """
    Attributes:
        encoder: prompts to token ids.
        block_size: positions of a block of the KV pool.
        resolver: fits parameters to the model; None leaves them as they are.
        num_blocks: of the KV pool; None while nobody knows them, because `auto` asks what the weights leave.
    """

    encoder: PromptEncoder
    block_size: int
    resolver: ParamsResolver | None = None
    num_blocks: int | None = None

    @property
    def max_model_len(self) -> int:
        """Tokens of one request at most, prompt and answer together."""
        longest = self.encoder.max_model_len
        return longest if self.num_blocks is None else min(longest, self.num_blocks * self.block_size)

    def encode(self, prompt: Prompt, where: str) -> list[int]:
        """Token ids of a prompt. Raises PromptError or CapacityError that starts with `where`: it can never yield a token."""
        token_ids = self.encoder.encode(prompt, where)
        needed = -(-(len(token_ids) + 1) // self.block_size)
        if self.num_blocks is not None and needed > self.num_blocks:
            raise CapacityError(
                f"{where}: {len(token_ids)} tokens and one new token need {needed} KV blocks of {self.block_size} positions, above "
                f"scheduler.num_blocks = {self.num_blocks}; shorten the prompt or raise scheduler.num_blocks"
            )
        return token_ids

    def resolve(self, params: object) -> SamplingParams:
        """Parameters as the model takes them. Raises SamplingError."""
        if not isinstance(params, SamplingParams):
            raise SamplingError(f"params = {shown(params)}: must be SamplingParams, e.g. SamplingParams(max_tokens=32)")
        return params if self.resolver is None else self.resolver.resolve(params)

    def requests(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        names: Sequence[str] | None = None,
    ) -> list[tuple[list[int], SamplingParams]]:
        """Token ids and parameters of each prompt: of all of them, or of none.

        Args:
            params: for all prompts, or one for each.
            names: what messages call each prompt; None: "prompt 1" and so on.

        Raises:
            PromptError, CapacityError, SamplingError: the first that is wrong, by its name.
        """
        names = [f"prompt {number}" for number in range(1, len(prompts) + 1)] if names is None else names
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise PromptError(f"names = {shown(names)}: must be a list of texts, one for each prompt")
        if len(names) != len(prompts):
            entries, wanted = counted(len(names), "entry", "entries"), counted(len(prompts), "prompt")
            raise PromptError(f"names has {entries} for {wanted}: give one for each")
        resolved = []
        for name, one in zip(names, _params_of_each(params, len(prompts)), strict=True):
            try:
                resolved.append(self.resolve(one))
            except SamplingError as error:
                raise SamplingError(f"{name}: {error}") from error
        encoded = [self.encode(prompt, name) for prompt, name in zip(prompts, names, strict=True)]
        return list(zip(encoded, resolved, strict=True))


def _params_of_each(params: SamplingParams | Sequence[SamplingParams], count: int) -> Sequence[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or isinstance(params, str | bytes):
        raise SamplingError(f"params = {shown(params)}: must be SamplingParams, or a list of them, one for each prompt")
    if len(params) != count:
        entries, wanted = counted(len(params), "entry", "entries"), counted(count, "prompt")
        raise SamplingError(f"params has {entries} for {wanted}: give one for all, or one for each")
    return params
