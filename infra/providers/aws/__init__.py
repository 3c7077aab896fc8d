"""Provider `aws`: EC2 machines with GPUs in one zone of a VPC of their own.

    plan.py        the stack file's wishes in AWS's words       instances.py   machine types and their interfaces
    preflight.py   what AWS would refuse, before it is made     pricing.py     what bills, with source and date
    network.py     VPC, subnets, group: free of charge          machines.py    launch, find and end the gang
    resources.py   network -> gang -> address, NAT, storage     storage.py     FSx for Lustre, EFS, S3
    leftovers.py   what is there by AWS's own answer            removal.py     how each kind is ended
    api.py         boto3: deadlines, retries                    faults.py      AWS's codes, sorted by what to do

Credentials are the user's own, as boto3 finds them; none goes to a node (but for a role with an S3 bucket, on wish).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.providers.aws.plan import KEYS
from infra.providers.base import Deployment, Leftover

if TYPE_CHECKING:
    import pulumi

    from infra.cluster import Price
    from infra.cost import Line
    from infra.gang import Machines
    from infra.spec import ClusterSpec


class AwsProvider:
    """The four verbs for AWS, and its machines for the gang."""

    keys = KEYS

    def preflight(self, spec: ClusterSpec, deployment: Deployment) -> list[str]:
        from infra.providers.aws import preflight

        return preflight.problems(spec, deployment)

    def create(self, spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
        from infra.providers.aws import resources

        return resources.declare(spec, deployment, price)

    def price(self, spec: ClusterSpec) -> list[Line]:
        from infra.providers.aws import pricing

        return pricing.lines(spec)

    def leftovers(self, deployment: Deployment) -> list[Leftover]:
        from infra.providers.aws import leftovers

        return leftovers.find(deployment)

    def remove(self, leftover: Leftover, deployment: Deployment) -> None:  # noqa: ARG002 - the verb's signature
        from infra.providers.aws import leftovers

        leftovers.remove(leftover)

    def pin(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        from infra.providers.aws import plan

        image = plan.image(wish["region"], wish["image"])
        return {
            "image": image["ImageId"],
            "root_device": image["RootDeviceName"],
            "root_gib": plan.root_gib(image),
        }

    def machines(
        self, deployment: Deployment, *, wish: Mapping[str, Any], places: Mapping[str, Any], pinned: Mapping[str, Any]
    ) -> Machines:
        from infra.providers.aws.machines import AwsMachines

        return AwsMachines(deployment, wish=wish, places=places, pinned=pinned)


PROVIDER = AwsProvider()
