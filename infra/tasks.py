"""The infra part's `fab` tasks."""

from __future__ import annotations

from invoke import task

from infra.cli import command
from infra.stack import project_root


@task(
    help={"stack": "stack name (default: the selected one)", "remove": "remove what is found"},
)
@command
def leftovers(context: object, stack: str | None = None, remove: bool = False) -> None:  # noqa: ARG001
    """
    Ask the provider itself what is still there of a stack; exit 6 while anything is.

    Example: fab leftovers --stack local --remove
    """
    from infra import leftovers as found

    root = project_root()
    (found.sweep_all if remove else found.check)(root, found.stack_or_current(root, stack))


@task(
    auto_shortflags=False,
    help={
        "gpu": "GPU model: H100, A100-80GB, L40S (default: all)",
        "count": "GPUs in one machine, exactly (default: any)",
        "nodes": "machines (default: 1); from 2 on only those that can reach one another",
        "spot": "only machines that may be taken away (default: both markets)",
        "region": "a region, the beginning of its name, a country's code, or eu, us, asia, canada, oceania",
        "max-hourly": "US dollars per hour for all machines; what has an unknown price is left out",
        "json": "as JSON, every region on its own",
    },
)
@command
def prices(
    _context: object,
    gpu: str | None = None,
    count: str | None = None,
    nodes: str | None = None,
    spot: bool = False,
    region: str | None = None,
    max_hourly: str | None = None,
    json: bool = False,
) -> None:
    """
    What machines with GPUs cost at all providers, cheapest GPU first; exit 11 when none fits.

    Asks Lambda (LAMBDA_API_KEY), gpuhunt's catalogue and Vast.ai for at most 20 s; dated figures of this checkout stand
    in for what can't be asked. An unknown price is told as unknown and comes last.

    Example: fab prices --gpu H100 --count 8 --nodes 2 --region eu --max-hourly 120
    """
    from infra.offers.command import show

    show(
        gpu=gpu, count=count, nodes=nodes, is_spot=spot, region=region, max_hourly=max_hourly, as_json=json
    )  # fmt: skip
