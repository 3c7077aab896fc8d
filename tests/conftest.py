"""For all tests: the signals as a terminal's shell leaves them."""

import signal

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """A script's `make test &` has SIGINT ignored, and with it every process that a test starts and then interrupts."""
    del config
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
