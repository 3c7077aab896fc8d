"""The error tree of bootstrap/. `str(error)` is one sentence: what was wrong, where, and what to do.

BootstrapError              exit code
├── UsageError              2   an option or name that isn't valid; nothing was done
├── KeyFileError            2   the stack's key file can't be used: missing, encrypted, a .pub, open to others
├── NotBootstrapped         3   a node isn't prepared for what this checkout needs: `fab bootstrap`
├── ConnectError            7   a node couldn't be reached before the deadline
│   ├── HostKeyError        8   it answers with another host key than the Cluster's: never retried
│   ├── AuthenticationError 9   it refuses the stack's key
│   └── ChannelError        7   it refuses one more channel on a connection that stands (MaxSessions)
├── ConnectionLost         10   the connection ended in the middle of something
├── RemoteError             …   a command ended with an exit code other than 0, which is also this error's
├── RemoteTimeout          11   a command took longer than its limit and was ended
├── TransferError          12   a file didn't arrive
│   └── DiskFull           13   because there is no room for it
├── StepError              14   a step of the bootstrap failed on a node
├── WorkError               …   a caller's function failed on a node; has that error's exit code, and it as its cause
├── Interrupted           130   the Fleet was closed here (Ctrl-C) while something was on
└── SeveralNodes            …   more than one node failed; has the first one's exit code
"""

from __future__ import annotations

from collections.abc import Mapping

from infra.errors import InfraError

_HEAD_CHARACTERS = 400
_TAIL_CHARACTERS = 800


class BootstrapError(InfraError):
    exit_code = 1


class UsageError(BootstrapError):
    exit_code = 2


class KeyFileError(BootstrapError):
    exit_code = 2


class NotBootstrapped(BootstrapError):
    exit_code = 3


class ConnectError(BootstrapError):
    exit_code = 7


class HostKeyError(ConnectError):
    exit_code = 8


class AuthenticationError(ConnectError):
    exit_code = 9


class ChannelError(ConnectError):
    exit_code = 7


class ConnectionLost(BootstrapError):
    exit_code = 10


class RemoteError(BootstrapError):
    """Carries the command's `exit_code` and what it wrote last to stderr."""

    def __init__(self, node: str, what: str, *, exit_code: int, stderr: bytes) -> None:
        self.node = node
        self.exit_code = exit_code
        self.stderr = excerpt(stderr)
        super().__init__(f"{node}: `{what}` ended with exit code {exit_code}: {self.stderr or 'it said nothing'}")


class RemoteTimeout(BootstrapError):
    exit_code = 11


class TransferError(BootstrapError):
    exit_code = 12


class DiskFull(TransferError):
    exit_code = 13


class StepError(BootstrapError):
    exit_code = 14


class WorkError(BootstrapError):
    """Wraps an error of the caller's own tree, so that one node's failure keeps the other nodes' results."""

    def __init__(self, cause: InfraError) -> None:
        self.cause = cause
        self.exit_code = cause.exit_code
        super().__init__(str(cause))


class Interrupted(BootstrapError):
    exit_code = 130


class SeveralNodes(BootstrapError):
    """Carries `errors`: node name -> what happened there, in rank order."""

    def __init__(self, what: str, errors: Mapping[str, BootstrapError]) -> None:
        self.errors = dict(errors)
        self.exit_code = next(iter(errors.values())).exit_code
        said = "\n".join(f"  {name}: {str(error).removeprefix(f'{name}: ')}" for name, error in errors.items())
        super().__init__(f"{what} failed on {len(errors)} nodes ({', '.join(errors)}):\n{said}")


def excerpt(output: bytes) -> str:
    """A command's output as text, or its beginning and end; bytes that aren't UTF-8 are replaced."""
    text = output.decode("utf-8", "replace").strip()
    if len(text) <= _HEAD_CHARACTERS + _TAIL_CHARACTERS:
        return text
    return f"{text[:_HEAD_CHARACTERS]} […] {text[-_TAIL_CHARACTERS:]}"
