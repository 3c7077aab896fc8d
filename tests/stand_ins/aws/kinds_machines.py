"""The plug-in's resource types of machines: placement, templates, keys, interfaces, plain instances, reservations."""

from __future__ import annotations

import base64
from typing import Any

from tests.stand_ins.aws.resources import (
    Aws,
    Inputs,
    Kind,
    adopt,
    described,
    poll,
    quietly,
    request,
    specification,
    tag_ec2,
    unpaired,
)

Tags = dict[str, str]


def _create_placement(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    wanted = request(aws, "ec2", "create_placement_group", inputs)
    aws.ec2("create_placement_group", **wanted, TagSpecifications=specification("placement-group", tags))
    return str(inputs["name"])


def _read_placement(aws: Aws, name: str, _: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_placement_groups", "GroupNames", "PlacementGroups", name)
    if item is None:
        return None
    return {**adopt(item), "placementGroupId": item["GroupId"], "arn": item["GroupArn"], "name": name}


def _tag_placement(aws: Aws, name: str, old: Tags, new: Tags) -> None:
    item = described(aws, "describe_placement_groups", "GroupNames", "PlacementGroups", name)
    if item is not None:
        tag_ec2(aws, item["GroupId"], old, new)


def _template_data(aws: Aws, inputs: Inputs) -> dict[str, Any]:
    outside = {"name", "namePrefix", "description", "tags", "region", "defaultVersion", "updateDefaultVersion"}
    data = {key: value for key, value in inputs.items() if key not in outside}
    return dict(request(aws, "ec2", "create_launch_template", {"launchTemplateData": data})["LaunchTemplateData"])


def _create_template(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    answer = aws.ec2(
        "create_launch_template",
        LaunchTemplateName=inputs["name"],
        VersionDescription=inputs.get("description"),
        LaunchTemplateData=_template_data(aws, inputs),
        TagSpecifications=specification("launch-template", tags),
    )
    return str(answer["LaunchTemplate"]["LaunchTemplateId"])


def _read_template(aws: Aws, template: str, _: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_launch_templates", "LaunchTemplateIds", "LaunchTemplates", template)
    if item is None:
        return None
    numbers = {"latestVersion": item["LatestVersionNumber"], "defaultVersion": item["DefaultVersionNumber"]}
    return {"name": item["LaunchTemplateName"], **numbers, "arn": aws.arn(f"launch-template/{template}")} | {
        "tagsAll": unpaired(item.get("Tags"))
    }


def _new_version(aws: Aws, template: str, _: Inputs, inputs: Inputs) -> None:
    answer = aws.ec2(
        "create_launch_template_version", LaunchTemplateId=template, LaunchTemplateData=_template_data(aws, inputs)
    )
    if inputs.get("updateDefaultVersion"):
        number = str(answer["LaunchTemplateVersion"]["VersionNumber"])
        aws.ec2("modify_launch_template", LaunchTemplateId=template, DefaultVersion=number)


TEMPLATE_DATA = [
    "imageId",
    "instanceType",
    "keyName",
    "userData",
    "networkInterfaces",
    "blockDeviceMappings",
    "placement",
    "metadataOptions",
    "instanceMarketOptions",
    "iamInstanceProfile",
    "vpcSecurityGroupIds",
    "tagSpecifications",
    "instanceInitiatedShutdownBehavior",
    "capacityReservationSpecification",
    "monitoring",
    "ebsOptimized",
    "description",
]


def _create_key(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    aws.ec2(
        "import_key_pair",
        KeyName=inputs["keyName"],
        PublicKeyMaterial=inputs["publicKey"].encode(),
        TagSpecifications=specification("key-pair", tags),
    )
    return str(inputs["keyName"])


def _read_key(aws: Aws, name: str, _: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_key_pairs", "KeyNames", "KeyPairs", name)
    if item is None:
        return None
    return {**adopt(item), "fingerprint": item.get("KeyFingerprint"), "arn": aws.arn(f"key-pair/{name}")}


def _tag_key(aws: Aws, name: str, old: Tags, new: Tags) -> None:
    item = described(aws, "describe_key_pairs", "KeyNames", "KeyPairs", name)
    if item is not None:
        tag_ec2(aws, item["KeyPairId"], old, new)


def _create_interface(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    without = frozenset({"tags", "region", "privateIps", "sourceDestCheck"})
    wanted = request(aws, "ec2", "create_network_interface", inputs, without=without)
    if inputs.get("privateIps"):
        wanted["PrivateIpAddress"] = inputs["privateIps"][0]
    answer = aws.ec2("create_network_interface", **wanted, TagSpecifications=specification("network-interface", tags))
    return str(answer["NetworkInterface"]["NetworkInterfaceId"])


def _read_interface(aws: Aws, interface: str, _: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_network_interfaces", "NetworkInterfaceIds", "NetworkInterfaces", interface)
    if item is None:
        return None
    own = {key: value for key, value in adopt(item).items() if key not in ("interfaceType", "description")}
    address = item.get("PrivateIpAddress")
    addresses = {"privateIp": address, "privateIps": [address]} if address else {}
    return {**own, **addresses, "arn": aws.arn(f"network-interface/{interface}")} | {
        "tagsAll": unpaired(item.get("TagSet"))
    }


INSTANCE_OWN = frozenset(
    [
        "tags",
        "region",
        "volumeTags",
        "associatePublicIpAddress",
        "subnetId",
        "vpcSecurityGroupIds",
        "userData",
        "userDataBase64",
        "userDataReplaceOnChange",
        "iamInstanceProfile",
        "placementGroup",
        "availabilityZone",
        "tenancy",
        "rootBlockDevice",
        "privateIp",
        "forceDestroy",
    ]
)


def _create_instance(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    wanted = request(aws, "ec2", "run_instances", inputs, without=INSTANCE_OWN)
    interface = {
        "DeviceIndex": 0,
        "SubnetId": inputs.get("subnetId"),
        "Groups": inputs.get("vpcSecurityGroupIds"),
        "AssociatePublicIpAddress": inputs.get("associatePublicIpAddress"),
        "PrivateIpAddress": inputs.get("privateIp"),
    }
    wanted["NetworkInterfaces"] = [{key: value for key, value in interface.items() if value is not None}]
    placement = {
        "GroupName": inputs.get("placementGroup"),
        "AvailabilityZone": inputs.get("availabilityZone"),
        "Tenancy": inputs.get("tenancy"),
    }
    wanted["Placement"] = {key: value for key, value in placement.items() if value is not None}
    if inputs.get("iamInstanceProfile"):
        wanted["IamInstanceProfile"] = {"Name": inputs["iamInstanceProfile"]}
    data = inputs.get("userData") or base64.b64decode(inputs.get("userDataBase64") or "").decode()
    if data:
        wanted["UserData"] = data
    if inputs.get("rootBlockDevice"):
        image = aws.ec2("describe_images", ImageIds=[inputs["ami"]])["Images"][0]
        root = {key: value for key, value in inputs["rootBlockDevice"].items() if key in ROOT_DEVICE}
        disk = {ROOT_DEVICE[key]: value for key, value in root.items()}
        wanted["BlockDeviceMappings"] = [{"DeviceName": image["RootDeviceName"], "Ebs": disk}]
    volumes = inputs.get("volumeTags") or (inputs.get("rootBlockDevice") or {}).get("tags") or {}
    specifications = (specification("instance", tags) or []) + (specification("volume", volumes) or [])
    answer = aws.ec2("run_instances", **wanted, MinCount=1, MaxCount=1, TagSpecifications=specifications or None)
    return str(answer["Instances"][0]["InstanceId"])


ROOT_DEVICE = {
    "volumeSize": "VolumeSize",
    "volumeType": "VolumeType",
    "deleteOnTermination": "DeleteOnTermination",
    "encrypted": "Encrypted",
    "iops": "Iops",
    "throughput": "Throughput",
    "kmsKeyId": "KmsKeyId",
}


def _instance(aws: Aws, instance: str) -> dict[str, Any] | None:
    item = described(aws, "describe_instances", "InstanceIds", "Reservations", instance)
    return None if item is None else dict(item["Instances"][0])


def _read_instance(aws: Aws, instance: str, _: Inputs) -> dict[str, Any] | None:
    item = _instance(aws, instance)
    if item is None or item["State"]["Name"] == "terminated":
        return None
    interfaces = item.get("NetworkInterfaces") or [{}]
    names = {
        "instanceState": item["State"]["Name"],
        "availabilityZone": item["Placement"]["AvailabilityZone"],
        "publicIp": item.get("PublicIpAddress"),
        "publicDns": item.get("PublicDnsName"),
        "privateIp": item.get("PrivateIpAddress"),
        "privateDns": item.get("PrivateDnsName"),
        "primaryNetworkInterfaceId": interfaces[0].get("NetworkInterfaceId"),
        "arn": aws.arn(f"instance/{instance}"),
        "tagsAll": unpaired(item.get("Tags")),
    }
    return {key: value for key, value in names.items() if value is not None}


def _await_instance(aws: Aws, instance: str, _: Inputs) -> None:
    def running() -> bool:
        item = _instance(aws, instance)
        if item is not None and item["State"]["Name"] in ("terminated", "shutting-down"):
            reason = item.get("StateReason", {})
            raise RuntimeError(f"{instance} is {item['State']['Name']}: {reason.get('Message')}")
        return item is not None and item["State"]["Name"] == "running"

    poll(instance, running)


def _delete_instance(aws: Aws, instance: str, state: Inputs) -> None:
    quietly(lambda: aws.ec2("terminate_instances", InstanceIds=[instance]))
    poll(instance, lambda: _read_instance(aws, instance, state) is None)


def _create_reservation(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    wanted = request(aws, "ec2", "create_capacity_reservation", inputs)
    answer = aws.ec2(
        "create_capacity_reservation", **wanted, TagSpecifications=specification("capacity-reservation", tags)
    )
    return str(answer["CapacityReservation"]["CapacityReservationId"])


def _read_reservation(aws: Aws, reservation: str, _: Inputs) -> dict[str, Any] | None:
    item = described(
        aws, "describe_capacity_reservations", "CapacityReservationIds", "CapacityReservations", reservation
    )
    if item is None or item["State"] in ("cancelled", "expired"):
        return None
    return {"arn": item["CapacityReservationArn"], "ownerId": item["OwnerId"], "tagsAll": unpaired(item.get("Tags"))}


def _modify_reservation(aws: Aws, reservation: str, _: Inputs, inputs: Inputs) -> None:
    wanted = {key: inputs[key] for key in ("instanceCount", "endDate", "endDateType") if key in inputs}
    converted = request(aws, "ec2", "modify_capacity_reservation", wanted)
    aws.ec2("modify_capacity_reservation", CapacityReservationId=reservation, **converted)


def _by_id(operation: str, parameter: str) -> Any:
    return lambda aws, each, _: quietly(lambda: aws.ec2(operation, **{parameter: each}))


KINDS = {
    "aws:ec2/placementGroup:PlacementGroup": Kind(
        create=_create_placement,
        read=_read_placement,
        delete=_by_id("delete_placement_group", "GroupName"),
        replace=frozenset({"name", "strategy", "partitionCount", "spreadLevel"}),
        tag=_tag_placement,
        auto_name="name",
    ),
    "aws:ec2/launchTemplate:LaunchTemplate": Kind(
        create=_create_template,
        read=_read_template,
        delete=_by_id("delete_launch_template", "LaunchTemplateId"),
        replace=frozenset({"name", "namePrefix"}),
        updates=dict.fromkeys(TEMPLATE_DATA, _new_version),
        state_only=frozenset({"updateDefaultVersion"}),
        tag=tag_ec2,
        auto_name="name",
        longest_name=128,
    ),
    "aws:ec2/keyPair:KeyPair": Kind(
        create=_create_key,
        read=_read_key,
        delete=_by_id("delete_key_pair", "KeyName"),
        replace=frozenset({"keyName", "keyNamePrefix", "publicKey"}),
        tag=_tag_key,
        auto_name="keyName",
    ),
    "aws:ec2/networkInterface:NetworkInterface": Kind(
        create=_create_interface,
        read=_read_interface,
        delete=_by_id("delete_network_interface", "NetworkInterfaceId"),
        replace=frozenset({"subnetId", "interfaceType", "privateIps"}),
        tag=tag_ec2,
    ),
    "aws:ec2/instance:Instance": Kind(
        create=_create_instance,
        settle=_await_instance,
        read=_read_instance,
        delete=_delete_instance,
        replace=frozenset(
            [
                "ami",
                "availabilityZone",
                "subnetId",
                "keyName",
                "placementGroup",
                "tenancy",
                "associatePublicIpAddress",
                "privateIp",
                "instanceMarketOptions",
                "rootBlockDevice",
            ]
        ),
        state_only=frozenset({"userDataReplaceOnChange", "forceDestroy"}),
        tag=tag_ec2,
    ),
    "aws:ec2/capacityReservation:CapacityReservation": Kind(
        create=_create_reservation,
        read=_read_reservation,
        delete=_by_id("cancel_capacity_reservation", "CapacityReservationId"),
        replace=frozenset(
            [
                "instanceType",
                "instancePlatform",
                "availabilityZone",
                "tenancy",
                "ebsOptimized",
                "ephemeralStorage",
                "instanceMatchCriteria",
                "placementGroupArn",
                "outpostArn",
            ]
        ),
        updates=dict.fromkeys(("instanceCount", "endDate", "endDateType"), _modify_reservation),
        tag=tag_ec2,
    ),
}
