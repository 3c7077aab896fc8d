"""The error tree of launcher/. `str(error)` is one sentence: what was wrong, where, and what to do.

LauncherError          exit code
├── UsageError         2   a recipe, script, option or run id that isn't valid; nothing was started
├── BusyError          3   another run is on
├── NoRunError         3   there is no such run
├── PreparationError   3   a node couldn't take the run (disk full, half a cluster); nothing was started
├── RunFailed          1   the run has failed (the failing rank's own exit code stands in the message and the report)
├── RunLost            4   the run's supervisor is gone without having written an end: killed, or the machine restarted
├── RunUnreachable     5   a node can't be asked, so nobody knows
├── RunStopped        75   the run was stopped; the same command goes on from its checkpoint
└── Detached         130   Ctrl-C: the following ended, the run goes on

A finished run is exit code 0. Bootstrap's and infra's errors keep their own codes.
"""

from __future__ import annotations

from infra.errors import InfraError


class LauncherError(InfraError):
    exit_code = 1


class UsageError(LauncherError):
    exit_code = 2


class BusyError(LauncherError):
    exit_code = 3


class NoRunError(LauncherError):
    exit_code = 3


class PreparationError(LauncherError):
    exit_code = 3


class RunFailed(LauncherError):
    exit_code = 1


class RunLost(LauncherError):
    exit_code = 4


class RunUnreachable(LauncherError):
    exit_code = 5


class RunStopped(LauncherError):
    exit_code = 75


class Detached(LauncherError):
    exit_code = 130
