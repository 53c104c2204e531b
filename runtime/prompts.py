"""Prompts: what they may be, and how they become token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

from runtime.errors import PromptError
from runtime.shown_value import shown

if TYPE_CHECKING:
    from runtime.chat import ChatTemplate
    from runtime.tokenizer import Tokenizer

Chat: TypeAlias = "Sequence[Mapping[str, str]]"
Prompt: TypeAlias = "str | Chat | Sequence[int]"
"""A text, a chat (a list of {role, content}), or token ids."""

MESSAGE_KEYS = {"role", "content"}

_PROMPTS = "must be a text, a chat (list of {role, content}), token ids, or a list of these"


class PromptEncoder:
    """Turns prompts into token ids for one model.

    A text becomes a user turn when `chat` is true and the model has a chat template (after `system`, when given);
    otherwise it is encoded as it is. A chat always goes through the template. Token ids are only checked.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        vocab_size: int,
        max_model_len: int,
        chat: bool = True,
        system: str | None = None,
    ) -> None:
        """`vocab_size`: rows of the embedding; `max_model_len`: prompt and new tokens together."""
        if system is not None and template is None:
            raise PromptError("run.system is set, but the model has no chat template; remove it")
        self._tokenizer = tokenizer
        self._template = template
        self._vocab_size = vocab_size
        self.max_model_len = max_model_len
        self._chat = chat
        self._system = system

    def encode(self, prompt: Prompt, where: str = "prompt") -> list[int]:
        """Token ids of one prompt, 1 <= len < max_model_len. Raises PromptError that starts with `where`."""
        prompt = _plain(prompt)
        kind = check_prompt(prompt, where)
        if kind == "ids":
            ids = [int(token) for token in prompt]  # type: ignore[arg-type]
        elif kind == "text" and (self._template is None or not self._chat):
            ids = self._tokenizer.encode(prompt)  # type: ignore[arg-type]
        else:
            ids = self._encode_chat(prompt, where)
        if not ids:
            raise PromptError(f"{where}: encodes to no token; give it some text")
        if outside := [token for token in ids if not 0 <= token < self._vocab_size]:
            raise PromptError(
                f"{where}: token id {shown(outside[0])} is outside the vocabulary of {self._vocab_size} "
                f"(ids 0..{self._vocab_size - 1})"
            )
        if len(ids) + 1 > self.max_model_len:
            raise PromptError(
                f"{where}: {len(ids)} tokens and one new token exceed max_model_len = {self.max_model_len}; "
                "shorten the prompt or raise scheduler.max_model_len"
            )
        return ids

    def _encode_chat(self, prompt: Any, where: str) -> list[int]:
        if self._template is None:
            raise PromptError(
                f"{where}: is a chat, but the model has no chat template; give a plain text prompt or token ids"
            )
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(turn) for turn in prompt]
        if self._system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self._system})
        try:
            text = self._template.render(messages)
        except PromptError as error:
            raise PromptError(f"{where}: {error}") from error
        # The template writes the begin-of-text token itself where the model wants one.
        return self._tokenizer.encode(text, add_special_tokens=False)


def check_prompt(prompt: object, where: str) -> str:
    """ "text", "chat" or "ids". Raises PromptError that starts with `where` when it is none of them or empty."""
    if isinstance(prompt, str):
        _check_text(prompt, where)
        return "text"
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise PromptError(f"{where} = {shown(prompt)}: must be a text, a chat (list of {{role, content}}) or token ids")
    if not prompt:
        raise PromptError(f"{where}: empty; give at least one message or token id")
    if isinstance(prompt[0], Mapping):
        for index, message in enumerate(prompt):
            _check_message(message, f"{where}, message {index + 1}")
        return "chat"
    for index, token in enumerate(prompt):
        # numpy integers are Integral too; booleans are as well, but true is no token id. Asking an abstract class takes long.
        if type(token) is not int and (isinstance(token, bool) or not isinstance(token, Integral)):
            raise PromptError(f"{where}: element {index} = {shown(token)} must be an integer token id")
    return "ids"


def _check_text(text: str, where: str) -> None:
    if not text:
        raise PromptError(f"{where}: empty; give it some text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(f"{where}: invalid UTF-8 at character {error.start}; give it as UTF-8 text") from error


def _check_message(message: object, where: str) -> None:
    if not isinstance(message, Mapping) or set(message) != MESSAGE_KEYS:
        raise PromptError(f"{where} = {shown(message)}: must have exactly the keys role and content")
    for key in sorted(MESSAGE_KEYS):
        if not isinstance(message[key], str):
            raise PromptError(f"{where}: {key} = {shown(message[key])} must be a text")
    if not message["role"]:
        raise PromptError(f"{where}: role is empty; use system, user or assistant")
    if message["content"]:
        _check_text(message["content"], f"{where}, content")


def as_prompt_list(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """One prompt or several as a list: a text, a chat or token ids alone count as one prompt; an array counts as the lists that it
    holds. Raises PromptError."""
    prompts = _plain(prompts)
    if isinstance(prompts, str):
        return [prompts]
    # Bytes would pass for token ids, and what a mapping yields for texts.
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | bytearray | memoryview | Mapping):
        raise PromptError(f"prompts = {shown(prompts)}: {_PROMPTS}")
    if isinstance(prompts, set | frozenset):
        raise PromptError(f"prompts = {shown(prompts)}: a set has no order; {_PROMPTS}")
    several = [_plain(prompt) for prompt in prompts]
    if several and (isinstance(several[0], Mapping | Integral)):
        return [several]
    if not several:
        raise PromptError("prompts: empty; give at least one prompt")
    return several


def _plain(prompt: Any) -> Any:
    """Arrays of any library as the lists that they hold."""
    return prompt.tolist() if hasattr(prompt, "tolist") and not isinstance(prompt, memoryview) else prompt
