"""The error tree of every mtl tool, and the exit code each error ends a command with.

MtlError                    1   the work could not be done
    UsageError              2   the request cannot be right as typed
        ConfigError         2   a key, value or combination of settings
    DataError               1   a corpus, tokenizer or token bins
    CheckpointError         1   a checkpoint directory or model file
    RankError               1   a rank or process of the group failed
    ServeError              1   a server, or what it answered

A message is one sentence: what, where, what to do.
"""


class MtlError(Exception):
    """Work that could not be done, told in one sentence to the person who asked for it."""

    exit_code = 1


class UsageError(MtlError):
    """A request that cannot be right as typed."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting, or a combination of settings, that is not possible."""


class DataError(MtlError):
    """A corpus, tokenizer or token dataset that cannot be used."""


class CheckpointError(MtlError):
    """A checkpoint directory or model file that cannot be used."""


class RankError(MtlError):
    """A rank of the group failed, or did not come."""


class ServeError(MtlError):
    """A server that cannot serve, or an answer that says so."""
