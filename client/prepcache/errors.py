"""The error tree: every error that prepcache raises, with its code, HTTP status and exit code.

Invariants:
    1. `code` is a public contract: the `code` of problem documents (RFC 9457), and the first column of the
       reference's error table, which is derived from these classes.
    2. Every class survives pickling with its attributes: an exception that does not pickle hangs a
       DataLoader. Attributes live in `__dict__`; `args` holds only the message.
    3. A message says what, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar


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

    def __init_subclass__(cls, **public: Any) -> None:
        for name, value in public.items():
            setattr(cls, name, value)

    def __init__(self, message: str = "", /, **data: Any) -> None:
        super().__init__(message or data.pop("message", ""))  # a DataLoader names it, for a worker's error
        self.data: dict[str, Any] = data

    def __getattr__(self, name: str) -> Any:
        data = self.__dict__.get("data", {})
        if name in data and not name.startswith("__"):
            return data[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def message(self) -> str:
        return str(self.args[0])


class ConfigError(PrepcacheError, code="config", status=400, exit_code=2):
    """Settings that cannot work, alone or together."""


class UnkeyableError(PrepcacheError, code="unkeyable", status=422, exit_code=10):
    """An input has no stable bytes; the message holds the path to it and the ways out."""


class PreprocessError(PrepcacheError, code="preprocess-failed", status=500, exit_code=12):
    """The preprocessing function raised; `__cause__` is its exception, `item` names the item."""


class SampleError(PrepcacheError, code="unstorable-sample", status=422, exit_code=13):
    """The preprocessing function returned a value that cannot be stored."""


class VerifyError(PrepcacheError, code="verify-mismatch", status=409, exit_code=14):
    """A recomputed hit has different bytes than the stored one."""


class ArtifactError(PrepcacheError, code="bad-artifact", status=422, exit_code=15):
    """A file is not a whole, valid artifact (truncated, foreign, or damaged)."""


class DaemonError(PrepcacheError, code="daemon", status=502, exit_code=3):
    """Trouble with the daemon as such."""


class DaemonUnreachable(DaemonError, code="daemon-unreachable", status=503, exit_code=3, is_retryable=True):
    """No daemon answers: absent, hung or killed."""


class ProtocolMismatch(DaemonError, code="protocol-mismatch", status=426, exit_code=16):
    """Client and daemon speak different protocol versions."""


class RequestError(PrepcacheError, code="request", status=400, exit_code=1):
    """The daemon refused a request."""


class BadRequest(RequestError, code="bad-request", status=400, exit_code=2):
    """A malformed request; the message names the field."""


class Unauthorized(RequestError, code="unauthorized", status=401, exit_code=17):
    """No token, or a wrong one."""


class Forbidden(RequestError, code="forbidden", status=403, exit_code=18):
    """The caller is neither the owner nor an admin."""


class NotFound(RequestError, code="not-found", status=404, exit_code=1):
    """There is no such entry, recipe or miss."""


class MethodNotAllowed(RequestError, code="method-not-allowed", status=405, exit_code=31):
    """The endpoint does not have this method; the header `Allow` names its methods."""


class TooLarge(RequestError, code="too-large", status=413, exit_code=19):
    """A body or list is over its limit; a header also, with status 431."""


class LimitExceeded(RequestError, code="limit-exceeded", status=429, exit_code=20, is_retryable=True):
    """A session is over its limit of leases or staged bytes."""


class UnknownSession(RequestError, code="unknown-session", status=410, exit_code=21, is_retryable=True):
    """The session ended (death, deadline, or never opened); open a new one."""


class UnknownRecipe(RequestError, code="unknown-recipe", status=409, exit_code=22):
    """Leases were requested for a recipe that is not registered."""


class LeaseLapsed(RequestError, code="lease-lapsed", status=409, exit_code=23):
    """The lease has lapsed, or its token is wrong: the commit is refused."""


class FutureGeneration(RequestError, code="future-generation", status=409, exit_code=24, is_retryable=True):
    """The client has seen a generation that this index never had (another root, or a rebuilt one)."""


class StagedFileRefused(RequestError, code="staged-file-refused", status=422, exit_code=25):
    """A staged file does not match its announcement (owner, type, links, size, digest, header, items)."""


class Declined(RequestError, code="declined", status=507, exit_code=26):
    """There is no room: the rest is in use or pinned, or the artifact exceeds the budget."""


class StoreError(PrepcacheError, code="store-error", status=500, exit_code=27, is_retryable=True):
    """The store could not tell: an I/O error. Never means absent."""


class RootUnusable(StoreError, code="root-unusable", status=500, exit_code=28, is_retryable=False):
    """The root cannot hold a store (not writable, on a network filesystem, or of another version)."""


class RootInUse(StoreError, code="root-in-use", status=500, exit_code=29, is_retryable=False):
    """Another daemon has the root."""


class IndexCorrupt(StoreError, code="index-corrupt", status=500, exit_code=30, is_retryable=False):
    """The index is damaged; the next start or `prepcached rebuild` rebuilds it from the artifacts."""


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
