"""Engines with scorers of a test's own, a server on loopback, and a log in a folder."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from verlops.ports import ScoreItem
from verlops_workers.reward.cache import Cache, MemoryCache
from verlops_workers.reward.plug import Scorer
from verlops_workers.reward.pool import ThreadPool
from verlops_workers.reward.scoring import Engine, Verdict
from verlops_workers.reward.watch import Watch

TOKEN = "a-token-of-the-tests-0123456789"


def _item(response: str, reference: str = "ok", prompt: str = "p", task: str = "t") -> ScoreItem:
    return ScoreItem(prompt, response, reference, task)


def _engine_of(
    function: Callable[[Sequence[ScoreItem]], Any],
    *,
    cache: Cache | None = None,
    version: str = "1",
    budget: float = 30.0,
    watch: Watch | None = None,
    pool: ThreadPool | None = None,
) -> Engine:
    scorer = Scorer("mine", version, function)
    return Engine(scorer, pool or ThreadPool(), cache, watch or Watch(), budget)


def _judge(engine: Engine, items: Sequence[ScoreItem]) -> list[Verdict]:
    return asyncio.run(engine.score(items))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "reward.token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def memory() -> MemoryCache:
    return MemoryCache(1000)


@contextmanager
def _serving(
    engine: Engine, token_file: Path, watch: Watch, **limits: int
) -> Iterator[httpx.Client]:
    """A client of a real server on a free loopback port."""
    import uvicorn

    from verlops_workers.reward.app import make_app
    from verlops_workers.reward.server import listen, url_of
    from verlops_workers.reward.token import Token

    bound = listen("127.0.0.1", 0)
    app = make_app(engine, Token(token_file), watch, **limits)
    settings = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=5)
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    try:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=url_of(bound), headers=headers, timeout=30) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def _body(*items: ScoreItem) -> dict[str, Any]:
    return {"items": [i._asdict() for i in items]}


@pytest.fixture
def item() -> Callable[..., ScoreItem]:
    return _item


@pytest.fixture
def engine_of() -> Callable[..., Engine]:
    return _engine_of


@pytest.fixture
def judge() -> Callable[..., list[Verdict]]:
    return _judge


@pytest.fixture
def serving(token_file: Path) -> Callable[..., Any]:
    return lambda engine, watch=None, **limits: _serving(
        engine, token_file, watch or Watch(), **limits
    )


@pytest.fixture
def body() -> Callable[..., dict[str, Any]]:
    return _body


@pytest.fixture
def token() -> str:
    return TOKEN
