"""ChatTemplate: the model's own jinja2 template, run in a sandbox, because a checkpoint is foreign code.

The environment follows what Hugging Face transformers gives templates (`utils/chat_template_utils.py`): blocks are
trimmed, `raise_exception`, `strftime_now`, a `tojson` that keeps non-ASCII text, loop controls, `generation` blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from runtime.errors import PromptError


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks what a trainer masks; when generating, only the body counts."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads it from the class

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template. Raises PromptError when `source` is no template."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            line = f" at line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise PromptError(f"chat template: cannot be read{line}: {error}; set run.chat to false") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of the chat up to where the assistant's answer begins. Raises PromptError when it fails."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._tokens,
            )
        except Exception as error:  # The template is foreign code: whatever it raises is about this prompt.
            reason = str(error) or type(error).__name__
            raise PromptError(
                f"chat template failed: {reason}; check the roles and their order, or set run.chat to false"
            ) from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # jinja2's own filter escapes HTML characters, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
