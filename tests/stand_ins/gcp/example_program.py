"""A small stack of the real pulumi_gcp for test_gcp_stand_in.py: a network with a machine in it and a way out."""

import pulumi
import pulumi_gcp as gcp

config = pulumi.Config()
where = {"region": "us-central1"}
net = gcp.compute.Network("net", auto_create_subnetworks=False, mtu=8896)
subnet = gcp.compute.Subnetwork(
    "subnet", network=net.id, ip_cidr_range="10.10.0.0/20", private_ip_google_access=True, **where
)
gcp.compute.Firewall(
    "inside",
    network=net.name.apply(lambda name: f"global/networks/{name}"),
    allows=[gcp.compute.FirewallAllowArgs(protocol=each) for each in ("tcp", "udp", "icmp")],
    source_ranges=[subnet.ip_cidr_range],
)
gcp.compute.Firewall(
    "ssh",
    network=net.id,
    allows=[{"protocol": "tcp", "ports": ["22"]}],
    source_ranges=[config.get("from") or "198.51.100.7/32"],
    target_tags=["head"],
)
router = gcp.compute.Router("router", network=net.id, **where)
gcp.compute.RouterNat(
    "nat",
    router=router.name,
    nat_ip_allocate_option="AUTO_ONLY",
    source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
    **where,
)
address = gcp.compute.Address("address", labels={"stack": "trial"}, **where)
gcp.compute.ResourcePolicy("compact", group_placement_policy={"collocation": "COLLOCATED", "vm_count": 2}, **where)
head = gcp.compute.Instance(
    "head",
    machine_type="e2-small",
    zone="us-central1-a",
    boot_disk={
        "initialize_params": {
            "image": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64",
            "size": 20,
        }
    },
    network_interfaces=[{"subnetwork": subnet.id, "access_configs": [{"nat_ip": address.address}]}],
    scheduling={"max_run_duration": {"seconds": 3600}, "instance_termination_action": "DELETE"},
    labels={"stack": "trial", "role": config.get("role") or "head"},
    tags=["head"],
    metadata={"enable-guest-attributes": "TRUE"},
)
bucket = gcp.storage.Bucket(
    "bucket",
    location="us-central1",
    force_destroy=True,
    uniform_bucket_level_access=True,
    soft_delete_policy={"retention_duration_seconds": 0},
)
account = gcp.serviceaccount.Account("account", account_id="trial-nodes")
gcp.storage.BucketIAMMember("may", bucket=bucket.name, role="roles/storage.objectAdmin", member=account.member)
gcp.filestore.Instance(
    "share",
    tier="BASIC_HDD",
    location="us-central1-a",
    file_shares={"name": "share", "capacity_gb": 1024},
    networks=[{"network": net.name, "modes": ["MODE_IPV4"]}],
)
gcp.compute.Disk("disk", size=10, type="pd-balanced", zone="us-central1-a")
gcp.compute.Reservation(
    "kept",
    zone="us-central1-b",
    specific_reservation={"count": 1, "instance_properties": {"machine_type": "a3-ultragpu-8g"}},
    specific_reservation_required=True,
)
if config.get_bool("wrong"):
    gcp.compute.Network("wrong", mtu="much")
pulumi.export("public", head.network_interfaces[0].access_configs[0].nat_ip)
pulumi.export("private", head.network_interfaces[0].network_ip)
