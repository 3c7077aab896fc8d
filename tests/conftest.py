"""For all tests: the signals as a terminal's shell leaves them."""

import signal

# Google's own google.rpc.Status before Pulumi's copy of it: `import pulumi` comes to terms with it, and
# not the other way round.
import google.rpc.status_pb2  # noqa: F401
import pytest


def pytest_configure(config: pytest.Config) -> None:
    """A script's `make test &` has SIGINT ignored, and with it every process that a test starts and then interrupts."""
    del config
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
