"""The application: routes, authorisation, streaming and metrics."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hmac
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from plait.errors import CacheFull, Error, UnsupportedError
from plait.evaluation.embedding import Embedder
from plait.evaluation.scoring import Score, token_logprobs
from plait.generation.events import Completion, Usage
from plait.generation.messages import render
from plait.generation.prompts import PromptTooLong
from plait.server.bodies import BadRequest, Job, chat_job, number, text_job, value
from plait.server.replies import Replies, error

try:
    import prometheus_client
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError as missing:
    raise UnsupportedError(
        "the server needs more packages: pip install 'plait[serve]'"
    ) from missing

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from plait.generation.engine import Engine
    from plait.generation.events import Event
    from plait.model import Model

_MAX_BODY: Final = 16 << 20  # bytes
_MAX_TEXTS: Final = 2048  # texts per request for embeddings
_MAX_TEXT: Final = 16384  # tokens of such a text, if neither the server nor the model has a limit
_GAUGES: Final = {
    "n_active": "Running requests",
    "n_queued": "Waiting requests",
    "n_used_cells": "Used cells of the cache",
}
_OPEN: Final = ("/health", "/metrics")  # paths that need no key
_SHUTTING_DOWN: Final = "the server is shutting down"
_log = logging.getLogger("plait")


def create_app(
    model: Model,
    engine: Engine | None,
    *,
    name: str,
    api_key: str | None = None,
    template: str | None = None,
    origins: Sequence[str] = (),
    n_ctx: int | None = None,
) -> Starlette:
    """Return an ASGI application that serves a model.

    Args:
        model: The model.
        engine: The engine that generates; None for models that only embed.
        name: Name of the model in replies.
        api_key: Key that requests must have, except those to /health and /metrics. None, or an empty one: no key is
            required.
        template: Text of a Jinja template to use instead of that of the file.
        origins: Origins whose pages may use the server from a browser; "*" allows all.
        n_ctx: Max tokens of a text to embed, or of a query with a document. None: n_ctx of the engine; without an
            engine, the training length of the model.
    """
    return _Server(model, engine, name, api_key, template, n_ctx).app(origins)


class _Server:
    def __init__(
        self,
        model: Model,
        engine: Engine | None,
        name: str,
        api_key: str | None,
        template: str | None,
        n_ctx: int | None,
    ) -> None:
        self._model = model
        self._engine = engine
        self._name = name
        self._key = api_key or None
        self._template = template
        self._embedder = Embedder(model, n_ctx=_longest_text(model, engine, n_ctx))
        # Embeddings, reranking and log-probabilities of prompts need contexts besides the engine's.
        # This lock lets one of them run at a time, which limits the memory for such contexts.
        self._beside = asyncio.Lock()
        self._registry = prometheus_client.CollectorRegistry()
        registry = self._registry
        self._requests = prometheus_client.Counter(
            "plait_requests",
            "Requests by endpoint and status",
            ["endpoint", "status"],
            registry=registry,
        )
        self._tokens = prometheus_client.Counter(
            "plait_tokens", "Tokens by kind", ["kind"], registry=registry
        )
        self._first = prometheus_client.Histogram(
            "plait_first_token_seconds", "Time until the first token", registry=registry
        )
        self._total = prometheus_client.Histogram(
            "plait_request_seconds", "Time of a generation", registry=registry
        )
        for key, text in _GAUGES.items():
            gauge = prometheus_client.Gauge(f"plait_{key}", text, registry=registry)
            gauge.set_function(functools.partial(_gauge, engine, key))

    def app(self, origins: Sequence[str]) -> Starlette:
        routes: list[tuple[str, Callable[[Request], Awaitable[Response]], str]] = [
            ("/v1/chat/completions", self._chat, "POST"),
            ("/v1/completions", self._complete, "POST"),
            ("/v1/embeddings", self._embed, "POST"),
            ("/v1/rerank", self._rerank, "POST"),
            ("/tokenize", self._tokenize, "POST"),
            ("/detokenize", self._detokenize, "POST"),
            ("/v1/models", self._models, "GET"),
            ("/v1/models/{name:path}", self._models, "GET"),
            ("/health", self._health, "GET"),
            ("/metrics", self._metrics, "GET"),
        ]
        return Starlette(
            routes=[
                Route(path, self._guarded(path, handler), methods=[method])
                for path, handler, method in routes
            ],
            exception_handlers={404: _not_found, 405: _not_found},
            middleware=[
                Middleware(
                    CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
                )
            ]
            if origins
            else [],
        )

    def _guarded(
        self, path: str, handler: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that checks the key and converts exceptions to errors."""

        async def guarded(request: Request) -> Response:
            if path not in _OPEN and not self._is_allowed(request):
                response: Response = _failure(
                    401, "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                    "authentication_error", code="invalid_api_key",
                )  # fmt: skip
            else:
                response = await _answered(handler, request)
            self._requests.labels(path, response.status_code).inc()
            return response

        return guarded

    def _is_allowed(self, request: Request) -> bool:
        if self._key is None:
            return True
        given = request.headers.get("x-api-key", "")
        if "authorization" in request.headers:
            given = request.headers["authorization"]
            scheme, _, rest = given.partition(" ")
            given = rest.strip() if scheme.lower() == "bearer" else given
        # Starlette decodes headers as Latin-1, but many clients send UTF-8.
        key = self._key.encode()
        return any(hmac.compare_digest(given.encode(form), key) for form in ("utf-8", "latin-1"))

    # -- generation ------------------------------------------------------------------------------------

    async def _chat(self, request: Request) -> Response:
        body = await _body(request)
        engine = self._open_engine()
        images = engine.vision is not None
        # In a thread, because grammars are compiled. It continues if the client disconnects, but nothing is generated.
        making = asyncio.to_thread(chat_job, body, self._model, self._template, images=images)
        job = await _or_gone(request, making)
        return await self._generate(request, engine, True, job)

    async def _complete(self, request: Request) -> Response:
        body = await _body(request)
        engine = self._open_engine()
        making = asyncio.to_thread(text_job, body, self._model, n_ctx=engine.ctx.n_ctx)
        return await self._generate(request, engine, False, await _or_gone(request, making))

    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise BadRequest("the model does not generate text; use /v1/embeddings")
        if self._engine.closed:
            raise BadRequest(_SHUTTING_DOWN, status=503)
        return self._engine

    async def _generate(self, request: Request, engine: Engine, chat: bool, job: Job) -> Response:
        replies = Replies(chat, job, self._name, self._model.tokenizer)
        if job.parameters["max_tokens"] == 0:
            completions = _echoes(job)
            return JSONResponse(replies.whole(completions, await self._scores(job, completions)))
        events = self._events(engine, job)
        try:
            first = await _or_gone(request, anext(events))
            if job.stream:
                return _Stream(self._chunks(replies, job, first, events))
            found: dict[int, Completion] = {}
            while first is not None:
                index, event = first
                if event.completion is not None:
                    found[index] = event.completion
                first = await _or_gone(request, anext(events, None))
        except BaseException:
            await events.aclose()
            raise
        completions = [found[index] for index in sorted(found)]
        self._count(completions)
        return JSONResponse(replies.whole(completions, await self._scores(job, completions)))

    async def _scores(self, job: Job, completions: list[Completion]) -> list[Score | None]:
        """Return the scores of the prompts, one per completion; None for prompts of one token."""
        if not job.scores_prompts:
            return []
        scores: list[Score | None] = []
        for i, done in enumerate(completions):
            ids = done.prompt_tokens
            if i % job.n:
                scores.append(scores[-1])
            elif len(ids) == 1:
                scores.append(None)
            else:
                top = job.parameters["top_logprobs"]
                async with self._beside:
                    score = await asyncio.to_thread(
                        token_logprobs,
                        self._model,
                        ids,
                        window=len(ids),
                        top_logprobs=top,
                        progress=False,
                    )
                scores.append(score)
        return scores

    async def _events(self, engine: Engine, job: Job) -> AsyncGenerator[tuple[int, Event], None]:
        """Yield the events of all generations with their indices."""
        arrived: asyncio.Queue[tuple[int, Event] | BaseException | None] = asyncio.Queue()

        async def run(index: int) -> None:
            try:
                stream = engine.stream(
                    job.prompts[index // job.n], sample=index % job.n, **job.parameters
                )
                async with contextlib.aclosing(stream) as events:
                    async for event in events:
                        arrived.put_nowait((index, event))
                arrived.put_nowait(None)
            except Exception as problem:
                arrived.put_nowait(problem)

        n = len(job.prompts) * job.n
        tasks = [asyncio.create_task(run(index)) for index in range(n)]
        try:
            while n:
                item = await arrived.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    n -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _chunks(
        self,
        replies: Replies,
        job: Job,
        first: tuple[int, Event],
        events: AsyncGenerator[tuple[int, Event], None],
    ) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events."""
        completions: dict[int, Completion] = {}
        started: set[int] = set()
        item: tuple[int, Event] | None = first
        try:
            while item is not None:
                index, event = item
                if index not in started:
                    started.add(index)
                    if (opening := replies.first(index)) is not None:
                        yield _sent(opening)
                chunk = replies.chunk(index, event)
                if chunk is not None:
                    yield _sent(chunk)
                if event.completion is not None:
                    completions[index] = event.completion
                item = await anext(events, None)
            ordered = [completions[index] for index in sorted(completions)]
            self._count(ordered)
            if job.usage:
                yield _sent(replies.last(ordered))
            yield b"data: [DONE]\n\n"
        except (Error, ValueError, RuntimeError) as problem:
            yield _sent(error(str(problem), "server_error"))
        finally:
            await events.aclose()

    def _count(self, completions: list[Completion]) -> None:
        for done in completions:
            if done.usage is not None and done.timings is not None:
                self._tokens.labels("prompt").inc(done.usage.n_prompt)
                self._tokens.labels("cached").inc(done.usage.n_cached)
                self._tokens.labels("generated").inc(done.usage.n_generated)
                self._first.observe(done.timings.first_token or done.timings.total)
                self._total.observe(done.timings.total)

    # -- embeddings ------------------------------------------------------------------------------------

    async def _embed(self, request: Request) -> Response:
        body = await _body(request)
        given = body.get("input")
        texts: list[Any] = given if isinstance(given, list) else [given]
        if texts and all(isinstance(one, int) for one in texts):
            texts = [texts]
        if not texts or not all(isinstance(one, str | list) for one in texts):
            raise BadRequest("input: expected a str, a list of str, or lists of token ids", "input")
        if len(texts) > _MAX_TEXTS:
            raise BadRequest(f"input has {len(texts)} texts; the limit is {_MAX_TEXTS}", "input")
        form = value(body, "encoding_format", str, "float")
        if form not in ("float", "base64"):
            raise BadRequest(
                f'encoding_format is {form!r}; expected "float" or "base64"', "encoding_format"
            )
        width = self._model.n_embd
        if number(body, "dimensions", width, 1, 1 << 31) != width:
            raise BadRequest(
                f"dimensions is {body['dimensions']}; the model has {width}", "dimensions"
            )
        tokens_of = self._model.tokenizer.encode

        def embed() -> tuple[Any, int]:
            ids = [tokens_of(one).tolist() if isinstance(one, str) else one for one in texts]
            return self._embedder.embed(ids, progress=False), sum(map(len, ids))

        async with self._beside:
            rows, n = await asyncio.to_thread(embed)
        packed = form == "base64"
        data = [
            {
                "object": "embedding",
                "index": i,
                "embedding": base64.b64encode(row.astype("<f4").tobytes()).decode()
                if packed
                else row.tolist(),
            }
            for i, row in enumerate(rows)
        ]
        used = {"prompt_tokens": n, "total_tokens": n}
        return JSONResponse({"object": "list", "data": data, "model": self._name, "usage": used})

    async def _rerank(self, request: Request) -> Response:
        body = await _body(request)
        query, documents = value(body, "query", str), value(body, "documents", list)
        texts: list[Any] = [one.get("text") if isinstance(one, dict) else one for one in documents]
        if not texts or not all(isinstance(one, str) for one in texts):
            raise BadRequest("documents: expected a non-empty list of str", "documents")
        if len(texts) > _MAX_TEXTS:
            raise BadRequest(
                f"documents has {len(texts)} texts; the limit is {_MAX_TEXTS}", "documents"
            )
        n = number(body, "top_n", len(texts), 1, 1 << 31)
        async with self._beside:
            scores = await asyncio.to_thread(self._embedder.rerank, query, texts, progress=False)
        order = sorted(range(len(texts)), key=lambda i: -float(scores[i]))[:n]
        results = [
            {"index": i, "relevance_score": float(scores[i]), "document": {"text": texts[i]}}
            for i in order
        ]
        return JSONResponse({"object": "list", "model": self._name, "results": results})

    # -- the rest --------------------------------------------------------------------------------------

    async def _tokenize(self, request: Request) -> Response:
        """Reply with the tokens of a text or of messages. The keys are those of vLLM and of llama-server."""
        body = await _body(request)
        tokens_of = self._model.tokenizer.encode
        made: Callable[[], Any]
        if "messages" in body:
            job = await asyncio.to_thread(chat_job, body, self._model, self._template)
            made = functools.partial(
                render,
                self._model,
                job.prompts[0],
                job.parameters["tools"],
                template=job.parameters["template"],
                **{"add_generation_prompt": value(body, "add_generation_prompt", bool, True)}
                | job.parameters["variables"],
            )
        elif "content" in body:  # llama-server
            text, special = value(body, "content", str), value(body, "add_special", bool, False)
            made = functools.partial(tokens_of, text, add_special=special)
        else:
            text = value(body, "prompt", str)
            special = value(body, "add_special_tokens", bool, True)
            made = functools.partial(tokens_of, text, add_special=special)
        found: Any = await asyncio.to_thread(made)
        tokens = [int(token) for token in found]
        n_ctx = None if self._engine is None else self._engine.ctx.n_ctx
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": n_ctx})

    async def _detokenize(self, request: Request) -> Response:
        body = await _body(request)
        tokens = value(body, "tokens", list)
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in tokens):
            raise BadRequest("tokens: expected a list of token ids", "tokens")
        text = await asyncio.to_thread(self._model.tokenizer.decode, tokens)
        return JSONResponse({"prompt": text, "content": text})  # vLLM, llama-server

    async def _models(self, request: Request) -> Response:
        one = {"id": self._name, "object": "model", "created": 0, "owned_by": "plait"}
        wanted = request.path_params.get("name")
        if wanted is None:
            return JSONResponse({"object": "list", "data": [one]})
        if wanted != self._name:
            raise BadRequest(
                f"there is no model {wanted!r}; the model is {self._name!r}",
                "model", 404, "model_not_found",
            )  # fmt: skip
        return JSONResponse(one)

    async def _health(self, request: Request) -> Response:
        del request
        if self._engine is not None and self._engine.closed:
            return _failure(503, _SHUTTING_DOWN, "server_error")
        return JSONResponse({"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        del request
        data = prometheus_client.generate_latest(self._registry)
        return Response(data, media_type=prometheus_client.CONTENT_TYPE_LATEST)


class _Stream(StreamingResponse):
    """Server-sent events. The generation ends when the client has gone, also in the middle of sending."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(
            events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()


def _longest_text(model: Model, engine: Engine | None, n_ctx: int | None) -> int:
    """Return the max number of tokens of a text to embed."""
    if n_ctx is None:
        n_ctx = (model.n_ctx_train or _MAX_TEXT) if engine is None else engine.ctx.n_ctx
    has_table = model.n_ctx_train and "position_embd.weight" in model.tensors
    return min(n_ctx, model.n_ctx_train) if has_table else n_ctx


def _echoes(job: Job) -> list[Completion]:
    """Return the completions of prompts after which nothing is generated."""
    return [
        Completion(i // job.n, i % job.n, (), "", (), "length", tuple(one), usage=Usage(len(one), 0, 0))
        for i, one in enumerate(one for one in job.prompts for _ in range(job.n))
    ]  # fmt: skip


def _gauge(engine: Engine | None, key: str) -> float:
    return 0.0 if engine is None else float(getattr(engine.stats, key))


async def _answered(
    handler: Callable[[Request], Awaitable[Response]], request: Request
) -> Response:
    try:
        return await handler(request)
    except BadRequest as problem:
        kind = "invalid_request_error" if problem.status < 500 else "server_error"
        return _failure(problem.status, str(problem), kind, problem.param, problem.code)
    except PromptTooLong as problem:
        code = "context_length_exceeded"
        return _failure(400, str(problem), "invalid_request_error", code=code)
    except ClientDisconnect:
        return Response(status_code=499)
    except (CacheFull, UnsupportedError, ValueError, TypeError, IndexError) as problem:
        return _failure(400, str(problem), "invalid_request_error")
    except RecursionError:
        return _failure(400, "the body is nested too deeply", "invalid_request_error")
    except Exception as problem:
        _log.exception("server: a request failed")
        return _failure(500, f"{type(problem).__name__}: {problem}", "server_error")


async def _body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > _MAX_BODY:
            raise BadRequest(f"the body has more than {_MAX_BODY} bytes", status=413)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise BadRequest(f"the body is not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise BadRequest("the body is not a JSON object")
    return found


async def _or_gone(request: Request, result: Awaitable[Any]) -> Any:
    """Await a result, or raise ClientDisconnect if the client disconnects before."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(result), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(BaseException):
                await task


async def _not_found(request: Request, problem: Any) -> Response:
    return _failure(
        problem.status_code,
        f"there is no {request.method} {request.url.path}",
        "invalid_request_error",
    )


def _failure(
    status: int, message: str, kind: str, param: str | None = None, code: str | None = None
) -> Response:
    return JSONResponse(error(message, kind, param, code), status_code=status)


def _sent(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"
