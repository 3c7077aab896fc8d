"""How a container of a GPU cloud becomes a node: the guard, then an SSH server with our host key and nobody else's.

Such clouds know no user data: what a node needs comes in the container's environment, and a start command runs it. The
guard is armed first. It ends the work at the deadline, and the billing where the cloud gives a container a key to end
itself with; whoever can read what the container was made from can read its host key.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from infra.first_boot import FirstBoot, Login

LOGIN = Login(user="root", work_dir="/root/trainstack")
FOLDER = "/etc/trainstack"
COMMAND = 'eval "$(printf %s "$TRAINSTACK_START" | base64 -d)"'
"""For `bash -c` or `sh -c`, as the container's first process."""

# A comparison that can't be made (no file, no number) counts as over, as in user_data.py. /proc/uptime is the host's.
_GUARD = f"""\
#!/bin/sh
# Ends the work of this container when its lifetime is over, and its billing where that is given; looks each minute.
over() {{
  deadline=$(cat {FOLDER}/deadline)
  longest=$(cat {FOLDER}/longest-uptime)
  first=$(cat {FOLDER}/first-uptime)
  uptime=$(cut -d. -f1 /proc/uptime)
  if [ "$(date +%s)" -lt "$deadline" ] && [ $((uptime - first)) -lt "$longest" ]; then return 1; fi
}}
if [ "$1" = --is-over ]; then over; exit; fi
until over; do sleep "${{TRAINSTACK_LOOK_EVERY_S:-60}}"; done
echo "trainstack: the lifetime is over: ending this container's work"
while :; do
  kill -KILL -1 # all but this one and the first process
  if [ -n "$TRAINSTACK_END_URL" ]; then
    url=$(eval "printf %s \\"$TRAINSTACK_END_URL\\"")
    key=$(eval "printf %s \\"\\${{$TRAINSTACK_END_KEY}}\\"")
    if command -v curl > /dev/null; then
      printf 'Authorization: Bearer %s' "$key" | curl -fsS -m 60 -o /dev/null -X "$TRAINSTACK_END_METHOD" -H @- "$url"
    else
      URL="$url" KEY="$key" METHOD="$TRAINSTACK_END_METHOD" python3 -c '
import os, urllib.request
headers = {{"Authorization": "Bearer " + os.environ["KEY"]}}
request = urllib.request.Request(os.environ["URL"], method=os.environ["METHOD"], headers=headers)
urllib.request.urlopen(request, timeout=60)'
    fi
  fi
  sleep "${{TRAINSTACK_LOOK_EVERY_S:-60}}"
done
"""

_SSHD = f"""\
Port 22
HostKey {FOLDER}/host_key
AuthorizedKeysFile {FOLDER}/authorized_keys
PidFile none
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
UseDNS no
AllowTcpForwarding yes
X11Forwarding no
PrintMotd no
MaxStartups 1000
MaxSessions 1000
Subsystem sftp internal-sftp
"""

# A container that starts again keeps its deadline (it may have been moved), and stays without SSH once it is over.
_START = f"""\
umask 022
export PATH="${{PATH:-/usr/bin:/bin}}:/usr/local/sbin:/usr/sbin:/sbin"
mkdir -p {FOLDER} /run/sshd
decoded() {{ eval "printf %s \\"\\${{TRAINSTACK_$1}}\\"" | base64 -d; }}
put() {{ test -e "$1" || {{ cat > "$1.new" && chmod "$2" "$1.new" && mv "$1.new" "$1"; }}; }}
rank=0
if [ -n "$TRAINSTACK_RANK" ]; then rank=$(eval "printf %s \\"\\${{$TRAINSTACK_RANK}}\\""); fi
decoded GUARD | put {FOLDER}/guard 755
echo "$TRAINSTACK_DEADLINE" | put {FOLDER}/deadline 644
echo "$TRAINSTACK_LONGEST_UPTIME" | put {FOLDER}/longest-uptime 644
cut -d. -f1 /proc/uptime | put {FOLDER}/first-uptime 644
setsid {FOLDER}/guard &
while {FOLDER}/guard --is-over; do sleep 60; done
decoded "HOST_KEY_$rank" | put {FOLDER}/host_key 600
decoded AUTHORIZED_KEY | put {FOLDER}/authorized_keys 600
unset TRAINSTACK_START TRAINSTACK_GUARD $(env | grep -o '^TRAINSTACK_HOST_KEY_[0-9]*')
{{
  decoded SSHD
  printf 'SetEnv'
  env | grep -E '^(PATH|LANG|LD_LIBRARY_PATH|LIBRARY_PATH|(CUDA|NVIDIA|NCCL)_[A-Z0-9_]*)=[A-Za-z0-9_./:,=@+-]*$' |
    while read -r line; do printf ' "%s"' "$line"; done
  echo
}} > {FOLDER}/sshd_config
until command -v sshd > /dev/null; do
  echo 'trainstack: installing openssh-server'
  apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openssh-server ||
    sleep 10
done
usermod -p '*' root # sshd takes an account whose password begins with ! for locked
echo "trainstack: node $rank is ready"
exec env -i PATH="$PATH" "$(command -v sshd)" -D -e -f {FOLDER}/sshd_config
"""


@dataclass(frozen=True, kw_only=True)
class EndCall:
    """The HTTP call by which a container ends its own billing."""

    method: str
    url: str
    """May name variables of the container: "https://…/pods/${RUNPOD_POD_ID}"."""
    key_variable: str
    """The one that has the container's own key, which is sent as a bearer."""


def variables(boots: Sequence[FirstBoot], *, end: EndCall | None, rank_variable: str = "") -> dict[str, str]:
    """What the container is to have in its environment besides the provider's own.

    Several `boots`, in rank order, for containers that all get one environment: each finds its rank in `rank_variable`.
    """
    first = boots[0]
    return {
        "TRAINSTACK_START": _encoded(_START),
        "TRAINSTACK_GUARD": _encoded(_GUARD),
        "TRAINSTACK_SSHD": _encoded(_SSHD),
        "TRAINSTACK_AUTHORIZED_KEY": _encoded(first.authorized_key + "\n"),
        "TRAINSTACK_DEADLINE": str(int(first.expires_at.timestamp())),
        "TRAINSTACK_LONGEST_UPTIME": str(first.lifetime_s),
        "TRAINSTACK_RANK": rank_variable,
        "TRAINSTACK_END_METHOD": end.method if end else "",
        "TRAINSTACK_END_URL": end.url if end else "",
        "TRAINSTACK_END_KEY": end.key_variable if end else "",
        **{f"TRAINSTACK_HOST_KEY_{rank}": _encoded(boot.host_key) for rank, boot in enumerate(boots)},
    }


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
