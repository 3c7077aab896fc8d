"""What must be on disk before a machine is asked for: its token, its host key, the zone, and when its time ends.

`.trainstack/stacks/<stack>/gang/`: gang.json, and host_keys/ with a pair for each node. A kill at any moment leaves
what the next `pulumi up` needs to get the very machine that was asked for, instead of a second one.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra import ssh_keys
from infra.errors import ProviderError


class Record:
    """One stack's record. Each change is on disk when the method returns."""

    def __init__(self, folder: Path, *, provider: str, now: datetime) -> None:
        """Reads the record in `folder`, or begins one at `now`. Raises ProviderError when it is there and no record."""
        self._folder = folder
        self._path = folder / "gang.json"
        self._content = self._read() or _begun(provider, now)
        self._provider = provider

    @property
    def created_at(self) -> datetime:
        """When the gang was first asked for: its lifetime counts from here."""
        return datetime.fromisoformat(self._content["created_at"])

    @property
    def zone(self) -> str | None:
        """Where the machines are that have been asked for."""
        zone: str | None = self._content["zone"]
        return zone

    @property
    def is_open(self) -> bool:
        """Whether a machine has been asked for that hasn't been seen."""
        return bool(self._content["tokens"])

    @property
    def is_used(self) -> bool:
        """Whether a machine may be there: one was asked for, and not all have been ended since."""
        return bool(self._content["is_used"])

    @property
    def request(self) -> dict[str, Any] | None:
        """What the gang is to be like; None before the first `restart`."""
        request: dict[str, Any] | None = self._content["request"]
        return request

    @property
    def pinned(self) -> dict[str, Any]:
        """What was chosen for the gang when it was begun."""
        return dict(self._content["pinned"])

    def restart(self, now: datetime, *, request: dict[str, Any], pinned: dict[str, Any]) -> None:
        """Forget a gang that has ended, and begin another one; host keys stay."""
        self._content = _begun(self._provider, now) | {"request": request, "pinned": pinned}
        self._write()

    def begin(self, zone: str) -> None:
        """From now on machines are asked for in `zone`. A token of another zone stands for another machine."""
        if zone != self.zone:
            self._content["tokens"] = {}
        self._content |= {"zone": zone, "is_used": True}
        self._write()

    def token(self, name: str) -> str:
        """The token of the one machine `name` that is being asked for; a new one unless a call with it is open."""
        if name not in self._content["tokens"]:
            self._content["tokens"][name] = secrets.token_hex(16)
            self._write()
        return str(self._content["tokens"][name])

    def confirm(self, name: str) -> None:
        """The machine has been seen: when `name` is asked for again, it is another one."""
        self.forget(name)

    def forget(self, name: str) -> None:
        if self._content["tokens"].pop(name, None) is not None:
            self._write()

    def all_ended(self) -> None:
        self._content |= {"tokens": {}, "is_used": False}
        self._write()

    def host_key(self, name: str) -> tuple[str, str]:
        """The machine's private host key (OpenSSH's format) and the public one, "ssh-ed25519 AAAA…"."""
        path = self._folder / "host_keys" / name
        public = ssh_keys.make_pair(path, comment=name)
        return path.read_text(encoding="utf-8"), public

    def _read(self) -> dict[str, Any] | None:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            if datetime.fromisoformat(content["created_at"]).tzinfo is None:
                raise ValueError("created_at has no time zone")
            return {key: content[key] for key in ("provider", "created_at", "zone", "is_used", "request")} | {
                key: dict(content[key]) for key in ("tokens", "pinned")
            }
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ProviderError(
                f"{self._path} can't be read as the record of the stack's machines ({error!r}): run `make destroy`, "
                "which finds them by their tag and removes the record"
            ) from None

    def _write(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = self._path.with_name(f".gang.{os.getpid()}")
        with fresh.open("w", encoding="utf-8") as stream:
            json.dump(self._content, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(self._path)


def _begun(provider: str, now: datetime) -> dict[str, Any]:
    return {
        "provider": provider,
        "created_at": now.isoformat(),
        "zone": None,
        "is_used": False,
        "tokens": {},
        "request": None,
        "pinned": {},
    }


def ended(folder: Path) -> None:
    """All machines have ended; which provider, zone and request it was stays, for the search for leftovers."""
    with contextlib.suppress(ProviderError):  # unreadable: `make destroy` removes it
        if folder.exists():
            Record(folder, provider="", now=datetime.now(UTC)).all_ended()


def remove(folder: Path) -> None:
    """The gang has ended. Whether the record can be read doesn't matter any more."""
    if folder.exists():
        shutil.rmtree(folder)


def provider_of(folder: Path) -> str | None:
    """Whose machines the record in `folder` is of; None when there is none that can be read.

    For the search for leftovers: the stack file may name another provider by now.
    """
    return _text(folder, "provider")


def request_of(folder: Path) -> dict[str, Any]:
    """What was asked for last, likewise; {} when that isn't known."""
    request = _field(folder, "request")
    return request if isinstance(request, dict) else {}


def zone_of(folder: Path) -> str | None:
    """Where machines were last asked for, likewise."""
    return _text(folder, "zone")


def _text(folder: Path, name: str) -> str | None:
    value = _field(folder, name)
    return value if isinstance(value, str) else None


def _field(folder: Path, name: str) -> Any:
    """None where the record can't be read or hasn't it."""
    try:
        return json.loads((folder / "gang.json").read_text(encoding="utf-8"))[name]
    except (OSError, ValueError, KeyError, TypeError):
        return None
