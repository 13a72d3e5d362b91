"""The error tree: every error that prepcache raises, with its code, HTTP status and exit code.

    PrepcacheError
    ├── ConfigError                 settings that cannot work together (prepcached and client)
    ├── UnkeyableError              an input that has no stable bytes
    ├── PreprocessError             the preprocessing function raised; names the item
    ├── SampleError                 a sample that no column can hold; names the item and the leaf
    ├── VerifyError                 a hit, recomputed, gave other bytes
    ├── ArtifactError               a file that is not a whole, valid artifact
    ├── DaemonError
    │   ├── DaemonUnreachable       nobody answers (absent, hung, killed)
    │   └── ProtocolMismatch        client and daemon speak different protocol versions
    ├── RequestError                the daemon refused a request
    │   ├── BadRequest
    │   ├── Unauthorized
    │   ├── Forbidden
    │   ├── NotFound
    │   ├── MethodNotAllowed
    │   ├── TooLarge
    │   ├── LimitExceeded
    │   ├── UnknownSession
    │   ├── UnknownRecipe
    │   ├── LeaseLapsed
    │   ├── FutureGeneration
    │   ├── StagedFileRefused
    │   └── Declined                no room that may be made
    └── StoreError                  the store could not tell: I/O, never "absent"
        ├── RootUnusable
        ├── RootInUse
        └── IndexCorrupt

Invariants:
    1. `code` is a public contract: it is the `code` member of problem documents (RFC 9457) and the
       first column of the reference's error table, which is derived from these classes.
    2. Every class survives pickling with its attributes: an exception that does not pickle hangs a
       DataLoader. Attributes live in `__dict__`; `args` holds only the message.
    3. A message says what, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

MOST_PATH_CHARS = 160
"""Of the path to an input that a message shows whole."""


class PrepcacheError(Exception):
    """Base of all errors that prepcache raises.

    Args:
        message: what happened, where, and what to do about it.
        data: facts for programs; they become attributes and members of the problem document.
    """

    code: ClassVar[str] = "prepcache-error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    is_retryable: ClassVar[bool] = False

    def __init__(self, message: str = "", /, **data: Any) -> None:
        super().__init__(message or data.pop("message", ""))  # a DataLoader names it, for a worker's error
        self.data: dict[str, Any] = data

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            data = self.__dict__.get("data", {})
            if name in data:
                return data[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def message(self) -> str:
        return str(self.args[0])


class ConfigError(PrepcacheError):
    """Settings that cannot work, alone or together."""

    code, status, exit_code = "config", 400, 2


class UnkeyableError(PrepcacheError):
    """An input has no stable bytes; the message holds the path to it and the ways out."""

    code, status, exit_code = "unkeyable", 422, 10

    def __init__(self, message: str, **data: Any) -> None:
        path = data.get("path")
        if isinstance(path, str) and len(path) > MOST_PATH_CHARS:  # as of a mock
            message = message.replace(path, f"{path[:60]}...{path[-20:]}", 1)
        super().__init__(message, **data)


class PreprocessError(PrepcacheError):
    """The preprocessing function raised; `__context__` is its exception, `item` names the item.

    The frames of the function end its traceback, so that one traceback shows all.
    """

    code, status, exit_code = "preprocess-failed", 500, 12

    @classmethod
    def of(cls, error: BaseException | None, message: str, **data: Any) -> PreprocessError:
        """In place of what the function raised: with its frames, its notes and its own cause."""
        failed = cls(message, **data)
        if error is not None:
            failed.__traceback__ = error.__traceback__
            failed.__cause__ = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
            failed.__context__ = error
            for note in getattr(error, "__notes__", ()):
                failed.add_note(note)
        return failed


class SampleError(PrepcacheError):
    """The preprocessing function returned a value that cannot be stored."""

    code, status, exit_code = "unstorable-sample", 422, 13


class VerifyError(PrepcacheError):
    """A recomputed hit has different bytes than the stored one."""

    code, status, exit_code = "verify-mismatch", 409, 14


class ArtifactError(PrepcacheError):
    """A file is not a whole, valid artifact (truncated, foreign, or damaged)."""

    code, status, exit_code = "bad-artifact", 422, 15


class DaemonError(PrepcacheError):
    """Trouble with the daemon as such."""

    code, status, exit_code = "daemon", 502, 3


class DaemonUnreachable(DaemonError):
    """No daemon answers: absent, hung or killed."""

    code, status, exit_code, is_retryable = "daemon-unreachable", 503, 3, True


class ProtocolMismatch(DaemonError):
    """Client and daemon speak different protocol versions."""

    code, status, exit_code = "protocol-mismatch", 426, 16


class RequestError(PrepcacheError):
    """The daemon refused a request."""

    code, status, exit_code = "request", 400, 1


class BadRequest(RequestError):
    """A malformed request; the message names the field."""

    code, status, exit_code = "bad-request", 400, 2


class Unauthorized(RequestError):
    """No token, or a wrong one."""

    code, status, exit_code = "unauthorized", 401, 17


class Forbidden(RequestError):
    """The caller is neither the owner nor an admin."""

    code, status, exit_code = "forbidden", 403, 18


class NotFound(RequestError):
    """There is no such entry, recipe or miss."""

    code, status, exit_code = "not-found", 404, 1


class MethodNotAllowed(RequestError):
    """The endpoint does not have this method; the header `Allow` names its methods."""

    code, status, exit_code = "method-not-allowed", 405, 31


class TooLarge(RequestError):
    """A body or list is over its limit; a header also, with status 431."""

    code, status, exit_code = "too-large", 413, 19


class LimitExceeded(RequestError):
    """A session is over its limit of leases or staged bytes."""

    code, status, exit_code, is_retryable = "limit-exceeded", 429, 20, True


class UnknownSession(RequestError):
    """The session ended (death, deadline, or never opened); open a new one."""

    code, status, exit_code, is_retryable = "unknown-session", 410, 21, True


class UnknownRecipe(RequestError):
    """Leases were requested for a recipe that is not registered."""

    code, status, exit_code = "unknown-recipe", 409, 22


class LeaseLapsed(RequestError):
    """The lease has lapsed, or its token is wrong: the commit is refused."""

    code, status, exit_code = "lease-lapsed", 409, 23


class FutureGeneration(RequestError):
    """The client has seen a generation that this index never had (another root, or a rebuilt one)."""

    code, status, exit_code, is_retryable = "future-generation", 409, 24, True


class StagedFileRefused(RequestError):
    """A staged file does not match its announcement (owner, type, links, size, digest, header, items)."""

    code, status, exit_code = "staged-file-refused", 422, 25


class Declined(RequestError):
    """There is no room: the rest is in use or pinned, or the artifact exceeds the budget."""

    code, status, exit_code = "declined", 507, 26


class StoreError(PrepcacheError):
    """The store could not tell: an I/O error. Never means absent."""

    code, status, exit_code, is_retryable = "store-error", 500, 27, True


class RootUnusable(StoreError):
    """The root cannot hold a store (not writable, network filesystem, split over filesystems)."""

    code, status, exit_code, is_retryable = "root-unusable", 500, 28, False


class RootInUse(StoreError):
    """Another daemon has the root."""

    code, status, exit_code, is_retryable = "root-in-use", 500, 29, False


class IndexCorrupt(StoreError):
    """The index is damaged; the next start or `prepcached rebuild` rebuilds it from the artifacts."""

    code, status, exit_code, is_retryable = "index-corrupt", 500, 30, False


def all_errors(base: type[PrepcacheError] = PrepcacheError) -> Iterator[type[PrepcacheError]]:
    """Yields `base` and every error class below it, parents first."""
    yield base
    for child in base.__subclasses__():
        yield from all_errors(child)


def from_problem(problem: dict[str, Any]) -> PrepcacheError:
    """The error that a problem document (RFC 9457) describes; an unknown code gives `RequestError`."""
    data = {k: v for k, v in problem.items() if k not in ("type", "title", "status", "detail", "code")}
    detail = str(problem.get("detail") or problem.get("title") or "the daemon refused the request")
    for cls in all_errors():
        if cls.code == problem.get("code"):
            return cls(detail, **data)
    return RequestError(detail, **data)
