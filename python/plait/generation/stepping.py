"""The thread that steps the scheduler of an engine, and the delivery of events to tasks and threads."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from plait.closeable import Closeable
from plait.generation.engine_stats import Counters

if TYPE_CHECKING:
    from plait.context import Context
    from plait.generation.events import Event
    from plait.generation.request import Request
    from plait.generation.scheduler import Scheduler

_POLL: Final = (
    0.005  # seconds between attempts to start a request while other callers hold all cells
)
_log: Final = logging.getLogger("plait")
_threads: Final = itertools.count(1)

Delivery = tuple["Call", "list[Event]", "Request | None"]  # the request if it has ended


class Call:
    """A request of a caller, and where its events go.

    Args:
        streaming: False to deliver only the end of the request.
    """

    def __init__(self, streaming: bool) -> None:
        self.streaming = streaming
        self.since = time.monotonic()
        self.request: Request | None = None  # set once submitted
        self.ended = False

    def put(self, delivery: Delivery) -> None:
        """Deliver events. Called in the loop of the call, or in the stepping thread if it has none."""
        raise NotImplementedError

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that delivers the events; None: the stepping thread."""
        return None

    def cancel(self) -> None:
        """End the request and free its cells. Does nothing if it has ended."""
        if self.request is not None and not self.request.done:
            self.request.cancel()


class ThreadCall(Call):
    """A call of a thread, which waits for its events in a queue."""

    def __init__(self, streaming: bool, events: queue.SimpleQueue[Delivery] | None = None) -> None:
        super().__init__(streaming)
        self.events: queue.SimpleQueue[Delivery] = queue.SimpleQueue() if events is None else events

    def put(self, delivery: Delivery) -> None:
        """Deliver events."""
        self.events.put(delivery)


