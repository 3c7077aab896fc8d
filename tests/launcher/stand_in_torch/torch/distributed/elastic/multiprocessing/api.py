class SignalException(Exception):
    """Raised in torchrun's main thread by a signal."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.sigval = number
