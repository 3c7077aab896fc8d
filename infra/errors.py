"""The error tree of infra/. `str(error)` is one sentence: what was wrong, where, and what to do.

InfraError             exit code
├── SpecError          2   the stack file asks for something that isn't valid
├── ContractError      3   a stack output isn't a Cluster that this checkout can read, or isn't there
├── EngineError        4   the Pulumi engine can't be had or failed
├── ProviderError      5   the provider refused or its answer can't be used
└── LeftoversError     6   something that may be billing is still there
"""

from __future__ import annotations


class InfraError(Exception):
    """Base: never raised itself."""

    exit_code = 1


class SpecError(InfraError):
    exit_code = 2


class ContractError(InfraError):
    exit_code = 3


class EngineError(InfraError):
    exit_code = 4


class ProviderError(InfraError):
    exit_code = 5


class LeftoversError(InfraError):
    exit_code = 6
