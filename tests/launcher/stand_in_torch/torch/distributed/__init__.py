class DistError(RuntimeError):
    pass
