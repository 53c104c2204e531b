"""What a run reports: the output of each request, totals, the JSON object of `--json`, the last line, `info`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from runtime.metrics import AcceptanceStats, RequestTimes
from runtime.plan import FinishReason
from runtime.prompts import Prompt
from runtime.shown_value import counted

if TYPE_CHECKING:
    from runtime.logprobs import TokenLogprobs


@dataclass(frozen=True)
class RequestOutput:
    """A request that has ended.

    prompt        as it was given: a text, a chat, or token ids
    token_ids     tokens produced, the one that ended the request included
    text          their text; ends before a stop string, without control tokens
    ttft_s        seconds from the call to the first token, queueing included; None without a token
    tpot_s        seconds per token after the first; None below two tokens
    acceptance    of this request's drafts; None when nothing speculates
    sample        which of the n sequences of its prompt it is, from 0
    seed          of a sampled request: the same parameters with this seed give the same tokens; None for a greedy one
    logprobs      of each token of token_ids; None when they were not asked for
    prompt_logprobs  of each token of prompt_token_ids, None for the first (and for what a cancelled request did not reach); None
                  when they were not asked for
    """

    request_id: str
    prompt: Prompt
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    ttft_s: float | None = None
    tpot_s: float | None = None
    acceptance: AcceptanceStats | None = None
    sample: int = 0
    seed: int | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The request's entry in `results`; what does not apply (acceptance without speculation, seed of a greedy request, logprobs
        that nobody asked for) is absent, not zero."""
        result: dict[str, Any] = {
            "prompt": self.prompt,
            "text": self.text,
            "token_ids": [int(token) for token in self.token_ids],
            "finish_reason": self.finish_reason,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
        }
        if self.seed is not None:
            result["sample"], result["seed"] = self.sample, self.seed
        if self.logprobs is not None:
            result["logprobs"] = [token.as_dict() for token in self.logprobs]
        if self.prompt_logprobs is not None:
            result["prompt_logprobs"] = [None if token is None else token.as_dict() for token in self.prompt_logprobs]
        if speculates(self.acceptance):
            result["acceptance"] = self.acceptance.as_dict()
        return result


class StreamEvent(NamedTuple):
    """One step of one request: its new tokens and the text that they complete.

    index     place of the request in the call, from 0: prompt by prompt, the n sequences of a prompt one after the other
    text      may be "" (half a character, or the possible beginning of a stop string, is held back)
    output    set on the last event of the request, whose `text` completes what came before
    prompt    place of its prompt in the call, from 0
    sample    which of the n sequences of that prompt it is, from 0
    logprobs  of each of the tokens, where they were asked for
    """

    index: int  # type: ignore[assignment]  # in the place of the method that a tuple has
    text: str
    token_ids: tuple[int, ...] = ()
    output: RequestOutput | None = None
    prompt: int = 0
    sample: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()


class RunRecord:
    """Collects the events of one call, so that an interrupted run still has what was produced so far.

    `prompts`: of each request of the call, so that one with n = 3 stands there three times. Times are seconds of one clock; all
    prompts count as arriving at `start`.
    """

    def __init__(self, prompts: Sequence[Prompt], start: float) -> None:
        self.start = start
        self.end = start
        self._prompts = prompts
        self._pieces: list[list[str]] = [[] for _ in prompts]
        self._tokens: list[list[int]] = [[] for _ in prompts]
        self.token_times: list[list[float]] = [[] for _ in prompts]  # [prompts][events with tokens]
        self._outputs: list[RequestOutput | None] = [None for _ in prompts]

    def add(self, event: StreamEvent, now: float) -> None:
        """Take what the engine said at time `now`, in seconds."""
        self._pieces[event.index].append(event.text)
        if event.token_ids:
            self._tokens[event.index].extend(event.token_ids)
            self.token_times[event.index].append(now)
        if event.output is not None:
            self._outputs[event.index] = event.output
        self.end = now

    @property
    def finished(self) -> bool:
        return all(output is not None for output in self._outputs)

    def outputs(self) -> list[RequestOutput]:
        """Of each prompt, in order. One that has not ended is "cancelled", with what it produced, as seen from here."""
        return [output or self._partial(index) for index, output in enumerate(self._outputs)]

    def totals(self) -> dict[str, Any]:
        """Counts, seconds, rates. Acceptance fields are absent, not zero, when nothing speculates."""
        return totals(self.outputs(), self.end - self.start)

    def as_dict(self) -> dict[str, Any]:
        """The one object that `--json` prints."""
        return {"results": [output.as_dict() for output in self.outputs()], "totals": self.totals()}

    def _partial(self, index: int) -> RequestOutput:
        tokens, seen = self._tokens[index], self.token_times[index]
        times = RequestTimes(self.start, seen[0] if seen else None, seen[-1] if seen else None, len(tokens))
        return RequestOutput(
            request_id=str(index),
            prompt=self._prompts[index],
            prompt_token_ids=(),
            token_ids=tuple(tokens),
            text="".join(self._pieces[index]),
            finish_reason="cancelled",
            ttft_s=times.ttft_s,
            tpot_s=times.tpot_s,
        )


