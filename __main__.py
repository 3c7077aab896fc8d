"""What `pulumi up` runs. It stands at the root because the engine looks for the virtual environment beside it."""

from infra.program import main

main()
