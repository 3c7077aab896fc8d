"""The error tree of infra/. `str(error)` is one sentence: what was wrong, where, and what to do.

InfraError               exit code
├── SpecError            2   the stack file asks for something that isn't valid
├── ContractError        3   a stack output isn't a Cluster that this checkout can read, or isn't there
├── EngineError          4   the Pulumi engine can't be had or failed
├── ProviderError        5   the provider refused or its answer can't be used
│   ├── CapacityError    7   it has none of these machines there now: another zone, region, market or hour may do
│   ├── QuotaError       8   the account may not have so many: the same call never succeeds, whatever the zone
│   ├── UnsupportedError 9   the zone or region never has this machine: another one may do
│   └── AccessError      10  credentials are missing, expired or may not do this
├── LeftoversError       6   something that may be billing is still there
└── NoOfferError         11  no provider has what `fab prices` was asked for

A ProviderError that is none of the four is a wrong request (ours or the stack file's) or an answer without a reason.
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


class CapacityError(ProviderError):
    exit_code = 7


class QuotaError(ProviderError):
    exit_code = 8


class UnsupportedError(ProviderError):
    exit_code = 9


class AccessError(ProviderError):
    exit_code = 10


class LeftoversError(InfraError):
    exit_code = 6


class NoOfferError(InfraError):
    exit_code = 11
