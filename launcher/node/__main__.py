"""`python <run folder>/node COMMAND …`: the door through which the user's machine talks to a node's supervisor."""

import sys

from launcher.node.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
