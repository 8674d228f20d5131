"""Counters of an engine."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from plait.generation.request import Request

_RECENT: Final = 1024  # requests whose times count in percentiles


@dataclass(frozen=True)
class EngineStats:
    """Counters and times of an engine, at the time when `engine.stats` was read.

    Attributes:
        n_active: Number of requests that are being generated.
        n_queued: Number of requests that wait.
        n_finished: Number of requests that ended with "stop" or "length".
        n_cancelled: Number of requests that were cancelled.
        n_timeout: Number of requests that reached their timeout.
        n_failed: Number of requests that ended with an error.
        n_preempted: Number of preemptions.
        n_steps: Number of steps.
        n_prompt: Prompt tokens of ended requests.
        n_cached: Those of them that were not computed, because a cached prefix held them.
        n_generated: Generated tokens.
        seconds: Time since the engine started.
        busy_seconds: Time spent in steps.
        queued_p50: Median time in the queue, in seconds, of the last 1024 ended requests; None without any.
        queued_p95: Their 95th percentile of the time in the queue, in seconds.
        first_token_p50: Their median time to the first token, in seconds.
        first_token_p95: Their 95th percentile of the time to the first token, in seconds.
        n_cells: Number of cells of the cache.
        n_used_cells: Number of cells in use, with those of kept prefixes.
    """

    n_active: int
    n_queued: int
    n_finished: int
    n_cancelled: int
    n_timeout: int
    n_failed: int
    n_preempted: int
    n_steps: int
    n_prompt: int
    n_cached: int
    n_generated: int
    seconds: float
    busy_seconds: float
    queued_p50: float | None
    queued_p95: float | None
    first_token_p50: float | None
    first_token_p95: float | None
    n_cells: int
    n_used_cells: int

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of steps."""
        return self.n_generated / self.busy_seconds if self.busy_seconds else 0.0

    def _repr_html_(self) -> str:
        from plait.display.page import table, title

        counters = [
            ("running, queued", f"{self.n_active:,}, {self.n_queued:,}"),
            ("finished", f"{self.n_finished:,}"),
            ("cancelled, timed out", f"{self.n_cancelled:,}, {self.n_timeout:,}"),
            ("failed", f"{self.n_failed:,}"),
            ("preemptions", f"{self.n_preempted:,}"),
            ("steps", f"{self.n_steps:,}"),
            ("prompt tokens", f"{self.n_prompt:,}, {self.n_cached:,} of them cached"),
            ("generated tokens", f"{self.n_generated:,}"),
            ("tokens per second", f"{self.tokens_per_second:,.1f}"),
            ("cells in use", f"{self.n_used_cells:,} of {self.n_cells:,}"),
        ]
        times = [
            (name, *("" if value is None else f"{value * 1e3:,.1f}" for value in pair))
            for name, pair in (
                ("in the queue", (self.queued_p50, self.queued_p95)),
                ("to the first token", (self.first_token_p50, self.first_token_p95)),
            )
        ]
        head = title(f"plait.Engine, {self.seconds:,.0f} s")
        return head + table(("", "count"), counters) + table(("ms", "median", "95 %"), times)


class Counters:
    """The counters behind EngineStats. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._busy = 0.0
        self._n_generated = 0
        self._n_prompt = 0
        self._n_cached = 0
        self._reasons = Counter[str]()
        self._queued: deque[float] = deque(maxlen=_RECENT)
        self._first: deque[float] = deque(maxlen=_RECENT)

    def add_step(self, n_tokens: int, seconds: float) -> None:
        """Count a step that took `seconds` and generated `n_tokens`."""
        with self._lock:
            self._n_generated += n_tokens
            self._busy += seconds

    def add_end(self, request: Request) -> None:
        """Count a request that has ended."""
        usage, timings = request.usage, request.timings
        with self._lock:
            self._reasons[str(request.finish_reason)] += 1
            self._n_prompt += usage.n_prompt
            self._n_cached += usage.n_cached
            self._queued.append(timings.queued)
            if timings.first_token is not None:
                self._first.append(timings.first_token)

    def snapshot(self, **others: int) -> EngineStats:
        """Return the counters; `others` are the fields of EngineStats that are counted elsewhere."""
        with self._lock:
            reasons = self._reasons
            return EngineStats(
                n_finished=reasons["stop"] + reasons["length"],
                n_cancelled=reasons["cancelled"], n_timeout=reasons["timeout"], n_failed=reasons["error"],
                n_prompt=self._n_prompt, n_cached=self._n_cached, n_generated=self._n_generated,
                seconds=time.monotonic() - self._start, busy_seconds=self._busy,
                queued_p50=_percentile(self._queued, 0.5), queued_p95=_percentile(self._queued, 0.95),
                first_token_p50=_percentile(self._first, 0.5), first_token_p95=_percentile(self._first, 0.95),
                **others,
            )  # fmt: skip


def _percentile(values: deque[float], p: float) -> float | None:
    """Return the smallest value that a fraction `p` of the values do not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[math.ceil(p * len(ordered)) - 1]
