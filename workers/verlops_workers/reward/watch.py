"""What the reward server counts, and the alarm for scores that are all the same.

Written by the app and the scoring engine, read at ``/metrics`` in the Prometheus format.
Each server has a registry of its own: nothing here is global.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

logger = logging.getLogger(__name__)

WINDOW = 512
"""Scores given out last; all equal means that nothing can be learnt from them."""

SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
MAX_REASONS = 100
"""Different reasons of failures that get a log line; all are counted."""


class ConstantAlarm:
    """Whether the last ``window`` scores were all equal."""

    def __init__(self, window: int = WINDOW) -> None:
        self._scores: deque[float] = deque(maxlen=window)
        self.on = False

    def see(self, scores: Iterable[float]) -> None:
        """Take note of scores given out; logs when the alarm goes on or off."""
        self._scores.extend(scores)
        full = len(self._scores) == self._scores.maxlen
        now_on = full and len(set(self._scores)) == 1
        if now_on and not self.on:
            text = "the last %d rewards were all %g: nothing can be learnt from them"
            logger.warning(text, len(self._scores), self._scores[-1])
        elif self.on and not now_on:
            logger.info("rewards differ again")
        self.on = now_on


class Watch:
    """Counters of one server. ``items`` counts by state: scored, unscored, failed."""

    def __init__(self, window: int = WINDOW) -> None:
        registry = self._registry = CollectorRegistry()
        self.alarm = ConstantAlarm(window)
        self.busy = 0
        """Requests being answered."""
        self.given = 0
        """Verdicts given out; grows with every item."""
        self.requests = Counter(
            "verlops_reward_requests", "Requests to /score by status.", ["code"], registry=registry
        )
        self.items = Counter(
            "verlops_reward_items", "Items by state.", ["state"], registry=registry
        )
        self.hits = Counter(
            "verlops_reward_cache_hits", "Scores found in the cache.", registry=registry
        )
        self.misses = Counter(
            "verlops_reward_cache_misses", "Scores not found in the cache.", registry=registry
        )
        self.cache_errors = Counter(
            "verlops_reward_cache_errors", "Cache calls that failed.", registry=registry
        )
        self.failures = Counter(
            "verlops_reward_failures",
            "Scorer calls that failed: rejected (the input) or outage (the scorer).",
            ["kind"],
            registry=registry,
        )
        self.latency = Histogram(
            "verlops_reward_request_seconds",
            "Time to answer /score.",
            buckets=SECONDS,
            registry=registry,
        )
        self.scorer_latency = Histogram(
            "verlops_reward_scorer_seconds",
            "Time of one scorer call.",
            buckets=SECONDS,
            registry=registry,
        )
        in_flight = Gauge("verlops_reward_in_flight", "Requests being answered.", registry=registry)
        in_flight.set_function(lambda: self.busy)
        self.stuck = Gauge(
            "verlops_reward_stuck", "Scorer calls that ran out of time.", registry=registry
        )
        self._constant = Gauge(
            "verlops_reward_constant",
            f"1 when the last {window} scores were all equal.",
            registry=registry,
        )
        self._reasons: set[str] = set()

    def gave(self, states: Iterable[str], scores: Iterable[float]) -> None:
        """Count the verdicts of one request."""
        for state in states:
            self.items.labels(state).inc()
            self.given += 1
        self.alarm.see(scores)
        self._constant.set(self.alarm.on)

    def failed(self, kind: str, reason: str) -> None:
        """Count a failed scorer call; a reason is logged the first time it is seen."""
        self.failures.labels(kind).inc()
        if reason not in self._reasons and len(self._reasons) < MAX_REASONS:
            self._reasons.add(reason)
            logger.warning("scorer call failed (%s): %s", kind, reason)

    def cache_failed(self, error: Exception) -> None:
        """Count a cache call that failed; logged the first time its kind is seen."""
        self.cache_errors.inc()
        reason = f"cache: {type(error).__name__}"
        if reason not in self._reasons:
            self._reasons.add(reason)
            logger.warning("the cache failed, scores are computed without it: %r", error)

    def text(self) -> bytes:
        """All of it in the Prometheus text format."""
        return generate_latest(self._registry)
