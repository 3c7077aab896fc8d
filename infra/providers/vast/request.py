"""The body of a create: how OUR sshd, with OUR host key, comes to serve the port that Vast.ai maps. Pure.

Launch mode `args`, with the entrypoint overridden (field `onstart`: in this mode it is the entrypoint): the container
is the image and our start command, nothing else. In the ssh modes Vast.ai's own entrypoint starts its own sshd on port
22, with a host key that nobody tells and the account's keys let in; and its proxy sees what passes. `args` opens no
port by itself, hence "-p 22:22".
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping
from typing import Any

from infra import label
from infra.container_start import COMMAND, EndCall, variables
from infra.gang import Order
from infra.providers.base import Deployment
from infra.providers.vast.plan import Quote

PORT = "22/tcp"
_LONGEST_VARIABLE = 256  # name and value, to be sure: the limit's description doesn't say
_PART = "TRAINSTACK_PART_"
START = (
    f"""eval "$(printf %s $(env | LC_ALL=C sort | sed -n 's/^{_PART}[0-9]*=//p') | base64 -d)"; """
    f"unset $(env | grep -o '^{_PART}[0-9]*'); {COMMAND}"
)
"""For `bash -c`: puts the variables together again, then starts the node."""


def environment(order: Order, *, url: str) -> dict[str, str]:
    """The node's variables, in parts that Vast.ai takes. `url`: where the container ends itself."""
    # CONTAINER_ID and CONTAINER_API_KEY are Vast.ai's own: that key can start, stop and destroy this instance only.
    end = EndCall(method="DELETE", url=f"{url}/api/v0/instances/${{CONTAINER_ID}}/", key_variable="CONTAINER_API_KEY")
    told = variables([order.boot], end=end)
    text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in told.items())
    encoded = base64.b64encode(text.encode()).decode()
    room = _LONGEST_VARIABLE - len(_PART) - 3
    parts = [encoded[at : at + room] for at in range(0, len(encoded), room)]
    return {f"{_PART}{number:03}": part for number, part in enumerate(parts)}


def body(order: Order, quote: Quote, wanted: Mapping[str, Any], deployment: Deployment, *, url: str) -> dict[str, Any]:
    """`wanted`: plan.wish."""
    request: dict[str, Any] = {
        "image": wanted["image"],
        "label": label.text(deployment, node=order.name, token=order.token, zone=order.zone),
        "disk": int(wanted["disk_gib"]),
        "runtype": "args",
        "onstart": "bash",
        "args": ["-c", START],
        "env": {**environment(order, url=url), "-p 22:22": "1"},
        "target_state": "running",
        # Without it an interruptible that can't start is made stopped, and bills its disk.
        "cancel_unavail": True,
    }
    if quote.bid_usd is not None:
        request["price"] = quote.bid_usd
    return request
