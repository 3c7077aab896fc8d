"""The ranks of a run: what torchrun tells each process, and the few ways in which they talk outside the model."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trainer import joining
from trainer.errors import ConfigError, TrainerError
from trainer.launched import launched
from trainer.watch import failures, flight_recorder

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among all. `control` is a gloo group, so that small messages never wait behind the GPU's."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    device: torch.device
    control: dist.ProcessGroup
    store: dist.Store  # small facts, without collectives; threads take a clone of it

    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values

    def from_rank(self, value: T | None, *, source: int) -> T:
        """The value of rank `source`, on every rank."""
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=source, group=self.control)
        result: T = box[0]
        return result

    def sum(self, *values: float) -> list[float]:
        """Sums over ranks, in float64."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.control)
        return [float(value) for value in tensor]

    def maximum(self, *values: float) -> list[float]:
        """The largest over ranks, in float64."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.control)
        return [float(value) for value in tensor]

    def barrier(self) -> None:
        dist.barrier(group=self.control)

    def together(self, action: Callable[[], T], *, error: type[TrainerError], what: str) -> T:
        """Runs `action` on each rank; when it failed on any, all ranks raise the same `error`, so none waits."""
        result: T | None = None
        problem: str | None = None
        try:
            result = action()
        except OSError as failure:
            problem = f"rank {self.rank}: {failure}"
        problems = [text for text in self.gather(problem) if text]
        if problems:
            raise error(f"cannot {what} ({'; '.join(problems)}).")
        return result  # type: ignore[return-value]  # set, or we raised


@contextmanager
def processes(*, timeout_s: float = 600.0) -> Iterator[Processes]:
    """Joins the other ranks, if any; leaves in order when the body ends without an error.

    timeout_s: of a collective. When a rank fails alone, the others, whose next collective fails, raise its error.
    """
    told = launched()
    rank, world = told.rank, told.world
    device = _device(told.local_rank, told.local_world)
    backend = "nccl" if device.type == "cuda" else "gloo"
    flight_recorder.enable()
    timeout = timedelta(seconds=timeout_s)
    store: dist.Store = dist.HashStore()  # started alone: the same code path, with a store in memory
    with joining.ends_at_once():
        if told.joins:
            shared, rank, world = next(dist.rendezvous("env://", timeout=timeout))
            store = joining.fresh(shared, rank=rank, world=world, timeout=timeout)
        _check_nodes(store, device, rank=rank, world=world)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    notes = failures.notes_in(store)
    try:
        control = dist.new_group(backend="gloo", timeout=timeout)
        assert isinstance(control, dist.ProcessGroup)
        here = Processes(rank, world, told.local_rank, told.local_world, device, control, store)
        yield here
        here.barrier()  # a rank that leaves early would abort the others' connections
    except Exception as error:
        reason = failures.explained(error, notes, rank=rank, world=world)
        if reason is error:
            raise
        raise reason from error
    finally:
        dist.destroy_process_group()


def _device(local_rank: int, local_world: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if torch.cuda.device_count() < local_world:
        raise ConfigError(
            f"this node has {torch.cuda.device_count()} GPUs for {local_world} processes; "
            "start one process per GPU, or hide the GPUs with CUDA_VISIBLE_DEVICES=''."
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _check_nodes(store: dist.Store, device: torch.device, *, rank: int, world: int) -> None:
    """Refuses on all ranks what would keep some of them waiting for the others in the connections between them."""
    host = socket.gethostname()
    store.set(f"device/{rank}", f"{device.type} on {host}")
    problem = _interface_problem()
    store.set(f"interface/{rank}", f"rank {rank} on {host}: {problem}" if problem else "")
    devices, interfaces = (
        [value.decode() for value in store.multi_get([f"{what}/{number}" for number in range(world)])]
        for what in ("device", "interface")
    )
    refusal = next((text for text in interfaces if text), None) or _unlike(devices)
    if refusal:
        store.set(f"told/{rank}", "")
        if rank == 0:  # without torchrun the store ends with this process
            store.multi_get([f"told/{number}" for number in range(world)])
        raise ConfigError(refusal)


def _unlike(devices: list[str]) -> str | None:
    """Ranks of which some see a GPU and some don't: each kind would wait for the other in its own backend."""
    kinds = {text.partition(" ")[0]: (number, text) for number, text in reversed(list(enumerate(devices)))}
    if len(kinds) == 1:
        return None
    (one, first), (other, second) = sorted(kinds.values())
    return (
        f"rank {one} runs on {first} and rank {other} on {second}; mend the driver of the node without GPUs, or "
        "hide those of all nodes with CUDA_VISIBLE_DEVICES=''."
    )


def _interface_problem() -> str | None:
    """Gloo takes names of interfaces as they are, where NCCL also takes ^lo or the beginning of a name."""
    for name in filter(None, os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")):
        try:
            dist.ProcessGroupGloo.create_device(interface=name)
        except RuntimeError:
            known = ", ".join(other for _, other in socket.if_nameindex())
            return (
                f"GLOO_SOCKET_IFNAME names {name!r}, and there is no such network interface with an address; set it "
                f"on that node to one of {known}, or unset it."
            )
    return None
