"""For tests of infra/offers: an offer with any change, gpuhunt's catalogue as published, no way outside."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.offers.offer import Offer

NOW = datetime(2026, 12, 3, 12, tzinfo=UTC)
COLUMNS = (
    *("instance_name", "location", "price", "cpu", "memory", "gpu_count", "gpu_name", "gpu_memory", "spot"),
    *("disk_size", "gpu_vendor", "flags", "cpu_arch", "provider_data"),
)
OFFLINE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:1") | {
    "no_proxy": "127.0.0.1",
    "NO_PROXY": "127.0.0.1",
}
"""Variables under which whatever isn't on this machine can't be reached."""


def offer(**changes: Any) -> Offer:
    """8 H100 of AWS for $55.04, as of two days before NOW, with `changes`."""
    fields: dict[str, Any] = {
        "provider": "aws",
        "instance": "p5.48xlarge",
        "region": "us-east-1",
        "gpu_model": "H100",
        "gpu_count": 8,
        "gpu_memory_gib": 80.0,
        "market": "on-demand",
        "network": "EFA",
        "usd_per_hour": 55.04,
        "available": None,
        "source": "a test",
        "as_of": datetime(2026, 12, 1, tzinfo=UTC),
    }
    return Offer(**(fields | changes))


def row(instance: str, location: str, price: float, gpu: str, count: int = 8, **more: str) -> dict[str, str]:
    """One line of gpuhunt's catalogue: on demand, x86, 80 GB a GPU, unless `more` says otherwise."""
    fields = {
        "instance_name": instance, "location": location, "price": str(price), "cpu": "192", "memory": "2048.0",
        "gpu_count": str(count), "gpu_name": gpu, "gpu_memory": "80.0", "spot": "False", "disk_size": "",
        "gpu_vendor": "nvidia", "flags": "", "cpu_arch": "x86", "provider_data": "{}",
    }  # fmt: skip
    assert more.keys() <= fields.keys()
    return fields | more


def publish(folder: Path, catalogues: Mapping[str, Sequence[Mapping[str, str]]], *, version: str) -> str:
    """The address of a catalogue under `folder`, laid out as gpuhunt's own: PROVIDER/version and PROVIDER/VERSION/."""
    for provider, rows in catalogues.items():
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
        (folder / provider / version).mkdir(parents=True)
        (folder / provider / "version").write_text(f"{version}\n", encoding="utf-8")
        with zipfile.ZipFile(folder / provider / version / "catalog.zip", "w") as file:
            file.writestr(f"{provider}.csv", text.getvalue())
    return folder.as_uri()
