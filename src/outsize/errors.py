"""What a user can cause and mend, each as one line: the thing, the fact, the way out.

The command line prints these and exits with 2; anything else is a defect of ours and keeps its
traceback. Each class also derives from the built-in exception a caller would expect.
"""


class OutsizeError(Exception):
    """The base of every error a user can cause and mend."""


class ConfigError(OutsizeError, ValueError):
    """A run file, an override or an argument that cannot be used as written."""


class BudgetError(ConfigError):
    """A table that cannot be made as small as its budget asks."""


class NotEnoughMemoryError(OutsizeError, MemoryError):
    """A run that needs more memory than there is."""


class DataError(OutsizeError, ValueError):
    """Input data that does not have the promised form."""


class IdError(OutsizeError, IndexError):
    """An id outside the rows of its table."""


class NonFiniteError(OutsizeError, ArithmeticError):
    """A loss or gradient that is NaN or infinite."""


class OwnerError(OutsizeError, RuntimeError):
    """A rank that refused a request for its rows, or is out of reach."""


class ReclusterError(OutsizeError, RuntimeError):
    """A reclustering that failed on another rank, and so changed nothing on any."""


class WriteError(OutsizeError, RuntimeError):
    """A file that could not be written."""


class ExportError(OutsizeError, RuntimeError):
    """An exported model that could not be written, or cannot be trusted."""


class CheckpointError(OutsizeError, RuntimeError):
    """A checkpoint that could not be written, or cannot be trusted."""


class RanksError(OutsizeError, RuntimeError):
    """Ranks that do not do the same where all must, or one that failed there."""


class LostRanksError(OutsizeError, RuntimeError):
    """Other ranks of a launch that ended before their work was done."""


class CellError(OutsizeError, RuntimeError):
    """Cells of a comparison that failed, after the others were finished."""