def speculates(stats: AcceptanceStats | None) -> TypeGuard[AcceptanceStats]:
    """Whether there is an acceptance to report: k = 0 has none, which is not the same as zero."""
    return stats is not None and stats.num_speculative_tokens > 0


def total_acceptance(outputs: Sequence[RequestOutput]) -> AcceptanceStats | None:
    """Acceptance over all requests (sums of counts, not a mean of rates); None when nothing speculates."""
    parts = [output.acceptance for output in outputs if speculates(output.acceptance)]
    if not parts:
        return None
    total = AcceptanceStats(parts[0].num_speculative_tokens, parts[0].synthetic)
    for part in parts:
        total.merge(part)
    return total


def totals(outputs: Sequence[RequestOutput], duration_s: float) -> dict[str, Any]:
    """Totals of requests that took `duration_s` together. Prompt tokens of an interrupted request are not known."""
    completion_tokens = sum(len(output.token_ids) for output in outputs)
    result: dict[str, Any] = {
        "prompts": len(outputs),
        "prompt_tokens": sum(len(output.prompt_token_ids) for output in outputs),
        "completion_tokens": completion_tokens,
        "duration_s": duration_s,
        "output_tokens_per_s": completion_tokens / duration_s if duration_s > 0 else None,
        "mean_ttft_s": _mean([output.ttft_s for output in outputs]),
        "mean_tpot_s": _mean([output.tpot_s for output in outputs]),
    }
    if acceptance := total_acceptance(outputs):
        if acceptance.synthetic is not None:
            result["acceptance"] = f"synthetic:{acceptance.synthetic:g}"
        result["num_speculative_tokens"] = acceptance.num_speculative_tokens
        result["num_drafts"] = acceptance.num_drafts
        result["num_draft_tokens"] = acceptance.num_draft_tokens
        result["num_accepted_tokens"] = acceptance.num_accepted_tokens
        result["mean_acceptance_length"] = acceptance.mean_acceptance_length
        result["per_position_acceptance"] = acceptance.per_position_acceptance
    return result


def stats_line(values: Mapping[str, Any], num_prompts: int | None = None) -> str:
    """`totals` in one line: counts, TTFT, TPOT, tok/s, and acceptance when something speculates.

    num_prompts: where some were answered several times; None: each once.
    """
    answered = counted(values["prompts"], "prompt")
    if num_prompts not in (None, values["prompts"]):
        answered = f"{counted(values['prompts'], 'sequence')} of {counted(num_prompts, 'prompt')}"
    parts = [
        f"{answered}, {values['prompt_tokens']} prompt + "
        f"{values['completion_tokens']} new tokens in {values['duration_s']:.2f} s",
        f"TTFT {_milliseconds(values['mean_ttft_s'])}",
        f"TPOT {_milliseconds(values['mean_tpot_s'])}",
    ]
    if values["output_tokens_per_s"] is not None:
        parts.append(f"{values['output_tokens_per_s']:.1f} tok/s")
    if "mean_acceptance_length" in values:
        k, rates = values["num_speculative_tokens"], values["per_position_acceptance"]
        synthetic = f" ({values['acceptance']})" if "acceptance" in values else ""
        parts.append(f"acceptance length {values['mean_acceptance_length']:.2f} of {k + 1}{synthetic}")
        parts.append(f"per position {' '.join(f'{rate:.2f}' for rate in rates)}")
        parts.append(counted(values["num_drafts"], "draft"))
    return " | ".join(parts)


def lengths_line(draft_lengths: Mapping[str, Any]) -> str:
    """How many steps verified how many drafts, where that changes (runtime/draft_lengths.py)."""
    return "drafts a step: " + ", ".join(f"{k} in {steps}" for k, steps in draft_lengths["steps_by_k"].items())


LINE_CHARS = 120
"""Of a list that `info` shows in one line."""


def render_info(info: Mapping[str, Any]) -> str:
    """`Engine.info()` as indented lines, one value a line."""
    return "\n".join(_tree(info, ""))


def _tree(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:" if value else f"{indent}{key}: none"
            yield from _tree(value, indent + "  ")
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            yield f"{indent}{key}:"
            for item in value:
                lines = list(_tree(item, indent + "    ")) if isinstance(item, Mapping) else [f"{indent}    {item}"]
                yield f"{indent}  - {lines[0].lstrip()}" if lines else f"{indent}  -"
                yield from lines[1:]
        elif isinstance(value, list | tuple):
            line = f"{indent}{key}: {', '.join(map(str, value)) if value else 'none'}"
            several = [f"{indent}{key}:", *(f"{indent}  - {item}" for item in value)]
            yield from [line] if len(line) <= LINE_CHARS else several
        else:
            yield f"{indent}{key}: {'none' if value is None else value}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"
