"""The HTTP side of the reward server: routes, limits, the token.

Made by the server (and by tests) around an engine. The order of the checks is: token,
concurrency, size, shape; the body is not read before the first two have passed, and not
parsed before the third.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec
from fastapi import FastAPI, Request, Response

from verlops.ports import ScoreItem
from verlops_workers.reward.scoring import Engine
from verlops_workers.reward.token import Token
from verlops_workers.reward.watch import Watch

logger = logging.getLogger(__name__)

MAX_BODY = 4 * 1024 * 1024
"""Bytes of one request."""
MAX_DRAIN = 4 * MAX_BODY
"""Bytes of a refused body that are read away, so that the caller sees the answer and not a
broken connection; one that sends more is cut off."""
MAX_ITEMS = 1024
MAX_CONCURRENT = 64
"""Requests answered at one time; more would only wait for the scorer."""


class Item(msgspec.Struct, frozen=True):
    """One response to be scored."""

    prompt: str
    response: str
    reference: str = ""
    task: str = ""


class ScoreRequest(msgspec.Struct, frozen=True):
    """The body of POST /score."""

    items: list[Item]


class RefusedError(Exception):
    """A request that gets no scores: status and one line why."""

    def __init__(self, code: int, why: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.code = code
        self.headers = dict(headers or {})


_decoder = msgspec.json.Decoder(ScoreRequest)


def make_app(
    engine: Engine, token: Token, watch: Watch, *, max_concurrent: int = MAX_CONCURRENT
) -> FastAPI:
    """``POST /score`` and ``GET /metrics`` for holders of the token, ``GET /healthz`` for all."""
    app = FastAPI(title="verlops reward server", docs_url=None, redoc_url=None, openapi_url=None)
    desk = Desk(engine, token, watch, max_concurrent)

    @app.post("/score")
    async def score(request: Request) -> Response:
        return await desk.answer(request)

    @app.get("/healthz")
    async def healthz() -> Response:
        return _json(200, {"status": "ok", "scorer": engine.scorer.label})

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        if not shows_token(request, token):
            return _refusal(_unauthorized())
        return Response(watch.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


class Desk:
    """Answers POST /score."""

    def __init__(self, engine: Engine, token: Token, watch: Watch, max_concurrent: int) -> None:
        self._engine = engine
        self._token = token
        self._watch = watch
        self._max_concurrent = max_concurrent

    async def answer(self, request: Request) -> Response:
        """Scores, or a refusal with 401, 413, 422 or 429."""
        try:
            with self._watch.latency.time():
                response = await self._admit(request)
        except RefusedError as refused:
            response = _refusal(refused)
        self._watch.requests.labels(str(response.status_code)).inc()
        return response

    async def _admit(self, request: Request) -> Response:
        if not shows_token(request, self._token):
            raise _unauthorized()
        busy = self._watch.busy
        if busy >= self._max_concurrent:
            raise RefusedError(429, f"{busy} requests are being answered", {"Retry-After": "1"})
        self._watch.busy += 1
        try:
            return await self._score(request)
        finally:
            self._watch.busy -= 1

    async def _score(self, request: Request) -> Response:
        items = _parse(await _body(request))
        verdicts = await self._engine.score(items)
        scores = [{"reward": v.reward, "state": v.state, "error": v.error} for v in verdicts]
        return _json(200, {"scores": scores, "scorer": self._engine.scorer.label})


def shows_token(request: Request, token: Token) -> bool:
    """Whether the request carries ``Authorization: Bearer <token>``."""
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    # The token is compared even under another scheme: the time says nothing.
    return token.matches(shown.strip().encode("latin-1")) and scheme.lower() == "bearer"


async def _body(request: Request) -> bytes:
    """The body. Raises RefusedError as soon as it is known to be too long."""
    claimed = request.headers.get("content-length", "0")
    too_long = not claimed.isdecimal() or int(claimed) > MAX_BODY
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        too_long = too_long or size > MAX_BODY
        if size > MAX_DRAIN:
            break
        if too_long:
            chunks.clear()
        else:
            chunks.append(chunk)
    if too_long:
        headers = {"Connection": "close"} if size > MAX_DRAIN else {}
        raise RefusedError(413, f"the body is longer than {MAX_BODY} bytes", headers)
    return b"".join(chunks)


def _parse(body: bytes) -> list[ScoreItem]:
    try:
        found = _decoder.decode(body).items
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RefusedError(422, f"not a request for scores: {error}") from error
    if len(found) > MAX_ITEMS:
        raise RefusedError(413, f"{len(found)} items, {MAX_ITEMS} are the most")
    return [ScoreItem(i.prompt, i.response, i.reference, i.task) for i in found]


def _unauthorized() -> RefusedError:
    why = "needs 'Authorization: Bearer <token>' with the token of the state folder"
    return RefusedError(401, why, {"WWW-Authenticate": "Bearer"})


def _refusal(refused: RefusedError) -> Response:
    return _json(refused.code, {"error": str(refused)}, refused.headers)


def _json(code: int, content: object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(content),
        status_code=code,
        headers=dict(headers or {}),
        media_type="application/json",
    )
