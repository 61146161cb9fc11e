"""Continuous batching: one thread owns the engine; rows join and leave the running batch at any step.

Waiting requests are admitted in order of arrival, and every row in the batch takes part in every step, so no request
starves. Rows do not influence each other's answers, and a failing row does not affect the others.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from tacg.engine.events import Finished, Started
from tacg.engine.footprint import free_memory, out_of_memory, usable_memory
from tacg.engine.loop import Engine
from tacg.errors import TacgError
from tacg.serve import refusal
from tacg.serve.job import Done, Job
from tacg.serve.refusal import Refusal
from tacg.serve.trouble import DeviceLostError, check_device, repeats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tacg.engine.events import Event
    from tacg.llm import LLM
    from tacg.serve.job import Told
    from tacg.serve.limits import Limits
    from tacg.serve.metrics import Metrics
    from tacg.types import Output

log = logging.getLogger("tacg.serve")
GIB = 1 << 30


class Batcher:
    """Decodes jobs. `submit` and `cancel` may be called from any thread."""

    def __init__(self, llm: LLM, limits: Limits, metrics: Metrics) -> None:
        self._llm, self._limits, self._metrics = llm, limits, metrics
        self._memory = int(limits.memory * GIB) or usable_memory(llm.model.device)
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        # Each engine with its rows. The first is the batch; the others hold one row each, after a failed step.
        self._engines: dict[Engine, dict[int, Job]] = {self._engine(): {}}
        self._room, self._well = limits.rows, 0  # rows known to fit into memory; rows finished since then
        self._draining = self._stopped = False
        self.failure = ""  # why this batcher can never decode again
        self._usual = 1.0  # moving average of a job's duration in seconds
        self._thread = threading.Thread(target=self._run, name="tacg-batcher", daemon=True)

    def _engine(self) -> Engine:
        """An engine for the batch."""
        return self._llm.engine(self._llm.model, self._limits.rows, self._llm.verifier, self._memory)

    # -- any thread --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start decoding."""
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Accept all of these jobs, or refuse all of them."""
        with self._changed:
            if self._draining or self._stopped:
                raise refusal.leaving()
            if self.running + self.waiting + len(jobs) > self._limits.rows + self._limits.queue:
                rounds = 1 + self.waiting / self._limits.rows
                seconds = min(60, max(1, math.ceil(self._usual * rounds)))
                raise refusal.full(self._limits.rows, self._limits.queue, seconds)
            for job in jobs:
                job.begin(self._llm)
            self._waiting.extend(jobs)
            self._changed.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancel jobs: they take part in no more steps, and get no more events."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            self._changed.notify()

    def drain(self) -> None:
        """Accept no more jobs; accepted ones continue."""
        with self._changed:
            self._draining = True
            self._changed.notify()

    def stop(self) -> None:
        """Refuse the remaining jobs, and end the thread."""
        with self._changed:
            self._draining = self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=self._limits.grace)

    @property
    def running(self) -> int:
        """Rows in the batch."""
        return sum(map(len, list(self._engines.values())))

    @property
    def waiting(self) -> int:
        """Rows waiting for a place."""
        return len(self._waiting)

    @property
    def draining(self) -> bool:
        """Whether new jobs are refused."""
        return self._draining

    @property
    def alive(self) -> bool:
        """Whether the decoding thread is running."""
        return self._thread.is_alive()

    # -- the batcher's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._next():
                for engine in list(self._engines):
                    self._step(engine)
        except DeviceLostError as error:  # no later call can succeed, not even in another engine
            self.failure = f"The device {self._llm.model.spec.name!r} runs on has failed: {error}"
            log.critical("%s", self.failure)
        except Exception as error:  # a bug of ours: tell all clients instead of leaving them waiting
            self.failure = f"The batcher has failed: {type(error).__name__}."
            log.critical("%s", self.failure, exc_info=True)
        finally:
            with self._changed:
                self._draining = self._stopped = True
                for job in [*self._waiting, *(job for jobs in self._engines.values() for job in jobs.values())]:
                    job.end(refusal.broken() if self.failure else refusal.cut_off())
                self._waiting.clear()
                self._engines.clear()

    def _next(self) -> bool:
        """Wait for work, drop unwanted jobs, and admit waiting ones. False: stop."""
        with self._changed:
            while not (self._waiting or self._stopped or any(engine.busy for engine in self._engines)):
                self._changed.wait()
            if self._stopped:
                return False
            self._drop()
            engine, jobs = next(iter(self._engines.items()))
            while self._waiting and self.running < min(self._room, self._limits.rows):
                job = self._waiting[0]  # it stays in the queue, so that it is informed if everything fails here
                try:
                    jobs[engine.submit(job.request)] = job
                    self._waiting.popleft()
                except TacgError as error:
                    self._waiting.popleft().end(refusal.bad(str(error)))
                except Exception as error:
                    check_device(self._llm.model)
                    log.error("a row cannot join: %s", type(error).__name__)
                    self._waiting.popleft()
                    if out_of_memory(error):
                        self._put_back([job])
                    else:
                        job.end(refusal.failed(type(error).__name__))
        return True

    def _drop(self) -> None:
        """Drop jobs that were cancelled or are past their deadline."""
        now = time.monotonic()

        def over(job: Job) -> bool:
            if not job.cancelled and now - job.began > job.deadline:
                job.end(refusal.late(job.deadline))
            return job.cancelled

        kept = [job for job in self._waiting if not over(job)]
        self._waiting.clear()
        self._waiting.extend(kept)
        for engine, jobs in self._engines.items():
            for row in [row for row, job in jobs.items() if over(job)]:
                engine.cancel(row)
                self._metrics.add("tacg_rows_total", how="dropped")
                del jobs[row]

    def _step(self, engine: Engine) -> None:
        jobs = self._engines[engine]
        detail = {row: job.trace for row, job in jobs.items() if job.watched}
        try:
            events = engine.step(detail=detail)
        except Exception as error:  # a policy or model may raise anything
            check_device(self._llm.model)
            lost = [jobs.pop(row) for row in sorted(engine.lost & jobs.keys())]
            engine.lost.clear()
            if not out_of_memory(error):
                self._isolate(engine, lost, error)
                return
        else:
            self._hear(engine, events)
            return
        self._shed(lost)  # the error is released here, with the tensors in its frames

    def _hear(self, engine: Engine, events: Iterable[Event]) -> None:
        jobs = self._engines[engine]
        self._metrics.add("tacg_engine_steps_total")
        for event in events:
            job = jobs.get(event.row)
            if job is not None:
                for told in self._read(engine, job, event):
                    job.hear(told)
            if isinstance(event, Finished):
                jobs.pop(event.row, None)
        if not jobs and engine is not next(iter(self._engines)):
            del self._engines[engine]

    def _read(self, engine: Engine, job: Job, event: Event) -> Iterator[Told]:
        """What an event means to the waiting client."""
        assert job.transcript is not None
        if isinstance(event, Finished):
            yield from self._finish(job, event.output)
        elif isinstance(event, Started):
            if not job.shown:  # otherwise it restarts, which the client should not notice
                yield event
        elif event.step > job.steps:
            job.steps = event.step
            if job.trace:
                yield event
                return
            piece = job.transcript.add(event)
            job.text += piece.text
            if job.transcript.stopped:
                engine.cancel(event.row)
            if piece.text or piece.tokens:
                yield piece

    def _finish(self, job: Job, output: Output) -> Iterator[Told]:
        assert job.transcript is not None
        how = "stop" if job.transcript.stopped else output.finish_reason
        self._metrics.add("tacg_rows_total", how=how)
        self._metrics.add("tacg_forwards_total", output.forwards)
        self._usual += 0.1 * (time.monotonic() - job.began - self._usual)
        self._well += 1
        if self._well >= self._room:  # memory may have room for one more by now
            self._room, self._well = min(self._room + 1, self._limits.rows), 0
        if output.error:
            yield refusal.failed(output.error)
            return
        piece = job.transcript.close(output)
        job.text += piece.text
        if piece.text or piece.tokens:
            yield piece
        self._metrics.add("tacg_tokens_total", len(output.tokens))
        self._metrics.add("tacg_prompt_tokens_total", output.prompt_tokens)
        reason = "stop" if job.transcript.stopped or output.finish_reason == "eos" else "length"
        yield Done(replace(output, text=job.text), reason)

    # -- trouble -----------------------------------------------------------------------------------------------------

    def _shed(self, lost: list[Job]) -> None:
        """After a step that ran out of memory: fewer rows. Removes the rows that the step lost, or else the youngest
        row, preferably one of which the client has seen nothing.
        """
        self._metrics.add("tacg_memory_shortages_total")
        free_memory(self._llm.model.device)
        if not lost:
            running = [(each, row, job) for each, jobs in self._engines.items() for row, job in jobs.items()]
            if not running:  # every row has ended already
                return
            engine, row, youngest = min(running, key=lambda found: (found[2].shown, -found[2].began))
            engine.cancel(row)
            del self._engines[engine][row]
            lost = [youngest]
        log.error("out of memory with %d rows; %d start again later, or end", self.running + len(lost), len(lost))
        with self._changed:
            self._put_back(lost)

    def _put_back(self, jobs: Sequence[Job]) -> None:
        """Put jobs back at the head of the queue until there is more memory; a row that was alone ends instead."""
        alone = not self.running and len(jobs) == 1
        self._room, self._well = max(1, self.running + len(jobs) - 1), 0
        for job in reversed(jobs):
            if alone or not self._may_restart(job):
                self._metrics.add("tacg_rows_total", how="error")
                job.end(refusal.no_memory(alone=alone))
            else:
                job.begin(self._llm)
                self._waiting.appendleft(job)

    def _isolate(self, engine: Engine, lost: list[Job], error: Exception) -> None:
        """After a step that failed: each of its rows restarts in its own engine; a row that was alone fails.

        lost  the rows that the step was processing; empty: it may have been any, so the whole engine is dropped
        """
        jobs = lost or list(self._engines[engine].values())
        if len(jobs) == 1:
            reason = str(error) if isinstance(error, TacgError) else f"{type(error).__name__} in the model or policy."
            log.error("a row fails: %s", type(error).__name__)
            self._metrics.add("tacg_rows_total", how="error")
            jobs.pop().end(refusal.failed(reason))
        else:
            log.error("a step fails (%s); its %d rows start again, each alone", type(error).__name__, len(jobs))
            self._metrics.add("tacg_engine_restarts_total")
        alone = {}
        for job in jobs:
            own = Engine(self._llm.model, 1, self._llm.verifier)
            try:
                if not self._may_restart(job):
                    raise refusal.interrupted()
                job.begin(self._llm)
                alone[own] = {own.submit(job.request): job}
            except Exception as again:
                self._metrics.add("tacg_rows_total", how="error")
                job.end(again if isinstance(again, Refusal) else refusal.failed(type(again).__name__))
        with self._changed:
            first = next(iter(self._engines))
            kept = {each: rows for each, rows in self._engines.items() if lost or each is not engine}
            fresh = {self._engine(): dict[int, Job]()} if first not in kept else {}
            self._engines = fresh | kept | alone

    def _may_restart(self, job: Job) -> bool:
        """Whether the job may start again: if the client has seen nothing yet, or the answer is sure to be the same."""
        return not job.shown or repeats(self._llm.model)
