"""The gang: the machines of a cluster on a cloud, made all or none, all in one zone, and never twice.

Why not one native Pulumi resource a machine: the engine can't undo, so a gang of eight of which the fifth isn't to be
had would leave four on the bill until somebody acts; it can't go on to another zone; and the clouds' idempotency
tokens aren't among its arguments, so a kill between the call and the record would make the machine a second time.

    zones in order:  launch the first machine, then the others
                     one of them can't be had   -> end all of them, next zone
                     another error              -> end all of them, raise it
    before each call its token is on disk: the same call again (after a kill, a time-out) gives the same machine

Knows no cloud: that is `Machines`, which each provider implements over its API. Knows no Pulumi: gang_resource.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from infra.errors import AccessError, CapacityError, ProviderError, QuotaError, UnsupportedError
from infra.first_boot import FirstBoot
from infra.gang_record import Record

_AT_ONCE = 8  # launches under way at a time: the clouds throttle beyond
_LOOK_EVERY_S = 3.0
_LOOKS_AT_NOTHING = 2
_LOOKS_AFTER_NO_ANSWER = 6  # the call may have made a machine, which is seen some seconds later
_MOST_LOOKS = 20
_CLEAR = (CapacityError, UnsupportedError, QuotaError, AccessError)  # refusals: that call made nothing


@dataclass(frozen=True, kw_only=True)
class Order:
    """One machine, as asked for."""

    boot: FirstBoot
    rank: int
    zone: str
    token: str
    """Up to 32 characters, made for this one machine: asked twice with it, there is still one machine."""

    @property
    def name(self) -> str:
        """ "node-3"."""
        return self.boot.name


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine, as the provider's API tells it."""

    id: str
    name: str
    """The node's name that it was ordered under."""
    zone: str
    state: Literal["starting", "running", "stopped", "ending", "ended"]
    """"stopped" is neither: it bills its disk and comes back by nobody's doing but the user's."""
    private_address: str = ""
    """"" until the provider has given one."""
    public_address: str = ""
    public_port: int = 22
    """Where SSH is reached at `public_address`: container clouds map another one."""
    fault: ProviderError | None = None
    """Why it ended by itself, where the provider says so."""
    facts: dict[str, str] = field(default_factory=dict)
    """What else this provider's other resources need to know: the id of its first interface."""

    @property
    def lives(self) -> bool:
        return self.state in ("starting", "running")

    @property
    def bills(self) -> bool:
        """And nobody has told it to end."""
        return self.lives or self.state == "stopped"


class Machines(Protocol):
    """One stack's machines on one cloud."""

    boot_deadline_s: float
    """How long this kind of machine may take until it runs and has its address."""

    def launch(self, order: Order) -> str:
        """Ask for one machine; returns its id. An order with a token that was used gives the machine of then.

        Raises CapacityError or UnsupportedError (of that zone), QuotaError, AccessError, ProviderError.
        """

    def find(self, ids: Iterable[str] = ()) -> list[Machine]:
        """Every machine that bears the stack's identity and this checkout's mark, and those called `ids`.

        In whatever state, for as long as the provider knows of them. Raises ProviderError on an answer that is none.
        """

    def end(self, ids: Sequence[str]) -> None:
        """End them, and return when the provider says that they have ended. One that isn't there has ended.

        Raises ProviderError with those that still live.
        """


@runtime_checkable
class LaunchesWhole(Protocol):
    """The optional power of Machines whose gang is made by one call: none of it can be made, or made anew, alone."""

    def launch_whole(self, orders: Sequence[Order]) -> dict[str, str]:
        """Ids by node's name. What `launch` says of tokens and errors holds for the call as a whole."""


