"""What EC2 and its neighbours refuse, sorted by what one can do about it. Pure: codes in, errors out.

Codes: EC2's "Error codes for the Amazon EC2 API", and the reasons that DescribeInstances gives for a machine that
ended by itself. `InsufficientFreeAddressesInSubnet` is our own subnet's fault, not the zone's capacity.
"""

from __future__ import annotations

from infra.errors import AccessError, CapacityError, ProviderError, QuotaError, UnsupportedError

CAPACITY = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientCapacity",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "capacity-not-available",
        "Server.InsufficientInstanceCapacity",
        "Server.SpotInstanceTermination",
    }
)
QUOTA = frozenset(
    {
        "VcpuLimitExceeded",
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "AddressLimitExceeded",
        "VpcLimitExceeded",
        "NatGatewayLimitExceeded",
        "VolumeLimitExceeded",
        "Client.VolumeLimitExceeded",
        "PendingVerification",
        "OptInRequired",
    }
)
_OF_VCPUS = frozenset({"VcpuLimitExceeded", "MaxSpotInstanceCountExceeded"})
UNSUPPORTED = frozenset({"Unsupported", "UnsupportedOperation", "UnsupportedHibernationConfiguration"})
ACCESS = frozenset(
    {
        "AuthFailure",
        "AccessDenied",
        "AccessDeniedException",
        "Blocked",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "InvalidUserID.NotFound",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnauthorizedOperation",
        "UnrecognizedClientException",
    }
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_LONGEST = 300  # an UnauthorizedOperation brings some kilobytes of encoded text along


def from_code(code: str, message: str, *, where: str, quota: str = "") -> ProviderError:
    """The error for what AWS said. `where`: what was asked, and in which region or zone.

    `quota`: what a machine takes of which quota of vCPUs.
    """
    said = " ".join(message.split())
    said = said if len(said) <= _LONGEST else said[:_LONGEST] + "…"
    told = f"{where}: {said} ({code})"
    if code in CAPACITY:
        return CapacityError(told)
    if code in UNSUPPORTED:
        return UnsupportedError(told)
    if code in QUOTA:
        told += f", {quota}" if quota and code in _OF_VCPUS else ""
        return QuotaError(
            f"{told}: the account's limit is reached, and no zone or retry changes that; ask for more under Service "
            "Quotas in AWS's console (hours to days), or take the other pool (market: spot or on-demand)"
        )
    if code in ACCESS:
        how = "log in again (`aws sso login`, or new keys)" if code in _EXPIRED else "look at the keys and their rights"
        return AccessError(f"{told}: {how}, then repeat the command")
    return ProviderError(told)


def ended_by_itself(name: str, code: str, message: str) -> ProviderError | None:
    """Why a machine ended, from its StateReason; None when we or the user ended it, or AWS doesn't say."""
    if not code or code in ("Client.UserInitiatedShutdown", "Client.InstanceInitiatedShutdown"):
        return None
    if code == "Client.InternalError":
        message += " (often: the key that encrypts its disk can't be used)"
    return from_code(code, message, where=f"{name} ended while it started")
