"""The reward server's role: one process that scores responses for all workers.

Started by the guard through ``verlops-worker reward``. HTTP runs in a thread of its own, so
that beats, status and control, which may wait for the message engine, never hold up an
answer. Announces its address in its beats. Imports no torch of its own.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlops.config import Config
from verlops.errors import ConfigError, VerlopsError
from verlops.messages import Control
from verlops.ports import Queue
from verlops_workers.host import Host
from verlops_workers.runtime import Beater, ControlWatch, open_queue

if TYPE_CHECKING:
    from uvicorn import Server

    from verlops_workers.reward.watch import Watch

logger = logging.getLogger(__name__)

TOKEN = "reward.token"
PERIOD = 0.5
"""Seconds between looks at control, and the most that a stop has to wait."""
START_SECONDS = 30.0
STOP_SECONDS = 5
"""For the answers under way when the server stops."""

BUDGET = 0.8
"""Share of ``reward.timeout``, the callers' whole patience, for one request here: what is
scored by then is still read by somebody."""


def main(host: Host) -> int:
    """Serve until SIGTERM or the command ``stop``: 0. 1 when HTTP ended by itself.

    Raises ConfigError, MissingExtraError or CredentialsError before anything is served.
    """
    logging.basicConfig(
        level=host.config.logging.level.upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    host.report("booting", 0)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with Http(host.config) as http:
        queue = open_queue(host.config)
        try:
            return Role(host, http, queue, stop).run()
        finally:
            queue.close()


class Role:
    """Beats, status and control of a reward server that is up."""

    def __init__(self, host: Host, http: Http, queue: Queue, stop: threading.Event) -> None:
        self._host = host
        self._http = http
        self._stop = stop
        self._control = ControlWatch(queue, host)
        self._beater = Beater(queue, host, host.config.rollout.beat)
        self._complaint = ""

    def run(self) -> int:
        """Until told to stop; 0, or 1 when the HTTP thread has died."""
        while not self._stop.is_set():
            if not self._http.alive():
                logger.error("the HTTP server ended by itself")
                self._report("failed", error="the HTTP server ended")
                return 1
            self._turn()
            self._stop.wait(PERIOD)
        self._say("done")
        self._report("done", done=True)
        return 0

    def _turn(self) -> None:
        command = self._follow()
        phase = self._phase(command)
        self._report(phase)
        if command and command.command == "stop":
            self._stop.set()
        elif self._beater.due(phase):
            self._say(phase)

    def _report(self, phase: str, **more: Any) -> None:
        fence = self._control.fence
        self._host.report(phase, self._http.given(), control_fence=fence, **more)

    def _follow(self) -> Control | None:
        try:
            return self._control.poll()
        except VerlopsError as error:
            self._complain(error)
            return self._control.current()

    def _phase(self, command: Control | None) -> str:
        """A drained server still answers: workers that drain need their last scores."""
        if command and command.command == "drain":
            return "draining" if self._http.busy() else "drained"
        return "serving"

    def _say(self, phase: str) -> None:
        fields = {
            "url": self._http.url,
            "control_fence": self._control.fence,
            "progress": f"{self._http.given()} scores given",
        }
        try:
            self._beater.beat(phase, fields)
        except VerlopsError as error:
            self._complain(error)
        else:
            self._complaint = ""

    def _complain(self, error: VerlopsError) -> None:
        if str(error) != self._complaint:
            logger.warning("serving on without the message engine: %s", error)
        self._complaint = str(error)


class Http:
    """The HTTP server of a config, in a thread of its own, between enter and exit."""

    def __init__(self, config: Config) -> None:
        self._server, self._watch = _build(config)
        self._socket = listen(config.reward.host, config.reward.port)
        self.url = url_of(self._socket)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="http", daemon=True
        )

    def __enter__(self) -> Http:
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise VerlopsError("the HTTP server did not start", hint="see the log above")
            time.sleep(0.005)
        logger.info("listening on %s", self.url)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(2 * STOP_SECONDS)
        self._socket.close()

    def alive(self) -> bool:
        """Whether requests are answered."""
        return self._thread.is_alive()

    def busy(self) -> bool:
        """Whether a request is being answered right now."""
        return self._watch.busy > 0

    def given(self) -> int:
        """Verdicts given out so far."""
        return self._watch.given


def listen(host: str, port: int) -> socket.socket:
    """A bound listening socket; port 0 takes a free one. Raises VerlopsError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(256)
    except OSError as error:
        raise VerlopsError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="change reward.host or reward.port; port 0 takes any free one",
        ) from error
    return found


def url_of(bound: socket.socket) -> str:
    """What workers are told. A server bound to all addresses goes by the machine's name."""
    address, port = bound.getsockname()[:2]
    if address in ("0.0.0.0", "::"):
        address = socket.gethostname()
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _build(config: Config) -> tuple[Server, Watch]:
    import uvicorn

    from verlops_workers.reward.app import make_app
    from verlops_workers.reward.cache import MemoryCache
    from verlops_workers.reward.plug import load_scorer
    from verlops_workers.reward.pool import ThreadPool
    from verlops_workers.reward.scoring import Engine
    from verlops_workers.reward.token import Token
    from verlops_workers.reward.watch import Watch

    if config.state.path is None:
        raise ConfigError("state.path: required, the reward token lies there")
    token = Token(Path(config.state.path) / TOKEN)
    scorer = load_scorer(config.reward)
    cache = MemoryCache(config.reward.cache_entries) if config.reward.cache == "memory" else None
    watch = Watch()
    pool = ThreadPool(scorer.concurrency)
    engine = Engine(scorer, pool, cache, watch, BUDGET * config.reward.timeout)
    settings = uvicorn.Config(
        make_app(engine, token, watch),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return uvicorn.Server(settings), watch
