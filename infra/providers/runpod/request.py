"""The bodies of the creates: how OUR sshd, with OUR host keys, comes to serve the port that RunPod maps. Pure.

`startSsh` stays off: it would let the account's keys in. The image's entrypoint runs `args`, which is our start.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from infra import label
from infra.container_start import COMMAND, EndCall, variables
from infra.gang import Order
from infra.providers.base import Deployment
from infra.providers.runpod import plan

PORT = "22/tcp"
WHOLE = "cluster"
"""In the label of a cluster, where that of a pod has its node."""


def body(
    orders: Sequence[Order],
    wanted: Mapping[str, Any],
    deployment: Deployment,
    *,
    data_centers: Sequence[str],
    volume: str | None,
    url: str,
) -> dict[str, Any]:
    """Of a pod for one order, of a cluster for several, in rank order.

    `wanted`: plan.wish. `url`: where a pod ends itself.
    """
    first = orders[0]
    gpu, count = plan.MODELS[wanted["gpu_model"]][0], int(wanted["gpu_count"])
    is_pod = plan.product(wanted) == "POD"
    node = first.name if is_pod else WHOLE
    request: dict[str, Any] = {
        "name": label.text(deployment, node=node, token=first.token, zone=first.zone),
        "image": wanted["image"],
        "args": shlex.join(["bash", "-c", COMMAND]),
        "disk": int(wanted["disk_gib"]),
        "ports": [PORT],
        "dataCenterIds": list(data_centers),
    }
    boots = [order.boot for order in orders]
    if is_pod:
        # RUNPOD_POD_ID and RUNPOD_API_KEY are RunPod's own: that key is the pod's.
        end = EndCall(method="DELETE", url=f"{url}/v2/pods/${{RUNPOD_POD_ID}}", key_variable="RUNPOD_API_KEY")
        request["env"] = variables(boots, end=end)
        request["gpu"] = {"id": gpu, "count": count, "minCudaVersion": plan.CUDA}
        request["cloud"] = "SECURE"
    else:
        # No pod of a cluster may be ended alone (status 409), and none has a key for the whole of it.
        request["env"] = variables(boots, end=None, rank_variable="NODE_RANK")
        request["type"] = "TRAINING"
        request["compute"] = {"gpuTypeId": gpu, "gpuCountPerPod": count, "podCount": int(wanted["nodes"])}
    if volume:
        request["mounts"] = {"network": [{"volumeId": volume, "path": plan.SHARED_PATH}]}
    return request
