"""The Pulumi program: stack file -> spec -> preflight -> price -> machines -> outputs. Knows no provider by name.

Everything that is wrong is said before anything is made, in a preview too, and without a traceback.
"""

from __future__ import annotations

import sys

import pulumi
from pulumi.runtime.config import get_config_env

from infra import cost, providers
from infra.errors import InfraError, ProviderError
from infra.providers.base import Deployment
from infra.spec import ClusterSpec, parse_config
from infra.stack import checked_stack_name, project_root

_TOLD = 32  # the engine's exit code for "the user was told": it adds nothing of its own


def main() -> None:
    """Declare the stack's resources and outputs. What is wrong goes to the engine's log, as it is."""
    try:
        _declare()
    except InfraError as error:
        pulumi.log.error(str(error))
        sys.exit(_TOLD)


def _declare() -> None:
    project, stack = pulumi.get_project(), checked_stack_name(pulumi.get_stack())
    deployment = Deployment(root=project_root(), project=project, stack=stack)
    file = str(deployment.stack_file.relative_to(deployment.root))
    spec = parse_config(get_config_env(), file=file, project=project)
    provider = providers.load(spec.provider)
    if problems := provider.preflight(spec, deployment):
        raise ProviderError("\n".join(problems))
    price = provider.price(spec)
    cost.refuse_above_cap(spec, price, file=file)
    pulumi.log.info(cost.estimate(spec, price))
    pulumi.export("cluster", provider.create(spec, deployment))
    pulumi.export("summary", _summary(spec, cost.dollars(price.usd_per_hour)))


def _summary(spec: ClusterSpec, per_hour: str) -> str:
    return (
        f"{spec.nodes} node(s) × {spec.processes_per_node} process(es) on {spec.provider}, {per_hour} per hour, "
        f"ended by the guard {spec.max_lifetime_s / 3600:g} h after creation"
    )