class TaskCall(Call):
    """A call of a task of the running event loop."""

    def __init__(self, streaming: bool) -> None:
        super().__init__(streaming)
        self._loop = asyncio.get_running_loop()
        self._deliveries: deque[Delivery] = deque()
        self._waiting: asyncio.Future[None] | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the task."""
        return self._loop

    def put(self, delivery: Delivery) -> None:
        """Deliver events."""
        self._deliveries.append(delivery)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def get(self) -> Delivery:
        """Wait for the next events."""
        while not self._deliveries:
            self._waiting = self._loop.create_future()
            await self._waiting
        return self._deliveries.popleft()


class Stepper(Closeable):
    """Steps a scheduler in a thread while it has requests.

    Args:
        scheduler: The scheduler, which the thread closes at its end.
        max_queued: Max requests that wait in the scheduler.
        owned: A context that the thread closes at its end.
    """

    def __init__(self, scheduler: Scheduler, max_queued: int, owned: Context | None) -> None:
        self.counters = Counters()
        self._scheduler = scheduler
        self._max_queued = max_queued
        self._owned = owned
        self._wake = threading.Condition()
        self._gates: dict[
            Callable[[], object], float
        ] = {}  # callers that wait for a place, and until when
        self._n_reserved = 0  # places of callers that are about to submit
        self._closing = False
        self._cancelled = False  # whether a request was cancelled since the last step
        self._idle = False  # whether the last step could not start any request
        self._thread = threading.Thread(
            target=self._run, name=f"plait-engine-{next(_threads)}", daemon=True
        )
        self._thread.start()

    # -- callers ---------------------------------------------------------------------------------------

    @property
    def closing(self) -> bool:
        """True once close() has been called."""
        return self._closing

    @property
    def n_queued(self) -> int:
        """Number of requests that have not started, with those that wait for a place."""
        return self._scheduler.n_waiting + len(self._gates)

    def reserve(self, gate: Callable[[], object], deadline: float = math.inf) -> bool:
        """Reserve a place in the queue.

        Args:
            gate: Called from any thread once a place is reserved, unless one is free now.
            deadline: The time (monotonic) from which a place is reserved although the queue is full. A request that has
                reached its timeout ends in the next step.

        Returns:
            True if a place is reserved now.
        """
        with self._wake:
            if not self._gates and self._n_free_places() > 0:
                self._n_reserved += 1
                return True
            self._gates[gate] = deadline
            return False

    def release(self, gate: Callable[[], object] | None = None) -> None:
        """Give back a reserved place, or stop waiting for one.

        Args:
            gate: What was given to reserve(), if its caller no longer waits.
        """
        with self._wake:
            if gate is None or self._gates.pop(gate, None) is None:
                self._n_reserved -= 1
        self._open_gates()

    def submit(self, call: Call, prompt: list[int], **parameters: Any) -> Request:
        """Submit the request of a call, for which a place is reserved, and give back the place."""
        try:
            request = self._scheduler.submit(prompt, owner=call, since=call.since, **parameters)
        except BaseException:
            self.release()
            raise
        call.request = request
        with self._wake:
            self._n_reserved -= 1
            self._wake.notify()
        return request

    def cancel(self, call: Call) -> None:
        """End the request of a call and free its cells. Does nothing if it has ended."""
        if call.request is None or call.request.done:
            return
        call.cancel()
        with self._wake:
            self._cancelled = True
            self._wake.notify()

    def close(self) -> None:
        """End all requests and the thread. Waits for the current step, also if Ctrl-C interrupts it meanwhile.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed. The thread has ended.
        """
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                with self._wake:
                    self._closing = True
                    self._wake.notify()
                if threading.current_thread() is not self._thread:
                    self._thread.join()  # a daemon thread must not outlive the interpreter
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    # -- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait():
                self._deliver(self._step())
                self._open_gates()
        finally:
            self._closing = True
            with suppress(Exception):  # the context may be closed
                self._scheduler.close()
            self._deliver([])
            self._open_gates()
            if self._owned is not None:
                self._owned.close()

    def _wait(self) -> bool:
        """Wait until there is work. Returns False if the thread is to end."""
        with self._wake:
            if self._idle and self._scheduler.busy and not self._closing:
                self._wake.wait(_POLL)
            while not (self._closing or self._scheduler.busy or self._cancelled):
                self._wake.wait()
            self._cancelled = False
            return not self._closing

    def _step(self) -> list[tuple[Request, Event]]:
        scheduler = self._scheduler
        if not scheduler.busy:
            return []
        pairs: list[tuple[Request, Event]] = []
        start = time.monotonic()
        try:
            pairs = scheduler.advance()
        except BaseException as error:
            _log.warning("engine: a step failed, which ends all requests", exc_info=error)
            self._fail_all(error)
        self._idle = not pairs and scheduler.n_active == 0
        n_tokens = sum(event.token >= 0 for _, event in pairs)
        self.counters.add_step(n_tokens, time.monotonic() - start)
        return pairs

    def _fail_all(self, error: BaseException) -> None:
        try:
            self._scheduler.fail(error)
        except Exception as second:
            _log.warning("engine: the cells of failed requests were not freed", exc_info=second)

    def _deliver(self, pairs: list[tuple[Request, Event]]) -> None:
        """Pass the events of a step and the ends of requests to their calls, at most once per event loop."""
        events: dict[Request, list[Event]] = {}
        for request, event in pairs:
            if request.owner.streaming:  # type: ignore[attr-defined]
                events.setdefault(request, []).append(event)
        ended = dict.fromkeys(self._scheduler.take_ended())
        by_loop: dict[asyncio.AbstractEventLoop, list[Delivery]] = {}
        for request in {**events, **ended}:
            call = request.owner
            assert isinstance(call, Call)
            if request in ended:
                self.counters.add_end(request)
            delivery = (call, events.get(request, []), request if request in ended else None)
            if call.loop is None:
                call.put(delivery)
            else:
                by_loop.setdefault(call.loop, []).append(delivery)
        for loop, deliveries in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, deliveries)
            except RuntimeError:  # the loop is closed
                for call, *_ in deliveries:
                    call.cancel()

    # -- the queue -------------------------------------------------------------------------------------

    def _n_free_places(self) -> int:
        if self._closing:
            return self._n_reserved + 1
        return self._max_queued - self._scheduler.n_waiting - self._n_reserved

    def _open_gates(self) -> None:
        opened = []
        with self._wake:
            while self._gates:
                gate = next(iter(self._gates))
                if self._n_free_places() <= 0:
                    gate = min(self._gates, key=self._gates.__getitem__)
                    if self._gates[gate] > time.monotonic():
                        break
                self._n_reserved += 1
                del self._gates[gate]
                opened.append(gate)
        for gate in opened:
            gate()


def _put_all(deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        delivery[0].put(delivery)
