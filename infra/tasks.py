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


@task(
    positional=["recipe"],
    auto_shortflags=False,
    iterable=["set_"],
    help={
        "recipe": "recipe file of the trainer",
        "set": "key=value: overrides a key of the recipe; may be repeated",
        "gpu": "GPU model: H100, A100-80GB, L40S (default: all)",
        "count": "GPUs in one machine, exactly (default: any)",
        "nodes": "numbers of machines to look at (default: 1,2,4,8)",
        "provider": "only this one (default: all that this version can rent from)",
        "spot": "only machines that may be taken away (default: both markets)",
        "region": "a region, the beginning of its name, a country's code, or eu, us, asia, canada, oceania",
        "max-hourly": "US dollars per hour for all machines; what has an unknown price is left out",
        "max-hours": "hours that the run may take",
        "offload": "also what fits only with host memory; whether the machine has so much isn't looked at",
        "mfu": "assumed model FLOPs utilisation, as 0.35",
        "gbit": "assumed Gbit/s between machines, for each GPU (default: by the kind of network)",
        "preempted-every": "assumed hours until a gang of spot machines is taken away",
        "json": "as JSON, all rows with the stack file's keys",
        "write": "stack name: write stacks/Pulumi.NAME.yaml for the first row",
    },
)
@command
def choose(
    _context: object,
    recipe: str,
    set_: list[str] | None = None,
    gpu: str | None = None,
    count: str | None = None,
    nodes: str | None = None,
    provider: str | None = None,
    spot: bool = False,
    region: str | None = None,
    max_hourly: str | None = None,
    max_hours: str | None = None,
    offload: bool = False,
    mfu: str | None = None,
    gbit: str | None = None,
    preempted_every: str | None = None,
    json: bool = False,
    write: str | None = None,
) -> None:
    """
    Where a recipe could be trained, how long and for how much, the cheapest run first; exit 11 when nowhere.

    Hours and dollars are predictions from the figures that are shown, not measurements.

    Example: fab choose trainer/recipes/llama-1b.yaml --region us --nodes 1,2 --write big
    """
    from infra.choice import command as choice
    from infra.offers import wish

    asked = wish.parse(gpu=gpu, count=count, nodes=None, is_spot=spot, region=region, max_hourly=max_hourly)
    choice.show(
        project_root(),
        recipe,
        settings=set_ or [],
        asked=asked,
        nodes=choice.numbers(nodes),
        provider=provider,
        max_hours=choice.amount("--max-hours", max_hours),
        offload=offload,
        assumed=choice.assumptions(
            mfu=choice.amount("--mfu", mfu, most=1.0),
            gbit_per_gpu=choice.amount("--gbit", gbit),
            preempted_every_hours=choice.amount("--preempted-every", preempted_every),
        ),
        as_json=json,
        write=write,
    )
