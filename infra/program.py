"""The Pulumi program: stack file -> spec -> preflight -> price -> machines -> outputs. Knows no provider by name.

Everything that is wrong is said before anything is made, in a preview too, and without a traceback.
"""

from __future__ import annotations

import sys

import pulumi
from pulumi.runtime.config import get_config_env

from infra import cost, providers
from infra.errors import InfraError, ProviderError, SpecError
from infra.providers.base import Deployment
from infra.spec import foreign_keys, parse_config
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
    if foreign := foreign_keys(spec, provider.keys, file=file):
        raise SpecError("\n".join(foreign))
    if problems := provider.preflight(spec, deployment):
        raise ProviderError("\n".join(problems))
    lines = provider.price(spec)
    price = cost.total(lines)
    cost.refuse_above_cap(spec, price, file=file)
    pulumi.log.info(cost.estimate(spec, lines))
    pulumi.export("cluster", provider.create(spec, deployment, price))
    pulumi.export(
        "summary",
        f"{spec.nodes} node(s) on {spec.provider}, {cost.dollars(price.usd_per_hour)} per hour, "
        f"ended by the guard {spec.max_lifetime_s / 3600:g} h after creation{cost.after_guard(price)}",
    )
