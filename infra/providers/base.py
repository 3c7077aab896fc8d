"""What a provider is: the contract of every module in this package, and the values that cross it.

A provider module has a `PROVIDER` with the four verbs (and `remove`). Adding one is one module, one line in the
registry (infra/providers/__init__.py), one stack file and one stand-in for its tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from infra.errors import ProviderError

if TYPE_CHECKING:  # Pulumi's import costs half a second, and `fab leftovers` needs none of it
    import pulumi

    from infra.cluster import Price
    from infra.cost import Line
    from infra.spec import ClusterSpec

PROJECT = "trainstack"


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Whose machines: one stack of one project of one checkout."""

    root: Path
    """The checkout. `.trainstack/` under it holds everything of ours on the user's machine."""
    stack: str
    project: str = PROJECT

    @property
    def identity(self) -> str:
        """The tag or name that every billable resource carries, for as long as it lives."""
        return f"trainstack/{self.project}/{self.stack}"

    @property
    def digest(self) -> str:
        """8 hex digits of identity and checkout: for names with tight limits (a network interface: 15 bytes)."""
        text = f"{self.root.resolve()}\0{self.identity}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]

    @property
    def owner(self) -> str:
        """12 hex digits, made once for this checkout: whose machines they are, where several people share an account.

        The identity alone doesn't tell: two people who both call their stack `aws` have the same one.
        """
        path = self.root / ".trainstack" / "owner"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".owner.{secrets.token_hex(4)}")
            fresh.write_text(secrets.token_hex(6), encoding="utf-8")
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(fresh)
            fresh.unlink()
        return path.read_text(encoding="utf-8").strip()

    @property
    def stack_file(self) -> Path:
        return self.root / "stacks" / f"Pulumi.{self.stack}.yaml"

    @property
    def key_folder(self) -> Path:
        """Holds the stack's SSH key pair; only the public half ever leaves it."""
        return self.root / ".trainstack" / "stacks" / self.stack

    @property
    def storage_marker(self) -> Path:
        """On disk before shared storage is asked for: from then on `leftovers` must be able to look for it."""
        return self.key_folder / "storage"

    @property
    def gang_folder(self) -> Path:
        """The record of machines that were asked for: infra/gang_record.py."""
        return self.key_folder / "gang"


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """One thing of a stack that the provider's own system says is there."""

    kind: str
    """The provider's word for it: "process", "instance", "volume"."""
    id: str
    """The provider's own key: what its console or command line finds."""
    detail: str
    usd_per_hour: float | None
    """What it costs while it stays; None when unknown."""
    is_machine: bool = False
    """`make destroy` ends machines before all else: they are what costs."""
    is_ours: bool = True
    """False: another checkout made it under the same name (see Deployment.owner). `make destroy` leaves it alone."""


class IncompleteError(ProviderError):
    """Not everything could be asked. `found` is what could: machines in it can be ended all the same."""

    def __init__(self, errors: Sequence[ProviderError], found: Sequence[Leftover]) -> None:
        super().__init__("; ".join(dict.fromkeys(map(str, errors))))
        self.exit_code = errors[0].exit_code
        self.found = tuple(found)


def all_of(questions: Iterable[Callable[[], Iterable[Leftover]]]) -> list[Leftover]:
    """The answers to all, in order; IncompleteError with those that came when some couldn't be had."""
    found: list[Leftover] = []
    errors: list[ProviderError] = []
    for question in questions:
        try:
            found += question()
        except ProviderError as error:
            errors.append(error)
    if errors:
        raise IncompleteError(errors, found)
    return found


class Provider(Protocol):
    """The four verbs. Only `create` may import pulumi, and only inside."""

    keys: tuple[str, ...]
    """The keys of the stack file that it reads; `pulumi preview` refuses any other one."""

    def preflight(self, spec: ClusterSpec, deployment: Deployment) -> list[str]:
        """Everything that would stop `create`, one sentence each; free of charge, and changes nothing.

        Credentials, quota, offering, names within limits, tools, disk. Empty when all is well.
        """

    def create(self, spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
        """Declare the resources; resolves to `Cluster.to_json()` when, and only when, all nodes are there."""

    def price(self, spec: ClusterSpec) -> list[Line]:
        """Everything that bills, one line each, with source and date. Unknown is None, never zero."""

    def leftovers(self, deployment: Deployment) -> list[Leftover]:
        """All that exists with the deployment's identity, in whatever state, from the system itself and not from ours.

        In the order in which `remove` should get them. A malformed answer raises ProviderError: it isn't "nothing".
        Where one of several questions fails, the others are asked too: IncompleteError.
        """

    def remove(self, leftover: Leftover, deployment: Deployment) -> None:
        """End it. Not found is success. Raises ProviderError when it can't be ended."""
