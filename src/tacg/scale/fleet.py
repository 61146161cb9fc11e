"""A fleet: the same model on many GPUs or cores of a Ray cluster, with the interface of one `LLM`.

Ray places the replicas, restarts a lost one and repeats its work. A repeated decode gives the same rows, and the
driver uses each row once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacg.constraint.pattern import some_of
from tacg.errors import LogitsError, TacgError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tacg.policies import Policy
    from tacg.types import Output

RESTARTS = 3  # restarts of a replica, and repeats of its work; more would hide a real problem
Share = list[tuple[int, Any]]  # numbered prompts


class Replica:
    """A model in its own process."""

    def __init__(self, source: str, dtype: str, device: str, threads: int) -> None:
        import torch

        from tacg.llm import load

        if device == "cpu":
            torch.set_num_threads(threads)
        self.llm = load(source, dtype=dtype, device=device)

    def identity(self) -> dict[str, str]:
        """See `LLM.identity`."""
        return self.llm.identity

    def causal_block(self) -> int | None:
        """See `ModelSpec.causal_block`."""
        return self.llm.causal_block

    def decode(
        self, share: Share, policy: str | Policy, batch_size: int, settings: Mapping[str, Any]
    ) -> list[tuple[int, Output]]:
        """The outputs of some prompts. A failed row's output contains its error."""
        found: list[tuple[int, Output]] = []

        def keep(place: int, output: Output) -> None:
            found.append((share[place][0], output))

        try:
            self.llm.generate(
                [prompt for _, prompt in share], policy, batch_size=batch_size, on_output=keep, **settings
            )
        except LogitsError:
            if len(found) < len(share):
                raise
        return found


@dataclass(frozen=True)
class Place:
    """The resources of a replica: a GPU, or some cores."""

    gpus: int
    cores: int

    @property
    def device(self) -> str:
        """The device of its model."""
        return "cuda" if self.gpus else "cpu"


class Fleet:
    """Replicas of a model on a Ray cluster; decodes like an `LLM`.

    source    as in `tacg.load`; a directory must exist on every machine
    address   of the cluster: "auto" or host:port; "local" starts one on this machine
    replicas  how many; default: one per GPU, or without GPUs one per `cores` cores
    """

    def __init__(
        self, source: str, *, address: str = "local", replicas: int | None = None, cores: int = 1,
        dtype: str = "float32",
    ) -> None:  # fmt: skip
        ray = start(address)
        self.place, count = room(machines(ray), cores, replicas)
        made = ray.remote(Replica).options(
            num_gpus=self.place.gpus, num_cpus=self.place.cores, max_restarts=RESTARTS, max_task_retries=RESTARTS
        )
        self.replicas = [made.remote(source, dtype, self.place.device, cores) for _ in range(count)]
        with told_here():
            identities = ray.get([each.identity.remote() for each in self.replicas])
        if any(each != identities[0] for each in identities):
            raise TacgError(f"{source!r} is not the same model on every machine of the cluster; copy it again.")
        self.identity: dict[str, str] = identities[0]
        self.causal_block: int | None = ray.get(self.replicas[0].causal_block.remote())

    def generate(
        self, prompts: Sequence[Any], policy: str | Policy = "tacg", *, batch_size: int = 32,
        on_output: Callable[[int, Output], None] | None = None, **settings: Any,
    ) -> list[Output]:  # fmt: skip
        """Like `LLM.generate` for a list. Idle replicas take the next share: long prompts first, small shares last."""
        from ray.util import ActorPool

        from tacg.engine.loop import refuse_failures

        if isinstance(settings.get("seed"), Sequence):
            raise TacgError("A fleet takes one `seed` for all prompts; for one seed per prompt, use an LLM.")
        pool, outputs = ActorPool(self.replicas), dict[int, Any]()
        todo = shares(prompts, batch_size, len(self.replicas))
        for share in todo:
            own = some_of(settings, [number for number, _ in share], len(prompts))
            pool.submit(lambda actor, job: actor.decode.remote(job[0], policy, batch_size, job[1]), (share, own))
        while pool.has_next():
            with told_here():
                done = pool.get_next_unordered()
            for number, output in done:
                if number not in outputs:
                    outputs[number] = output
                    if on_output is not None:
                        on_output(number, output)
        ordered = [outputs[number] for number in range(len(prompts))]
        refuse_failures(ordered)
        return ordered

    def close(self) -> None:
        """Release the replicas' resources."""
        import ray

        for each in self.replicas:
            ray.kill(each)


def shares(prompts: Sequence[Any], batch_size: int, replicas: int) -> list[Share]:
    """Numbered prompts, long ones first, in shares that get smaller towards the end so that all finish together."""
    left = sorted(enumerate(prompts), key=lambda pair: -len(str(pair[1])))
    found = []
    while left:
        size = max(1, min(batch_size, len(left) // (2 * replicas)))
        found.append(left[:size])
        left = left[size:]
    return found


def machines(ray: Any) -> list[Mapping[str, float]]:
    """The resources of each machine in the cluster."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def room(
    nodes: Sequence[Mapping[str, float]], cores: int, wanted: int | None = None, *, reader: bool = False
) -> tuple[Place, int]:
    """The resources of one replica in a cluster of these machines, and how many replicas: as wanted, or all that fit.

    reader  leave a core for reading the prompts; if replicas took all cores, they would wait forever
    """
    for name, value in (("cores", cores), ("replicas", 1 if wanted is None else wanted)):
        if value < 1:
            raise TacgError(f"`{name}` must be at least 1, got {value}.")
    gpus, total = (sum(int(node.get(kind, 0)) for node in nodes) for kind in ("GPU", "CPU"))
    place = Place(1, 1) if gpus else Place(0, cores)
    fit, spare = 0, 0
    for node in nodes:  # a replica runs on one machine
        here = int(node.get("CPU", 0)) // place.cores
        here = min(here, int(node.get("GPU", 0))) if gpus else here
        fit, spare = fit + here, spare + int(node.get("CPU", 0)) - here * place.cores
    fit -= reader and not spare
    if fit < (wanted or 1):
        raise TacgError(
            f"The cluster has {gpus} GPUs and {total} cores, too few for {wanted or 1} replicas with "
            f"{'a GPU and a core' if gpus else f'{cores} cores'} each{' and a core for the reader' if reader else ''}: "
            "ask for less."
        )
    return place, wanted or fit


def start(address: str) -> Any:
    """Ray, connected to the cluster."""
    try:
        import ray
    except ImportError:
        raise TacgError("Scaling out needs Ray: pip install 'tacg[ray]'.") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
        except (ConnectionError, ValueError) as error:
            raise TacgError(f"No Ray cluster at {address!r}: {error} Start one, or use --ray local.") from None
    return ray


@contextlib.contextmanager
def told_here() -> Iterator[None]:
    """Raise a user's error in a replica here, without Ray's tracebacks."""
    import ray

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TacgError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        cause = str(error).splitlines()[0]
        raise TacgError(f"Replicas keep failing ({cause}); is there enough memory for them?") from None
