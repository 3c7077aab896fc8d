"""What can go wrong in the trainer, with the exit code of each kind.

TrainerError            1   anything below; on its own: a failure of the run
├── ConfigError         2   the recipe or the command line is wrong
├── CheckpointError     3   a checkpoint cannot be written or read
├── DataError           5   data cannot be read, is damaged, or does not fit the recipe
├── NonFiniteLoss       4   the loss or the gradient is not a number any more
└── Stopped            75   asked to stop, and stopped with a checkpoint (EX_TEMPFAIL)
"""


class TrainerError(Exception):
    """One sentence: what was wrong, where, what to do."""

    exit_code = 1


class ConfigError(TrainerError):
    """The recipe or the command line is wrong."""

    exit_code = 2


class CheckpointError(TrainerError):
    """A checkpoint cannot be written, or none can be read in full."""

    exit_code = 3


class DataError(TrainerError):
    """Data cannot be read, is damaged, or does not fit the recipe; the file and the place in it are named."""

    exit_code = 5


class NonFiniteLoss(TrainerError):
    """The loss or the gradient norm is NaN or infinite."""

    exit_code = 4


class Stopped(TrainerError):
    """All ranks stopped at the same step, with a checkpoint there."""

    exit_code = 75