@dataclass(frozen=True, kw_only=True)
class Gang:
    """What is asked of `Machines`, and with which keys."""

    machines: Machines
    record: Record
    names: Sequence[str]
    """In rank order."""
    what: str
    """For messages: "p5.48xlarge on demand"."""
    boot: Callable[[str], FirstBoot]
    """By a node's name; the same each time it is asked for one name."""
    report: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _told: set[str] = field(default_factory=set, init=False, repr=False)
    """Ids that `launch` has told."""
    _unanswered: list[BaseException] = field(default_factory=list, init=False, repr=False)
    """Errors of calls that may have made a machine, which is seen later then."""

    def raise_in_one_of(self, zones: Sequence[str]) -> list[Machine]:
        """All machines, running, in rank order, in the first zone that has them all.

        A gang that an earlier, killed call began is finished in its zone. Raises CapacityError when no zone has them,
        any other ProviderError as it comes; in both cases nothing of the gang is left, or the error says what is.
        """
        begun = self.record.zone
        order = sorted(zones, key=lambda zone: zone != begun)
        self._end_strangers(zones)
        refusals: list[str] = []
        kinds: set[type[ProviderError]] = set()
        for zone in order:
            try:
                return self.complete(zone)
            except (CapacityError, UnsupportedError) as error:
                self._end_all(error)
                refusals.append(f"{zone}: {error}")
                kinds.add(type(error))
                self.report(f"{len(self.names)} × {self.what} can't be had in {zone}, nothing is kept of it: {error}")
            except Exception as error:
                self._end_all(error)
                raise
        kind = UnsupportedError if kinds == {UnsupportedError} else CapacityError
        raise kind(
            f"{len(self.names)} × {self.what} can't be had now ({'; '.join(refusals)}): nothing was kept; try later, "
            "or other zones, another region or market, or a reservation"
        )

    def complete(self, zone: str) -> list[Machine]:
        """The machines that are there and those that are missing, launched; all running, in rank order.

        On an error what was there stays; what is stopped or in another zone is ended.
        """
        found = self.machines.find()
        # One in another zone is of a killed try, and was seen only now.
        wrong = [machine.id for machine in found if machine.bills and (machine.zone != zone or not machine.lives)]
        self.machines.end(wrong)
        there = {machine.name: machine for machine in found if machine.lives and machine.id not in wrong}
        for name in there:
            self.record.confirm(name)
        missing = [name for name in self.names if name not in there]
        whole = isinstance(self.machines, LaunchesWhole)
        if whole and missing and there:
            self.report(f"{', '.join(missing)} can't be made alone: ending the others, to make all anew")
            self.machines.end([machine.id for machine in there.values()])
            there, missing = {}, list(self.names)
        self.record.begin(zone)
        ids = {name: machine.id for name, machine in there.items() if name in self.names}
        # The first alone: where there is no capacity, the others needn't be asked for.
        for few in (missing,) if whole else (missing[:1], missing[1:]):
            ids.update(self._launch(few, zone))
        running = self._await_running(ids)
        for name in self.names:
            self.record.confirm(name)
        return [running[name] for name in self.names]

    def mend(self, zone: str) -> list[Machine]:
        """`complete` for a gang that runs: what fails leaves nothing new behind, and what lived lives on."""
        kept = {machine.id for machine in self.machines.find() if machine.lives}
        try:
            return self.complete(zone)
        except Exception as error:
            self._end_all(error, kept=kept)
            raise

    def end_all(self) -> None:
        """Nothing of the gang is left, nor of a call whose answer never came. Raises ProviderError with what is."""
        self._end_what_shows(enough=_LOOKS_AFTER_NO_ANSWER if self.record.is_open else _LOOKS_AT_NOTHING)
        self.record.all_ended()

    def _launch(self, names: Sequence[str], zone: str) -> dict[str, str]:
        """Ids by name. All calls have ended when this returns or raises, so that what they made can be found."""
        if not names:
            return {}
        orders = [
            Order(
                boot=self.boot(name),
                rank=self.names.index(name),
                zone=zone,
                token=self.record.token(name),
            )
            for name in names
        ]
        ids, errors = self._asked_for(orders)
        self._told.update(ids.values())
        if errors:
            self._unanswered.extend(error for error in errors if not isinstance(error, _CLEAR))
            # A final reason (no quota, no rights) says more than the capacity that was missing beside it.
            raise min(errors, key=lambda error: isinstance(error, CapacityError | UnsupportedError))
        return ids

    def _asked_for(self, orders: Sequence[Order]) -> tuple[dict[str, str], list[BaseException]]:
        if isinstance(self.machines, LaunchesWhole):
            try:
                return self.machines.launch_whole(orders), []
            except Exception as error:  # noqa: BLE001 - _launch raises it
                return {}, [error]
        with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
            futures = {order.name: pool.submit(self.machines.launch, order) for order in orders}
        errors = {name: told for name, future in futures.items() if (told := future.exception()) is not None}
        return {name: future.result() for name, future in futures.items() if name not in errors}, [*errors.values()]

    def _await_running(self, ids: dict[str, str]) -> dict[str, Machine]:
        """By name. What was just made may be unseen for some seconds: not seen isn't gone."""
        end = self.clock() + self.machines.boot_deadline_s
        told = -1
        while True:
            seen = {machine.id: machine for machine in self.machines.find(ids.values())}
            for name, id_ in ids.items():
                machine = seen.get(id_)
                if machine is not None and not machine.lives:
                    self.record.forget(name)
                    raise machine.fault or ProviderError(
                        f"{name} ({id_}) ended by itself while it started, and the provider doesn't say why: "
                        "look at it in the provider's console, or run `pulumi up` again"
                    )
            running = {
                name: seen[id_]
                for name, id_ in ids.items()
                if id_ in seen and seen[id_].state == "running" and seen[id_].private_address
            }
            if len(running) == len(ids):
                return running
            if len(running) != told:
                told = len(running)
                self.report(f"{told} of {len(ids)} machines run")
            if self.clock() >= end:
                late = ", ".join(f"{name} ({id_})" for name, id_ in ids.items() if name not in running)
                for name in ids:  # one that is there is found the next time; one that isn't will never be
                    self.record.forget(name)
                raise ProviderError(
                    f"{late} didn't start within {self.machines.boot_deadline_s:.0f} s: run `pulumi up` again, "
                    "or take another zone"
                )
            self.sleep(_LOOK_EVERY_S)

    def _end_strangers(self, zones: Sequence[str]) -> None:
        """What a killed try made in a zone, or under a name, that isn't asked for any more has no place in the gang."""
        home = self.record.zone if self.record.zone in zones else None
        found = [machine for machine in self.machines.find() if machine.bills]
        strangers = [machine.id for machine in found if machine.zone != home or machine.name not in self.names]
        if strangers:
            self.report(f"ending {len(strangers)} machine(s) of an earlier try")
            self.machines.end(strangers)

    def _end_all(self, why: Exception, *, kept: Collection[str] = ()) -> None:
        """Nothing of a failed try stays, but `kept`. Raises what `why` is, with what still lives, where that fails."""
        is_clear = isinstance(why, _CLEAR) and not self._unanswered
        try:
            self._end_what_shows(enough=_LOOKS_AT_NOTHING if is_clear else _LOOKS_AFTER_NO_ANSWER, kept=kept)
            self._unanswered.clear()
            if kept:
                for name in self.names:
                    self.record.forget(name)
            else:
                self.record.all_ended()
        except ProviderError as error:
            kind = type(why) if isinstance(why, ProviderError) else ProviderError
            raise kind(
                f"{why}; and what was made for it could not be ended ({error}): run `make destroy` or "
                "`fab leftovers --remove`, it may be billing"
            ) from None

    def _end_what_shows(self, *, enough: int, kept: Collection[str] = ()) -> None:
        """Until so many looks in a row saw nothing, and what `launch` told was seen: a new machine is seen late."""
        nothing = 0
        ids: list[str] = []
        for _ in range(_MOST_LOOKS):
            found = self.machines.find(sorted(self._told))
            self._told.difference_update(machine.id for machine in found)
            ids = sorted(machine.id for machine in found if machine.bills and machine.id not in kept)
            self.machines.end(ids)
            nothing = 0 if ids else nothing + 1
            if nothing >= enough and not self._told:
                return
            self.sleep(_LOOK_EVERY_S)
        if ids:
            raise ProviderError(f"the provider says that {', '.join(ids)} ended, and shows it all the same")
        self._told.clear()  # never seen for a minute: it isn't there
