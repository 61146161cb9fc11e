"""Continuous batching: one thread owns the engine; rows join and leave the running batch at any step.

Whoever waits gets in by order of arrival, and every row in the batch takes part in every step, so nobody starves. A
row's answer does not depend on its neighbours, and neither does its failure.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tacg.engine.events import Finished, Started, Step
from tacg.engine.loop import Engine
from tacg.errors import TacgError
from tacg.serve import refusal
from tacg.serve.refusal import Refusal
from tacg.serve.transcript import Piece, Transcript

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tacg.engine.events import Event
    from tacg.engine.request import Request
    from tacg.llm import LLM
    from tacg.serve.limits import Limits
    from tacg.serve.metrics import Metrics
    from tacg.types import Output

log = logging.getLogger("tacg.serve")


@dataclass(frozen=True, slots=True)
class Done:
    """A row's last word: what it did; its text, all pieces together; and OpenAI's reason, stop or length."""

    output: Output
    reason: str


Told = Started | Step | Piece | Done | Refusal


@dataclass(eq=False)
class Job:
    """A row that somebody waits for.

    tell      receives what happens, in the batcher's thread; the last is a `Done` or a `Refusal`
    stream    tell pieces of text as they settle
    trace     tell every step with everything measured
    deadline  seconds from now until it must be done
    """

    request: Request
    tell: Callable[[Told], None]
    deadline: float
    stop: tuple[str, ...] = ()
    stream: bool = False
    trace: bool = False
    logprobs: bool = False
    cancelled: bool = False
    began: float = field(default_factory=time.monotonic)
    steps: int = 0  # told so far; a row that has to start again repeats none
    text: str = ""
    transcript: Transcript | None = None

    @property
    def watched(self) -> bool:
        """Whether its steps matter on the way."""
        return self.trace or self.stream or bool(self.stop)


class Batcher:
    """Decodes jobs. `submit` and `cancel` may be called from any thread."""

    def __init__(self, llm: LLM, limits: Limits, metrics: Metrics) -> None:
        self._llm, self._limits, self._metrics = llm, limits, metrics
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        # An engine with its rows. The first is the batch; others hold one row each, after a step that failed.
        self._engines: dict[Engine, dict[int, Job]] = {Engine(llm.model, limits.rows): {}}
        self._draining = self._stopped = False
        self._usual = 1.0  # seconds that a job takes, a moving average
        self._thread = threading.Thread(target=self._run, name="tacg-batcher", daemon=True)

    # -- any thread --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to decode."""
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take all of these jobs, or refuse all of them."""
        with self._changed:
            if self._draining or self._stopped:
                raise refusal.leaving()
            if self.running + self.waiting + len(jobs) > self._limits.rows + self._limits.queue:
                rounds = 1 + self.waiting / self._limits.rows
                seconds = min(60, max(1, math.ceil(self._usual * rounds)))
                raise refusal.full(self._limits.rows, self._limits.queue, seconds)
            for job in jobs:
                made = Transcript(self._llm, job.request.decode.gen_length, job.stop, tokens=job.logprobs)
                job.transcript = made
            self._waiting.extend(jobs)
            self._changed.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Nobody waits for these any more: they take part in no further step, and are told nothing more."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            self._changed.notify()

    def drain(self) -> None:
        """Take no more jobs; those accepted go on."""
        with self._changed:
            self._draining = True
            self._changed.notify()

    def stop(self) -> None:
        """Refuse what is left, and end the thread."""
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
        """Rows that wait for a place."""
        return len(self._waiting)

    @property
    def draining(self) -> bool:
        """Whether new jobs are refused."""
        return self._draining

    @property
    def alive(self) -> bool:
        """Whether anything is still decoded here."""
        return self._thread.is_alive()

    # -- the batcher's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._next():
                for engine in list(self._engines):
                    self._step(engine)
        except Exception as error:  # a fault of ours: better to say so to everybody than to leave them waiting
            log.critical("the batcher fails: %s", type(error).__name__, exc_info=True)
        finally:
            with self._changed:
                self._draining = self._stopped = True
                for job in [*self._waiting, *self._jobs()]:
                    self._end(job, refusal.cut_off())
                self._waiting.clear()
                self._engines.clear()

    def _next(self) -> bool:
        """Wait until there is something to do, let go of what is not wanted, let in what waits. False: stop."""
        with self._changed:
            while not (self._waiting or self._stopped or any(engine.busy for engine in self._engines)):
                self._changed.wait()
            if self._stopped:
                return False
            self._drop()
            engine, jobs = next(iter(self._engines.items()))
            while self._waiting and self.running < self._limits.rows:
                job = self._waiting.popleft()
                try:
                    jobs[engine.submit(job.request)] = job
                except TacgError as error:
                    self._end(job, refusal.bad(str(error)))
                except Exception as error:  # such as no memory for another row: the others go on
                    log.error("a row cannot join: %s", type(error).__name__)
                    self._end(job, refusal.failed(type(error).__name__))
        return True

    def _drop(self) -> None:
        """Let go of jobs that nobody waits for, or that are late."""
        now = time.monotonic()

        def over(job: Job) -> bool:
            if not job.cancelled and now - job.began > job.deadline:
                self._end(job, refusal.late(job.deadline))
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
        except Exception as error:  # whatever a policy or a model does wrong
            self._isolate(engine, error)
            return
        self._metrics.add("tacg_engine_steps_total")
        for event in events:
            job = jobs.get(event.row)
            if job is not None:
                for told in self._read(engine, job, event):
                    self._tell(job, told)
            if isinstance(event, Finished):
                jobs.pop(event.row, None)
        if not jobs and engine is not next(iter(self._engines)):
            del self._engines[engine]

    def _read(self, engine: Engine, job: Job, event: Event) -> Iterator[Told]:
        """What an event means to the one who waits."""
        assert job.transcript is not None
        if isinstance(event, Finished):
            yield from self._finish(job, event.output)
        elif isinstance(event, Started):
            yield event
        elif event.step > job.steps:
            job.steps = event.step
            if job.trace:
                yield event
                return
            piece = job.transcript.add(event.committed)
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
        if output.error:
            yield refusal.failed(output.error)
            return
        piece = job.transcript.close(output.commits)
        job.text += piece.text
        if piece.text or piece.tokens:
            yield piece
        self._metrics.add("tacg_tokens_total", len(output.tokens))
        self._metrics.add("tacg_prompt_tokens_total", output.prompt_tokens)
        reason = "stop" if job.transcript.stopped or output.finish_reason == "eos" else "length"
        yield Done(replace(output, text=job.text), reason)

    def _isolate(self, engine: Engine, error: Exception) -> None:
        """After a step that failed: each row starts again in an engine of its own; one that is alone already fails.

        Answers are determined by their requests, so what was told so far still stands.
        """
        jobs = self._engines[engine]
        if len(jobs) == 1:
            (job,) = jobs.values()
            reason = str(error) if isinstance(error, TacgError) else f"{type(error).__name__} in the model or policy."
            log.error("a row fails: %s", type(error).__name__)
            self._metrics.add("tacg_rows_total", how="error")
            self._end(job, refusal.failed(reason))
        else:
            log.error("a step fails (%s); its %d rows start again, each alone", type(error).__name__, len(jobs))
            self._metrics.add("tacg_engine_restarts_total")
        alone = {}
        for job in jobs.values() if len(jobs) > 1 else ():
            own = Engine(self._llm.model, 1)
            alone[own] = {own.submit(job.request): job}
        with self._changed:
            first = next(iter(self._engines)) is engine
            kept = {each: rows for each, rows in self._engines.items() if each is not engine}
            fresh = {Engine(self._llm.model, self._limits.rows): dict[int, Job]()} if first else {}
            self._engines = fresh | kept | alone

    def _end(self, job: Job, told: Refusal) -> None:
        self._tell(job, told)
        job.cancelled = True

    def _tell(self, job: Job, told: Told) -> None:
        if job.cancelled:
            return
        try:
            job.tell(told)
        except Exception:  # the one who waited is gone, and its event loop with it
            job.cancelled = True

    def _jobs(self) -> list[Job]:
        return [job for jobs in self._engines.values() for job in jobs.values()]
