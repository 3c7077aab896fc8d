class ProcessFailure:
    def __init__(self, pid: int, exitcode: int) -> None:
        self.pid, self.exitcode = pid, exitcode


class ChildFailedError(Exception):
    def __init__(self, failures: dict[int, ProcessFailure]) -> None:
        super().__init__(f"ranks {sorted(failures)} failed")
        self.failures = failures
