"""A worker in this process: memory log, scripted engine, a reward server over real HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from verlops.artifacts.local import LocalStore
from verlops.config import parse
from verlops.machine import MachineSpec, encode_spec
from verlops.messages import Control, Prompt, Sampling, TopicNames, decode, encode
from verlops.ports import TopicSpec
from verlops.queues.memory import MemoryQueue
from verlops.versions import Version, encode_version, version_key
from verlops_workers.host import Host
from verlops_workers.rollout.scripted import ScriptedBackend
from verlops_workers.rollout.weights import Puller
from verlops_workers.rollout.worker import Worker

RUN = "r"


class RewardServer:
    """Scores every response 1; ``status`` and ``answer`` change what it says."""

    def __init__(self) -> None:
        self.status = 200
        self.state = "scored"
        self.items: list[dict] = []
        self.tokens: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.tokens.append(self.headers["authorization"])
                self.send_response(server.status)
                self.end_headers()
                if server.status == 200:
                    server.items += body["items"]
                    reward = 1.0 if server.state == "scored" else None
                    score = {"reward": reward, "state": server.state, "error": ""}
                    answer = {"scores": [score] * len(body["items"]), "scorer": "fake@1"}
                    self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_args: object) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


class Bench:
    """One environment with workers that the test turns."""

    def __init__(self, root: Path, reward: RewardServer) -> None:
        self.root = root
        self.reward = reward
        self.topics = TopicNames("w")
        self.queue = MemoryQueue()
        wide = (self.topics.prompts, self.topics.samples)
        self.queue.ensure(
            [
                TopicSpec(n, 2 if n in wide else 1, compact=n == self.topics.control)
                for n in self.topics.all()
            ]
        )
        self.store = LocalStore(root / "store")
        zero = Version(run=RUN, version=0, model="none", weights="w0")
        self.store.put_if_absent(version_key(RUN, 0), encode_version(zero))
        (root / "reward.token").write_text("secret\n")
        self.workers: list[Worker] = []

    def worker(self, name: str = "m-1", backend=None, **options) -> Worker:
        folder = self.root / name
        folder.mkdir()
        config = parse(
            {
                "name": "w",
                "state": {"path": str(self.root)},
                "queue": {"session_timeout": "5s"},
                "task": {"group_size": 2, "max_prompt_tokens": 64},
                "reward": {"retries": 0, "timeout": "2s"},
                "rollout": {"engine": "scripted", "beat": "50ms", "max_in_flight": 4},
            }
        )
        spec = MachineSpec(
            name="w",
            run=RUN,
            role="rollout",
            key="k",
            slot="rollout-0",
            generation=0,
            fence=1,
            config=config.model_dump(mode="json"),
        )
        (folder / "spec.json").write_bytes(encode_spec(spec))
        host = Host(folder)
        engine = backend or ScriptedBackend(options, config)
        worker = Worker(host, self.queue, engine, Puller(self.store, host))
        worker._generator.start()
        self.workers.append(worker)
        return worker

    def tell(self, command: str = "serve", *, target: str = "rollout", **fields) -> None:
        base = {"quota": None, "version": 0, "reward_url": self.reward.url, "fence": 1}
        control = Control(target=target, command=command, at=time.time(), **{**base, **fields})
        self.queue.publish(self.topics.control, [(target, encode(control))])

    def feed(self, count: int, start: int = 0, **fields) -> None:
        base = {"run": RUN, "group_size": 2, "sampling": Sampling(max_tokens=8)}
        for n in range(start, start + count):
            prompt = Prompt(id=f"p{n}", **{**base, "text": f"prompt {n}", **fields})
            self.queue.publish(self.topics.prompts, [(prompt.id, encode(prompt))])

    def read(self, topic: str) -> list:
        found = []
        for partition, end in self.queue.end_offsets(topic).items():
            records = self.queue.read(topic, partition, 0, max(1, end))
            found += [decode(r.value) for r in records if r.value is not None]
        return found

    def lag(self) -> int:
        return self.queue.stats(self.topics.prompts, self.topics.rollout_group).lag

    def turn(self, until: Callable[[], bool], what: str, *workers: Worker, seconds=15.0) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, f"waited for {what}"
            for worker in workers or self.workers:
                worker.turn()

    def groups(self) -> list:
        return self.read(self.topics.samples)

    def receipts(self) -> list:
        return self.read(self.topics.receipts)


@pytest.fixture
def reward() -> Iterator[RewardServer]:
    server = RewardServer()
    yield server
    server.close()


@pytest.fixture
def bench(tmp_path: Path, reward: RewardServer) -> Iterator[Bench]:
    made = Bench(tmp_path, reward)
    yield made
    for worker in made.workers:
        worker._generator.stop(5.0)
        worker._client.close()
    made.queue.close()


@pytest.fixture
def names() -> SimpleNamespace:
    return SimpleNamespace(run=RUN)
