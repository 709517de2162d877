"""The model's chat template: messages to the text that the model was trained on, in a sandbox, because it comes with
the model."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from evalrig.errors import UsageError

NO_TEMPLATE = "{{ raise_exception('this model has no chat template') }}"


class ChatTemplateError(Exception):
    """The template refused the messages, or failed on them: the request's fault, not the server's."""


class ChatTemplate:
    """A compiled template, with the functions that published templates expect."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens`: names such as `bos_token` to texts. UsageError when `source` is no valid template."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        functions: dict[str, Any] = {"raise_exception": _refuse, "strftime_now": _now}
        environment.globals.update(functions)
        environment.filters["tojson"] = _to_json
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise UsageError(f"the model's chat template does not compile: {error}") from error
        self.sha256 = hashlib.sha256(source.encode()).hexdigest()
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
    ) -> str:
        """The prompt text. ChatTemplateError when the template cannot render these messages."""
        try:
            return self._template.render(
                messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **self._special_tokens
            )
        # A template is a program over the caller's own values: wrong shapes fail in it as these.
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, ChatTemplateError) as error:
            raise ChatTemplateError(f"the chat template cannot render these messages: {error}") from error


def _refuse(message: str) -> NoReturn:
    raise ChatTemplateError(message)


def _to_json(value: Any, *, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """As models were trained on: members in their order, no letter escaped. Jinja's own sorts, and escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _now(pattern: str) -> str:
    return datetime.now(UTC).strftime(pattern)
