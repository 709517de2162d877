"""From messages and tools to a prompt: checked, given to the chat template, and, where a call is forced, begun."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from evalrig.refengine import reasoning, tool_calls
from evalrig.refengine.chat_template import ChatTemplate, ChatTemplateError
from evalrig.refengine.fields import BadRequest, Fields, as_list, shown, wrong_type
from evalrig.refengine.parsing import Parsing

ROLES = ("system", "user", "assistant", "tool", "function", "developer")


class BadHistory(BadRequest):
    """A tool call in an earlier message that no template can render. Answered with status 400, in a shape of its
    own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """How conversations become prompts, and answers messages."""

    template: ChatTemplate
    tool_calls: bool = False
    """Tool calls are looked for in answers."""
    reasoning: bool = False
    """Thinking is kept apart in answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The functions of a request."""

    shown: Sequence[Any] | None
    """For the template: as they were sent; None: none."""
    names: frozenset[str]
    forced: bool = False
    """The answer must be a call, of one of those shown."""

    @property
    def opening(self) -> str:
        """How an answer begins that must be a call. No blank at the end: the model's own tokens begin with theirs."""
        if not self.forced:
            return ""
        if len(self.names) > 1:
            return f'{tool_calls.OPEN}\n{{"name": "'
        name = msgspec.json.encode(next(iter(self.names))).decode()
        return f'{tool_calls.OPEN}\n{{"name": {name}, "arguments":'


def read_tools(fields: Fields) -> Tools:
    """`tools` and `tool_choice`: `none` hides the tools, a named function hides the others."""
    raw, choice = fields.raw("tools"), fields.raw("tool_choice")
    tools = {} if raw is None else dict(_tool(index, one) for index, one in enumerate(as_list("tools", raw)))
    if choice not in (None, "none", "auto", "required") and not isinstance(choice, dict):
        raise BadRequest(f"tool_choice must be none, auto, required or a function, got {shown(choice)}.")
    if not tools and choice not in (None, "none", "auto"):
        kind = choice if isinstance(choice, str) else "a specific tool"
        raise BadRequest(f"Tools cannot be empty if tool choice is set to {kind}.")
    if not tools or choice == "none":
        return Tools(shown=None, names=frozenset())
    if isinstance(choice, dict):
        name = Fields(choice).mapping("function").text("name", "")
        if name not in tools:
            raise BadRequest(f"Tool '{name}' not found in tools list.")
        return Tools(shown=[tools[name]], names=frozenset({name}), forced=True)
    return Tools(shown=list(tools.values()), names=frozenset(tools), forced=choice == "required")


def _tool(index: int, value: object) -> tuple[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(f"tools[{index}]", "dictionary", value)
    name = Fields(value).mapping("function").text("name", "")
    if not name:
        raise BadRequest(f"tools[{index}]: a tool is a function with a name, got {shown(value)}.")
    return name, value


def render(fields: Fields, template: ChatTemplate, tools: Tools) -> str:
    """The prompt's text, without the opening of a forced call; `continue_final_message` leaves the last answer open."""
    raw = fields.raw("messages")
    messages = [_message(index, one) for index, one in enumerate(as_list("messages", raw))] if raw is not None else []
    if not messages:
        raise BadRequest("Messages cannot be empty.")
    prefix = ""
    going_on = fields.flag("continue_final_message")
    if going_on:
        if messages[-1]["role"] != "assistant":
            raise BadRequest("continue_final_message needs an assistant message at the end.")
        prefix = messages.pop()["content"]
        if not messages:
            raise BadRequest("continue_final_message needs a message before the last.")
    generate = going_on or fields.flag("add_generation_prompt", True)
    try:
        text = template.render(messages, add_generation_prompt=generate, tools=tools.shown)
    except ChatTemplateError as error:
        raise BadRequest(str(error)) from error
    if tools.forced and text.rstrip().endswith(reasoning.OPEN):
        # A forced call cannot stand inside the thinking that a template has opened.
        text = f"{text.rstrip()}\n\n{reasoning.CLOSE}\n\n"
    return text + prefix


def read_parsing(fields: Fields, form: ChatFormat, tools: Tools, prompt: str) -> Parsing:
    """What to look for in the answers to `prompt`, and how they begin."""
    if tools.forced and not form.tool_calls:
        raise BadRequest(
            f"tool_choice={shown(fields.raw('tool_choice'))} needs a server that was started with --tool-call-parser."
        )
    apart = form.reasoning and fields.flag("separate_reasoning", True)
    return Parsing(
        tools=tools.names if form.tool_calls else frozenset(),
        reasoning=apart,
        thinking=apart and prompt.rstrip().endswith(reasoning.OPEN),
        opening=tools.opening,
    )


def _message(index: int, value: object) -> dict[str, Any]:
    """A message with plain text content (parts of type text are joined) and tool calls with arguments as objects."""
    if not isinstance(value, dict):
        raise wrong_type(f"messages[{index}]", "dictionary", value)
    message = Fields(value)
    role, content = message.text("role", ""), message.raw("content")
    if role not in ROLES:
        raise BadRequest(f"messages[{index}]: 'role' must be one of {', '.join(map(repr, ROLES))}, got {shown(role)}.")
    if isinstance(content, list):
        content = "".join(_part(index, part) for part in as_list("content", content))
    if content is not None and not isinstance(content, str):
        raise wrong_type(f"messages[{index}].content", "string", content)
    found = {**value, "role": role, "content": content or ""}
    if message.raw("tool_calls") is not None:
        where = f"messages[{index}].tool_calls"
        found["tool_calls"] = [_past_call(where, one) for one in as_list(where, message.raw("tool_calls"))]
    return found


def _past_call(where: str, value: object) -> dict[str, Any]:
    """A call of an earlier answer: templates print its arguments as the object that they are."""
    if not isinstance(value, dict):
        raise wrong_type(where, "dictionary", value)
    function = value.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequest(f"{where}: a call is a function with a name and arguments, got {shown(value)}.")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadHistory("Assistant tool call function.arguments must be valid JSON.") from error
    return {**value, "function": {**function, "arguments": arguments}}


def _part(index: int, value: object) -> str:
    if not isinstance(value, dict):
        raise wrong_type(f"messages[{index}].content", "dictionary", value)
    part = Fields(value)
    if part.text("type", "") != "text":
        raise BadRequest(f"messages[{index}]: only content of type 'text' is supported, got {shown(part.raw('type'))}.")
    return part.text("text", "")
