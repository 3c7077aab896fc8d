"""What a cloud's machine is given at its start (cloud-init): our host key, the stack's public key, and the guard.

The guard is armed first, before SSH answers and whatever comes later fails: it powers the machine off at the deadline,
and the provider is told at creation that a machine which powers off is to be deleted. Needs no laptop and no network.
"""

from __future__ import annotations

import json

from infra.first_boot import FirstBoot, Login

USER = "trainstack"
"""The login that we make on every machine, whatever the image calls its own."""
LOGIN = Login(user=USER, work_dir=f"/home/{USER}/trainstack")
DEADLINE_FILE = "/etc/trainstack/deadline"
"""Unix time. Rewriting it (whole, by a rename) moves the deadline."""
LONGEST_UPTIME_FILE = "/etc/trainstack/longest-uptime"
"""Seconds. The bound that holds when the clock is wrong."""
GUARD = "/usr/local/sbin/trainstack-guard"

# Each comparison that can't be made (no file, no number) counts as over: a guard that can't tell ends the billing.
GUARD_SCRIPT = f"""\
#!/bin/sh
# Ends this machine when its lifetime is over; started every minute by trainstack-guard.timer.
deadline=$(cat {DEADLINE_FILE})
longest=$(cat {LONGEST_UPTIME_FILE})
uptime=$(cut -d. -f1 /proc/uptime)
if [ "$(date +%s)" -lt "$deadline" ] && [ "$uptime" -lt "$longest" ]; then exit 0; fi
logger -t trainstack-guard "the lifetime is over: powering off"
exec shutdown -h now
"""

_SERVICE = f"""\
[Unit]
Description=trainstack: end this machine when its lifetime is over
[Service]
Type=oneshot
ExecStart={GUARD}
"""

_TIMER = """\
[Unit]
Description=trainstack: look every minute whether the lifetime is over
[Timer]
OnActiveSec=10s
OnUnitActiveSec=60s
AccuracySec=1s
[Install]
WantedBy=timers.target
"""


def cloud_config(boot: FirstBoot) -> str:
    """The text of a cloud-config. JSON is YAML too, and needs no quoting rules of ours."""
    files = {
        GUARD: (GUARD_SCRIPT, "0755"),
        DEADLINE_FILE: (f"{int(boot.expires_at.timestamp())}\n", "0644"),
        LONGEST_UPTIME_FILE: (f"{boot.lifetime_s}\n", "0644"),
        "/etc/systemd/system/trainstack-guard.service": (_SERVICE, "0644"),
        "/etc/systemd/system/trainstack-guard.timer": (_TIMER, "0644"),
    }
    put = 'test -e "$1" || { printf %s "$2" > "$1.new" && chmod "$3" "$1.new" && mv "$1.new" "$1"; }'
    # bootcmd runs before everything else (and at each boot, hence "unless there": a moved deadline stays moved);
    # write_files would come later, after the network.
    arm = [
        ["mkdir", "-p", "/etc/trainstack"],
        *(["sh", "-c", put, "sh", path, content, mode] for path, (content, mode) in files.items()),
        ["systemctl", "daemon-reload"],
        ["systemctl", "enable", "--now", "--no-block", "trainstack-guard.timer"],
    ]
    config = {
        "bootcmd": arm,
        "hostname": boot.name,
        "preserve_hostname": False,
        "ssh_deletekeys": True,
        "ssh_genkeytypes": ["ed25519"],
        "ssh_keys": {"ed25519_private": boot.host_key, "ed25519_public": boot.host_public_key},
        "ssh_pwauth": False,
        "disable_root": True,
        "users": [
            {
                "name": USER,
                "shell": "/bin/bash",
                "lock_passwd": True,
                "sudo": "ALL=(ALL) NOPASSWD:ALL",
                "ssh_authorized_keys": [boot.authorized_key],
            }
        ],
        # A package upgrade at first boot takes minutes that are paid for, and can pull a driver from under a GPU.
        "package_update": False,
        "package_upgrade": False,
    }
    return "#cloud-config\n" + json.dumps(config, indent=1) + "\n"
