"""Gets the Pulumi engine (CLI and Python language host) and points it at this checkout: backend, passphrase, PATH.

    find_pulumi(root)   the CLI that `make setup` put under <root>/.trainstack/bin
    environment(root)   the environment to run it in; `source ./activate` sets the same in a shell
    install(root)       takes the CLI from PATH, the official installer or its Go modules, whichever works first
    initialise(root)    passphrase, file backend and the stack `local`

Only the standard library is imported here, because scripts/setup.py asks before there is a virtual environment.
"""

from infra.pulumi_engine.backend import initialise, is_initialised
from infra.pulumi_engine.installer import install
from infra.pulumi_engine.layout import environment, find_pulumi

__all__ = ["environment", "find_pulumi", "initialise", "install", "is_initialised"]
