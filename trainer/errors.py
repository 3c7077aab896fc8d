"""What can go wrong in the trainer, with the exit code of each kind.

TrainerError            1   anything below; on its own: a failure of the run
├── ConfigError         2   the recipe or the command line is wrong
├── CheckpointError     3   a checkpoint cannot be written or read
│   └── Unreachable     3   … because object storage does not answer
├── BadStep             4   the loss or the gradient is no number, or the loss is a spike
├── DataError           5   data cannot be read, is damaged, or does not fit the recipe
├── Stalled             6   no rank finished anything for watch.stall_s
├── GraceOver           7   asked to stop, and no checkpoint was complete within watch.grace_s
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


class Unreachable(CheckpointError):
    """Object storage does not answer or refuses: whether its checkpoints are complete can't be known now."""


class DataError(TrainerError):
    """Data cannot be read, is damaged, or does not fit the recipe; the file and the place in it are named."""

    exit_code = 5


class BadStep(TrainerError):
    """The loss or the gradient norm is no number, or the loss far above the recent ones. No weight was changed."""

    exit_code = 4


class Stalled(TrainerError):
    """Nothing was finished for too long; the rank that the others wait for is named, if one is behind."""

    exit_code = 6


class GraceOver(TrainerError):
    """Asked to stop, but the checkpoint wasn't complete in time; the one before it is untouched."""

    exit_code = 7


class Stopped(TrainerError):
    """All ranks stopped at the same step, with a checkpoint there."""

    exit_code = 75
