"""The reward server over real HTTP on loopback: every status code and the token."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from verlops.ports import ScoreItem
from verlops_workers.reward.app import MAX_BODY, MAX_ITEMS
from verlops_workers.reward.cache import MemoryCache
from verlops_workers.reward.watch import Watch


def graded(items: Sequence[ScoreItem]) -> list[float]:
    if any(i.response == "junk" for i in items):
        raise ValueError("junk")
    if any(i.response == "down" for i in items):
        raise ConnectionError("no model")
    return [float(len(i.response)) for i in items]


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def client(engine_of: Any, serving: Any, watch: Watch) -> Iterator[httpx.Client]:
    with serving(engine_of(graded, cache=MemoryCache(100), watch=watch), watch) as client:
        yield client


def test_scores_come_in_input_order_with_the_scorers_name(
    client: httpx.Client, body: Any, item: Any
) -> None:
    answer = client.post("/score", json=body(item("aaa"), item("junk"), item("a"), item("")))
    assert answer.status_code == 200
    assert answer.json() == {
        "scores": [
            {"reward": 3.0, "state": "scored", "error": ""},
            {"reward": None, "state": "failed", "error": "ValueError: junk"},
            {"reward": 1.0, "state": "scored", "error": ""},
            {"reward": 0.0, "state": "scored", "error": ""},
        ],
        "scorer": "mine@1",
    }


def test_an_outage_of_the_scorer_is_unscored(client: httpx.Client, body: Any, item: Any) -> None:
    answer = client.post("/score", json=body(item("down")))
    assert answer.status_code == 200
    assert answer.json()["scores"] == [
        {"reward": None, "state": "unscored", "error": "ConnectionError: no model"}
    ]


def test_no_items_no_scores(client: httpx.Client) -> None:
    assert client.post("/score", json={"items": []}).json() == {"scores": [], "scorer": "mine@1"}


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", "Basic {token}", "{token}"])
@pytest.mark.parametrize(("method", "path"), [("POST", "/score"), ("GET", "/metrics")])
def test_401_without_the_token(
    client: httpx.Client, token: str, header: str | None, method: str, path: str
) -> None:
    client.headers.pop("Authorization")
    headers = {} if header is None else {"Authorization": header.format(token=token)}
    answer = client.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert token not in answer.text


def test_a_header_of_odd_bytes_is_401(client: httpx.Client) -> None:
    answer = client.post("/score", headers={b"Authorization": b"Bearer \xff\xfe"})
    assert answer.status_code == 401


def test_healthz_is_open_and_says_which_scorer(client: httpx.Client) -> None:
    client.headers.pop("Authorization")
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "scorer": "mine@1"})


def test_there_is_nothing_else(client: httpx.Client) -> None:
    for path in ("/", "/docs", "/openapi.json", "/redoc"):
        assert client.get(path).status_code == 404
    assert client.get("/score").status_code == 405


def test_413_over_four_mebibytes_and_not_below(client: httpx.Client, body: Any, item: Any) -> None:
    empty = len(json.dumps(body(item(""))).encode())
    fits = json.dumps(body(item("x" * (MAX_BODY - empty)))).encode()
    assert len(fits) == MAX_BODY
    assert client.post("/score", content=fits).status_code == 200
    answer = client.post("/score", content=fits + b" ")
    assert answer.status_code == 413
    assert str(MAX_BODY) in answer.json()["error"]
    assert client.post("/score", content=b"x" * (3 * MAX_BODY)).status_code == 413


def test_413_for_a_stream_that_does_not_say_its_length(client: httpx.Client) -> None:
    chunk = b"x" * 65536
    answer = client.post("/score", content=(chunk for _ in range(MAX_BODY // len(chunk) + 1)))
    assert answer.status_code == 413


def test_a_body_without_end_is_cut_off(client: httpx.Client) -> None:
    sent = [0]

    def endless() -> Iterator[bytes]:
        while sent[0] < 100 * MAX_BODY:
            sent[0] += MAX_BODY
            yield b"x" * MAX_BODY

    with contextlib.suppress(httpx.TransportError):  # the answer, or a closed connection
        assert client.post("/score", content=endless()).status_code == 413
    assert sent[0] < 100 * MAX_BODY
    assert client.get("/healthz").status_code == 200


def test_413_over_1024_items_and_not_below(client: httpx.Client, body: Any, item: Any) -> None:
    assert MAX_ITEMS == 1024
    assert client.post("/score", json=body(*[item("a")] * 1024)).status_code == 200
    assert client.post("/score", json=body(*[item("a")] * 1025)).status_code == 413


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"items": 3}',
        '{"items": [{"prompt": "p"}]}',
        '{"items": [{"prompt": "p", "response": 3}]}',
        '{"items": [{"prompt": "p", "response": null}]}',
        '{"items": [{"prompt": NaN, "response": "r"}]}',
        '{"items": [], "weight": NaN}',
        '{"items": [{"prompt": "\\ud800", "response": "r"}]}',
        b'{"items": [{"prompt": "\xff", "response": "r"}]}',
        "null",
    ],
)
def test_422_for_a_bad_shape(client: httpx.Client, content: str | bytes) -> None:
    answer = client.post("/score", content=content)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("not a request for scores: ")


def test_fields_of_later_versions_are_ignored(client: httpx.Client) -> None:
    item = {"prompt": "p", "response": "ab", "reference": "r", "task": "t", "later": 1}
    answer = client.post("/score", json={"items": [item], "later": True})
    assert [s["reward"] for s in answer.json()["scores"]] == [2.0]


def test_429_when_too_many_ask_at_once(engine_of: Any, serving: Any, body: Any, item: Any) -> None:
    release, inside = threading.Event(), threading.Event()

    def slow(items: Sequence[ScoreItem]) -> list[float]:
        inside.set()
        release.wait()
        return [1.0] * len(items)

    watch = Watch()
    engine = engine_of(slow, watch=watch)
    with serving(engine, watch, max_concurrent=1) as client, ThreadPoolExecutor(1) as helper:
        first = helper.submit(client.post, "/score", json=body(item("a")))
        assert inside.wait(30)
        refused = client.post("/score", json=body(item("b")))
        health = client.get("/healthz")
        release.set()
        assert first.result().status_code == 200
        assert client.post("/score", json=body(item("c"))).status_code == 200
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert health.status_code == 200


def test_a_rotated_token_holds_at_once(client: httpx.Client, token_file: Path, token: str) -> None:
    assert client.get("/metrics").status_code == 200
    new = "rotated-token-0123456789"
    temporary = token_file.with_suffix(".new")
    temporary.touch(0o600)
    temporary.write_text(new)
    temporary.replace(token_file)
    assert client.get("/metrics").status_code == 401
    client.headers["Authorization"] = f"Bearer {new}"
    assert client.get("/metrics").status_code == 200


def test_metrics_tell_what_happened(client: httpx.Client, body: Any, item: Any) -> None:
    client.post("/score", json=body(item("a"), item("junk")))
    client.post("/score", json=body(item("a"), item("down")))
    client.post("/score", content="{")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    rows = [r.rsplit(" ", 1) for r in answer.text.splitlines() if not r.startswith("#")]
    found = {name: float(value) for name, value in rows}
    assert all(name.startswith("verlops_reward_") for name in found)
    assert found['verlops_reward_requests_total{code="200"}'] == 2
    assert found['verlops_reward_requests_total{code="422"}'] == 1
    assert found['verlops_reward_items_total{state="scored"}'] == 2
    assert found['verlops_reward_items_total{state="failed"}'] == 1
    assert found['verlops_reward_items_total{state="unscored"}'] == 1
    assert found["verlops_reward_cache_hits_total"] == 1
    assert found['verlops_reward_failures_total{kind="outage"}'] == 1
    assert found["verlops_reward_request_seconds_count"] == 3
    assert found["verlops_reward_constant"] == 0


def test_512_equal_rewards_raise_the_gauge(client: httpx.Client, body: Any, item: Any) -> None:
    client.post("/score", json=body(*[item("ab", prompt=str(n)) for n in range(512)]))
    assert "verlops_reward_constant 1.0" in client.get("/metrics").text
    client.post("/score", json=body(item("abc")))
    assert "verlops_reward_constant 0.0" in client.get("/metrics").text


def test_many_callers_get_their_own_scores(client: httpx.Client, body: Any, item: Any) -> None:
    def ask(n: int) -> list[float]:
        items = [item("x" * (n + k), prompt=f"{n}/{k}") for k in range(5)]
        return [s["reward"] for s in client.post("/score", json=body(*items)).json()["scores"]]

    with ThreadPoolExecutor(8) as helpers:
        answers = list(helpers.map(ask, range(40)))
    assert answers == [[float(n + k) for k in range(5)] for n in range(40)]
