"""The official `openai` client asks a server for a pydantic model, streamed or not: is every answer valid?"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tacg.bench.serve import served
from tacg.errors import TacgError
from tacg.records.surroundings import surroundings
from tacg.tasks import get_task, task_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacg.records.rows import ResultRow

CLIENTS, LENGTH = 8, 64


def measure(model: str, requests: int) -> Iterator[ResultRow]:
    """Two rows: requests with a whole response, and the same with streamed responses."""
    try:
        import openai
        import pydantic  # noqa: F401
    except ImportError:
        raise TacgError("`tacg bench constraint --requests` needs the client: pip install openai.") from None
    prompts = _prompts(requests)
    with served(model) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for stream in (False, True):
            with ThreadPoolExecutor(CLIENTS) as pool:
                jobs = [pool.submit(_fault, client, model, prompt, seed, stream) for seed, prompt in enumerate(prompts)]
                faults = [fault for job in jobs if (fault := job.result())]
            valid = requests - len(faults)
            yield {
                "bench": "constraint", "part": "client", "subject": "streamed" if stream else "at once", "model": model,
                "requests": requests, "valid": valid, "held_share": valid / requests, "temperature": 1.0,
                "gen_length": LENGTH, "openai": openai.__version__, "first_fault": faults[0] if faults else None,
                **surroundings(),
            }  # fmt: skip


def _prompts(count: int) -> list[str]:
    """Problems of all pocket tasks in turn."""
    each = -(-count // len(task_names()))
    found = [[problem.prompt for problem in get_task(name).problems("dev", each)] for name in task_names()]
    return list(itertools.islice(itertools.chain.from_iterable(zip(*found, strict=True)), count))


def _fault(client: Any, model: str, prompt: str, seed: int, stream: bool) -> str:
    """What is wrong with an answer; empty if the client's own helper can parse it."""
    kind = _answer_kind()
    asked: dict[str, Any] = {
        "model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": LENGTH, "seed": seed,
        "temperature": 1.0, "response_format": kind,
    }  # fmt: skip
    try:
        if stream:
            with client.chat.completions.stream(**asked) as events:
                answer = events.get_final_completion()
        else:
            answer = client.chat.completions.parse(**asked)
    except Exception as error:  # any error means that the answer is not valid
        return f"{type(error).__name__}: {error}"[:200]
    message = answer.choices[0].message
    return "" if isinstance(message.parsed, kind) else f"no answer: {message.content!r}"[:200]


def _answer_kind() -> Any:
    from typing import Literal

    import pydantic

    fields: dict[str, Any] = {
        "answer": (int, pydantic.Field(ge=0, le=99)),
        "sure": (bool, ...),
        "kind": (Literal["sum", "list", "grid"], ...),
    }
    return pydantic.create_model("Answer", **fields)
