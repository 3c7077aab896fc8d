"""The tables of machine types: what is chosen for "H100:8", and how EFA interfaces are laid out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from infra import gpus, prices
from infra.errors import SpecError
from infra.providers.aws import instances as aws
from infra.providers.gcp import instances as gcp


def slots(name: str) -> list[tuple[int, int, str]]:
    return [(slot.card, slot.device, slot.kind) for slot in aws.interfaces(aws.by_name(name))]


@pytest.mark.parametrize(
    ("name", "efas"),
    [
        ("p5.48xlarge", 32),
        ("p5e.48xlarge", 32),
        ("p5en.48xlarge", 16),
        ("p4d.24xlarge", 4),
        ("p6-b200.48xlarge", 8),
        ("p6-b300.48xlarge", 16),
        ("p5.4xlarge", 1),
        ("g5.xlarge", 0),
        ("g5.48xlarge", 1),
        ("g6e.48xlarge", 4),
    ],
)
def test_a_type_gets_as_many_efas_as_it_takes(name: str, efas: int) -> None:
    assert len([kind for _, _, kind in slots(name) if kind == "efa-only"]) == efas


def test_every_type_gets_all_its_efas_within_what_its_cards_take() -> None:
    for instance in aws.all_types().values():
        layout = aws.interfaces(instance)
        assert len([slot for slot in layout if slot.kind != "interface"]) == instance.efa_max, instance.name
        for card, most in enumerate(instance.card_max_interfaces):
            devices = [slot.device for slot in layout if slot.card == card]
            assert devices == list(range(len(devices))), instance.name
            assert len(devices) <= most, instance.name


def test_the_layout_with_efa_on_card_0_and_without() -> None:
    assert slots("p4d.24xlarge") == [
        (0, 0, "interface"),
        (0, 1, "efa-only"),
        (1, 0, "efa-only"),
        (2, 0, "efa-only"),
        (3, 0, "efa-only"),
    ]
    assert slots("p6-b300.48xlarge")[:2] == [(0, 0, "interface"), (1, 0, "efa-only")]
    assert slots("g5.xlarge") == [(0, 0, "interface")]


def test_a_card_0_with_room_for_one_interface_makes_it_an_efa() -> None:
    cramped = aws.InstanceType(
        name="cramped", gpu_model="H100", gpu_count=8, gpu_memory_gib=80, vcpus=192, memory_gib=2048, network_gbps=200,
        card_max_interfaces=(1, 1), efa_cards=(0, 1), efa_max=2, local_nvme_gib=0, quota_family="P", spot=True,
    )  # fmt: skip
    assert [(slot.card, slot.device, slot.kind) for slot in aws.interfaces(cramped)] == [
        (0, 0, "efa"),
        (1, 0, "efa-only"),
    ]


def test_aws_reports_what_it_sells() -> None:
    p5 = aws.by_name("p5.48xlarge")
    assert (p5.gpu_model, p5.gpu_count, p5.gpu_memory_gib) == ("H100", 8, 80)
    assert (p5.vcpus, p5.memory_gib, p5.network_gbps, p5.quota_family, p5.spot) == (192, 2048, 3200, "P", True)
    assert (aws.by_name("p4d.24xlarge").network_gbps, aws.by_name("g5.xlarge").quota_family) == (400, "G and VT")


def test_gcp_has_its_own_network_per_type() -> None:
    networks = {
        "g2-standard-96": ("single", 0),
        "a2-ultragpu-8g": ("single", 0),
        "a3-highgpu-4g": ("single", 0),
        "a3-highgpu-8g": ("tcpx", 4),
        "a3-megagpu-8g": ("tcpxo", 8),
        "a3-ultragpu-8g": ("rdma", 2),
        "a4-highgpu-8g": ("rdma", 2),
    }
    for name, expected in networks.items():
        assert (gcp.by_name(name).networking, gcp.by_name(name).extra_networks) == expected
    mega = gcp.by_name("a3-megagpu-8g")
    assert (mega.vcpus, mega.memory_gib, mega.accelerator_type) == (208, 1872, "nvidia-h100-mega-80gb")
    assert gcp.by_name("a3-highgpu-1g").markets == ("spot", "flex-start")
    assert gcp.by_name("a4-highgpu-8g").boot_disk_type == "hyperdisk-balanced"


@pytest.mark.parametrize(
    ("types", "asked", "names"),
    [
        (aws.all_types(), "H100:8", ["p5.48xlarge"]),
        (aws.all_types(), "h200:8", ["p5e.48xlarge", "p5en.48xlarge"]),
        (aws.all_types(), "A10G:4", ["g5.12xlarge", "g5.24xlarge"]),
        (aws.all_types(), "A100:8", ["p4d.24xlarge"]),
        (aws.all_types(), "A100-80GB:8", ["p4de.24xlarge"]),
        (gcp.all_types(), "H100:8", ["a3-highgpu-8g", "a3-megagpu-8g"]),
        (gcp.all_types(), "L4:2", ["g2-standard-24"]),
        (gcp.all_types(), "B200:8", ["a4-highgpu-8g"]),
    ],
)
def test_gpus_lead_to_types_the_smallest_first(
    types: Mapping[str, gpus.MachineType], asked: str, names: list[str]
) -> None:
    assert [machine.name for machine in gpus.matching(asked, types, provider="here")] == names


@pytest.mark.parametrize(
    "asked", ["", "H100", "8", "H100:0", "H100:-1", "H100:8 ", "H100:8.0", ":8", "H100:08", "8:H100:1"]
)
def test_text_that_is_not_model_and_count_is_refused(asked: str) -> None:
    with pytest.raises(SpecError, match=r"not MODEL:COUNT.*as in H100:8"):
        gpus.parse(asked)


@pytest.mark.parametrize("asked", ["H100:3", "H1000:8"])
@pytest.mark.parametrize("types", [aws.all_types(), gcp.all_types()])
def test_gpus_that_no_type_has_are_refused_with_those_there_are(
    types: Mapping[str, gpus.MachineType], asked: str
) -> None:
    with pytest.raises(SpecError, match=rf"has GPUs {asked}: take .*H100: 1, .*8"):
        gpus.matching(asked, types, provider="here")


@pytest.mark.parametrize(
    ("by_name", "name", "nearest"),
    [
        (aws.by_name, "p5.48xlarg", "p5.48xlarge"),
        (aws.by_name, "P5EN.48xlarge", "p5en.48xlarge"),
        (aws.by_name, "zzz", "g5.12xlarge"),
        (gcp.by_name, "a3-highgpu-8", "a3-highgpu-8g"),
    ],
)
def test_a_name_that_is_not_there_is_refused_with_the_nearest(
    by_name: Callable[[str], object], name: str, nearest: str
) -> None:
    with pytest.raises(SpecError, match=f"take one such as .*{nearest}"):
        by_name(name)


@pytest.mark.parametrize(("provider", "types"), [("aws", aws.all_types), ("gcp", gcp.all_types)])
def test_every_type_has_a_price_somewhere(provider: str, types: Callable[[], dict[str, object]]) -> None:
    somewhere = "us-west-2" if provider == "aws" else "us-central1"
    for name in types():
        assert prices.machine(provider, region=somewhere, instance=name, market="spot") or name == "p5.4xlarge", name
