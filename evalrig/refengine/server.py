"""The HTTP side: routes in SGLang's dialect over one engine. Requests wait here; the numbers are made on the compute
thread."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from evalrig.refengine.answers import generate_answer
from evalrig.refengine.chat import ChatRequest, chat_prompt, parse_chat
from evalrig.refengine.chat_answers import ChatChunks, chat_answer, chat_usage
from evalrig.refengine.completions import (
    CompletionChunks,
    CompletionRequest,
    completion_answer,
    completion_usage,
    parse_completion,
)
from evalrig.refengine.engine import Engine
from evalrig.refengine.fields import (
    BadRequest,
    Fields,
    MalformedRequest,
    UnknownField,
    as_list,
    parse_object,
    wrong_type,
)
from evalrig.refengine.flight import ClientGone, EngineFailure, Flight
from evalrig.refengine.messages import BadHistory
from evalrig.refengine.metrics import exposition
from evalrig.refengine.requests import MOST_IN_A_BATCH, GenerateRequest, parse_generate

FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation "
    "will not be performed.)\n"
)
MOST_BODY_BYTES = 64 << 20


class Routes:
    """The endpoints of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def generate(self, request: Request) -> Response:
        """POST /generate"""
        values = await _body(request)
        try:
            wanted = parse_generate(values, self._engine.limits)
            if len(wanted.jobs) > MOST_IN_A_BATCH or not wanted.jobs:
                raise BadRequest(f"a batch holds 1 to {MOST_IN_A_BATCH} prompts, got {len(wanted.jobs)}.")
        except MalformedRequest:
            raise
        except UnknownField as error:
            return _json({"error": str(error)}, 400)
        except BadRequest as error:
            if values.get("stream") is True:
                return _events(_refusal(str(error)))
            return _json({"error": {"message": str(error)}}, 400)
        flight = Flight(self._engine, wanted.jobs)
        if wanted.stream:
            return _events(self._generate_events(wanted, flight))
        try:
            done = await flight.finish(request)
        except EngineFailure as error:
            return _json({"error": {"message": str(error)}}, 500)
        answers = [generate_answer(job, update, wanted.form, self._engine.tokenizer) for job, update in done]
        return _json(answers if wanted.batch else answers[0])

    async def _generate_events(self, wanted: GenerateRequest, flight: Flight) -> AsyncIterator[Any]:
        try:
            async for index, update in flight.updates():
                answer = generate_answer(flight.jobs[index], update, wanted.form, self._engine.tokenizer)
                yield answer | {"index": index} if wanted.batch else answer
        except EngineFailure as error:
            yield {"error": {"message": str(error), "type": "internal_server_error", "code": 500, "retryable": False}}

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        wanted = parse_chat(await _body(request), self._engine.limits, self._engine.chat_format)
        flight = Flight(self._engine, wanted.jobs)
        if wanted.call.stream:
            return _events(self._chat_events(wanted, flight))
        return _json(chat_answer(wanted, await flight.finish(request), self._engine.tokenizer))

    async def _chat_events(self, wanted: ChatRequest, flight: Flight) -> AsyncIterator[Any]:
        choices = [ChatChunks(wanted, index, self._engine.tokenizer) for index in range(len(wanted.jobs))]
        opened: set[int] = set()
        try:
            async for index, update in flight.updates():
                if index not in opened:
                    opened.add(index)
                    yield choices[index].opening()
                for chunk in choices[index].push(flight.jobs[index], update):
                    yield chunk
        except EngineFailure as error:
            yield {"error": _openai_error(str(error), "InternalServerError", 500)}
            return
        if wanted.call.include_usage:
            found = chat_usage(wanted, flight.jobs, self._engine.tokenizer)
            yield wanted.call.frame("chat.completion.chunk", []) | {"usage": found}

    async def completion(self, request: Request) -> Response:
        """POST /v1/completions"""
        wanted = parse_completion(await _body(request), self._engine.limits)
        flight = Flight(self._engine, wanted.jobs)
        if wanted.call.stream:
            return _events(self._completion_events(wanted, flight))
        return _json(completion_answer(wanted, await flight.finish(request), self._engine.tokenizer))

    async def _completion_events(self, wanted: CompletionRequest, flight: Flight) -> AsyncIterator[Any]:
        choices = [CompletionChunks(wanted, index, self._engine.tokenizer) for index in range(len(wanted.jobs))]
        try:
            async for index, update in flight.updates():
                for chunk in choices[index].push(flight.jobs[index], update):
                    yield chunk
        except EngineFailure as error:
            yield {"error": _openai_error(str(error), "InternalServerError", 500)}
            return
        if wanted.call.include_usage:
            yield wanted.call.frame("text_completion", []) | {"usage": completion_usage(wanted, flight.jobs)}

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: text(s) or messages to ids."""
        fields, tokenizer = Fields(await _body(request)), self._engine.tokenizer
        prompt, messages = fields.raw("prompt"), fields.raw("messages")
        if (prompt is None) == (messages is None):
            raise MalformedRequest(
                "1 validation error:\n  Value error, Exactly one of 'prompt' or 'messages' must be provided."
            )
        if messages is not None:
            tokens: Any = chat_prompt(fields, self._engine.chat_format, tokenizer)
        else:
            special = fields.flag("add_special_tokens", True)
            encoded = [tokenizer.encode(text, add_special=special) for text in fields.texts("prompt")]
            tokens = encoded if isinstance(prompt, list) else encoded[0]
        count = [len(one) for one in tokens] if isinstance(prompt, list) else len(tokens)
        return _json({"tokens": tokens, "count": count, "max_model_len": self._engine.limits.context})

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize: ids to text; ids outside the vocabulary give nothing."""
        fields = Fields(await _body(request))
        tokens, skip = as_list("tokens", fields.raw("tokens")), fields.flag("skip_special_tokens", True)
        nested = bool(tokens) and isinstance(tokens[0], list)
        texts = [
            self._engine.tokenizer.decode(_ids(one), skip_special=skip) for one in (tokens if nested else [tokens])
        ]
        return _json({"text": texts if nested else texts[0]})

    async def server_info(self, request: Request) -> Response:
        """GET /server_info"""
        return _json(self._engine.server_info())

    async def model_info(self, request: Request) -> Response:
        """GET /model_info"""
        return _json(self._engine.model_info())

    async def models(self, request: Request) -> Response:
        """GET /v1/models"""
        return _json({"object": "list", "data": [self._card()]})

    async def one_model(self, request: Request) -> Response:
        """GET /v1/models/{name}"""
        name = request.path_params["name"]
        if name == self._engine.name:
            return _json(self._card())
        message = f"The model '{name}' does not exist"
        error = {"message": message, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
        return _json({"error": error}, 404)

    def _card(self) -> dict[str, Any]:
        name = self._engine.name
        card: dict[str, Any] = {"id": name, "object": "model", "created": 0, "owned_by": "evalrig", "root": name}
        return card | {"parent": None, "max_model_len": self._engine.limits.context}

    async def health(self, request: Request) -> Response:
        """GET /health and /ready: the server listens only once the engine is ready."""
        return Response()

    async def flush_cache(self, request: Request) -> Response:
        """POST /flush_cache: drops all kept prefixes; like the original it refuses while requests run."""
        done = self._engine.scheduler.flush()
        return PlainTextResponse(FLUSHED) if done else PlainTextResponse("Flush cache failed.\n", 400)

    async def metrics(self, request: Request) -> Response:
        """GET /metrics"""
        text = exposition(self._engine.scheduler.counters, self._engine.gauges(), self._engine.name)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def create_app(engine: Engine) -> Starlette:
    """The ASGI application over a running engine."""
    routes = Routes(engine)
    gets = {
        "/health": routes.health,
        "/health_generate": routes.health,
        "/ready": routes.health,
        "/ping": routes.health,
        "/server_info": routes.server_info,
        "/get_server_info": routes.server_info,
        "/model_info": routes.model_info,
        "/get_model_info": routes.model_info,
        "/v1/models": routes.models,
        "/v1/models/{name:path}": routes.one_model,
        "/metrics": routes.metrics,
    }
    posts = {
        "/generate": routes.generate,
        "/v1/chat/completions": routes.chat,
        "/v1/completions": routes.completion,
        "/tokenize": routes.tokenize,
        "/v1/tokenize": routes.tokenize,
        "/detokenize": routes.detokenize,
        "/v1/detokenize": routes.detokenize,
        "/flush_cache": routes.flush_cache,
    }
    return Starlette(
        routes=[
            *(Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()),
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
        ],
        exception_handlers={
            BadRequest: _bad_request,
            MalformedRequest: _bad_request,
            EngineFailure: _engine_failure,
            ClientGone: _client_gone,
            HTTPException: _http_error,
        },
    )


def _openai_error(message: str, kind: str, code: int) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


async def _bad_request(request: Request, error: Exception) -> Response:
    kinds: dict[type[Exception], str] = {MalformedRequest: "Bad Request", BadHistory: "BadRequest"}
    kind = kinds.get(type(error), "BadRequestError")
    return _json(_openai_error(str(error), kind, 400), 400)


async def _engine_failure(request: Request, error: Exception) -> Response:
    return _json(_openai_error(str(error), "InternalServerError", 500), 500)


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for HTTPException"
    return _json({"detail": error.detail}, error.status_code)


async def _body(request: Request) -> dict[str, Any]:
    """The request's JSON object; MalformedRequest for another content type, a huge body, or no JSON object."""
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind != "application/json":
        raise MalformedRequest("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BODY_BYTES:
            raise MalformedRequest(f"1 validation error:\n  the body is larger than {MOST_BODY_BYTES} bytes")
    return parse_object(bytes(body))


def _ids(values: object) -> list[int]:
    found = as_list("tokens", values)
    for value in found:
        if type(value) is not int:
            raise wrong_type("tokens", "integer", value)
    return list(found)


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


async def _refusal(message: str) -> AsyncIterator[Any]:
    yield {"error": {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}}


def _events(values: AsyncIterator[Any]) -> Response:
    """Server-sent events: one a value, then [DONE]."""

    async def lines() -> AsyncIterator[bytes]:
        try:
            async for value in values:
                yield b"data: " + msgspec.json.encode(value) + b"\n\n"
            yield b"data: [DONE]\n\n"
        finally:
            await values.aclose()  # type: ignore[attr-defined]

    return StreamingResponse(lines(), media_type="text/event-stream")
