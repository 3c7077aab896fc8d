"""Offers by the APIs of our own provider modules: the only ones that know what can be had now."""

from __future__ import annotations

from datetime import UTC, datetime

from infra.offers.offer import Offer
from infra.offers.sources import Answer
from infra.offers.wish import Wish


def lambda_cloud(_wish: Wish) -> Answer:
    """Each usable type in each region. Raises AccessError without a key, ProviderError.

    Lambda tells the regions with capacity; the names of the others are those that have an image.
    """
    from infra.providers.lambda_cloud import api, plan

    client = api.connect()
    types = plan.types(client.offers)
    regions = {image.region.name for image in client.images()} | {r for each in types.values() for r in each.regions}
    now = datetime.now(UTC)
    return Answer(
        offers=tuple(
            Offer(
                provider="lambda",
                instance=name,
                region=region,
                gpu_model=told.gpu_model,
                gpu_count=told.gpu_count,
                gpu_memory_gib=told.gpu_memory_gib,
                market="on-demand",
                network="Ethernet",
                usd_per_hour=told.usd_per_hour or None,
                available=region in told.regions,
                source="Lambda's API",
                as_of=now,
            )
            for name, told in types.items()
            for region in sorted(regions)
        )
    )
