"""One request on its way from tokens to text: detokenisation, stop strings, and the output when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.detokenizer import Detokenizer
from runtime.logprobs import TokenLogprobs
from runtime.plan import FinishReason, TokenUpdate
from runtime.prompts import Prompt
from runtime.report import RequestOutput, StreamEvent
from runtime.request import Request
from runtime.stop_strings import StopStrings
from runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class Place:
    """Which sequence of its call a generation is.

    index    from 0: prompt by prompt, the n sequences of a prompt one after the other
    prompt   of the prompt in its call, from 0
    sample   among the n sequences of the prompt, from 0
    """

    index: int
    prompt: int
    sample: int = 0


class Generation:
    """What the engine keeps of a request beside what the scheduler keeps.

    Attributes:
        place: which sequence of its call it is.
        events: what happened and was not yet handed to the caller.
        output: set once the request has ended.
    """

    def __init__(self, place: Place, prompt: Prompt, request: Request, tokenizer: Tokenizer, speculates: bool) -> None:
        self.place = place
        self.request = request
        self.events: list[StreamEvent] = []
        self.output: RequestOutput | None = None
        self._prompt = prompt
        self._speculates = speculates
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._text: list[str] = []
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(request.params.stop, include=request.params.include_stop_str_in_output)

    @property
    def stopped_by_string(self) -> bool:
        """A stop string has ended the text; the scheduler may not know yet."""
        return self._stops.matched is not None

    def push(self, update: TokenUpdate) -> int:
        """Take the tokens of one step. Behind a stop string nothing is kept: no text, no tokens, no logprobs, no count of them.

        Returns:
            How many of the tokens count; of a request that had ended before, all.
        """
        if self.output is not None:
            return len(update.token_ids)
        taken, text = self._take(update.token_ids)
        if update.logprobs:
            self._logprobs += update.logprobs[: len(taken)]
        reason: FinishReason | None = "stop" if self.stopped_by_string else update.finish_reason
        if reason is not None:
            text += self._flush()
            # The last character may be one that never became whole, and complete a stop string as the mark that stands for it.
            reason = "stop" if self.stopped_by_string else reason
        if self.stopped_by_string:
            self.request.roll_back(update, len(taken))
        self._text.append(text)
        if reason is not None:
            self.output = self._finished(reason)
        if taken or text or self.output is not None:
            self.events.append(self._event(text, taken, update.logprobs))
        return len(taken)

    def _take(self, token_ids: Sequence[int]) -> tuple[list[int], str]:
        """Token by token where a stop string may end the text: the tokens behind the one that completes it are none of its."""
        if not self.request.params.stop:
            self._token_ids += token_ids
            return list(token_ids), self._detokenizer.push(token_ids)
        taken: list[int] = []
        text = ""
        for token in token_ids:
            taken.append(token)
            self._token_ids.append(token)
            text += self._searched(self._detokenizer.push((token,)))
            if self.stopped_by_string:
                break
        return taken, text

    def _searched(self, piece: str) -> str:
        """What of a piece may be shown. Below min_tokens a stop string is ordinary text."""
        armed = len(self._token_ids) >= self.request.params.min_tokens
        return self._stops.push(piece) if armed else piece

    def _flush(self) -> str:
        """The rest of the text. Where a stop string ended it there is none: what follows the match is not output."""
        if self.stopped_by_string:
            return ""
        return self._searched(self._detokenizer.flush()) + self._stops.flush()

    def _event(self, text: str, taken: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> StreamEvent:
        place = self.place
        told = tuple(logprobs[: len(taken)]) if logprobs else ()
        return StreamEvent(place.index, text, tuple(taken), self.output, place.prompt, place.sample, told)

    def _finished(self, reason: FinishReason) -> RequestOutput:
        times, params = self.request.times, self.request.params
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self._prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            token_ids=tuple(self._token_ids),
            text="".join(self._text),
            finish_reason=reason,
            ttft_s=times.ttft_s,
            tpot_s=times.tpot_s,
            acceptance=self.request.acceptance if self._speculates else None,
            sample=self.place.sample,
            seed=params.seed if params.temperature > 0 else None,
            logprobs=None if params.logprobs is None else tuple(self._logprobs),
            prompt_logprobs=None if params.prompt_logprobs is None else self._prompt_logprobs(),
        )

    def _prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...]:
        told = self.request.prompt_logprobs
        return tuple(told.get(position) for position in range(len(self.request.prompt_token_ids)))
