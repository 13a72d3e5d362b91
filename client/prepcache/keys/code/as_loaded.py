"""What modules held when the function's own first call had loaded them.

    K = math.sqrt(4)            # helper.py, which the function imports when it is called

What is computed when a module is loaded cannot be told from what a job has set later; a module that is not
loaded yet has no values to count. So a job's second data set, opened after the first one's function loaded
`helper`, would have another key than in a run in which the first one had nothing to do. What came up in the
first call of a function is what loading gives, and does not count while it is still that.

Invariants:
    1. It is taken for what loading gives only where all that counted then is now as it was: `K` may have been
       computed from it. In a process in which it is otherwise, loading gives something else.
    2. What had come up before the first call is not noted: the job may have set it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

_noted: dict[str, tuple[str, Mapping[str, Any]]] = {}
"""By label: the digest of the value, and all that counted then."""


def note(digests: Mapping[str, str], state: Mapping[str, Any]) -> None:
    """Notes what the first call of a function has brought.

    Args:
        digests: of the values, by label.
        state: all that counted then.
    """
    _noted.update({label: (digest, state) for label, digest in digests.items()})


def digest_of(label: str) -> str | None:
    """The digest that a value had when its module was loaded; None if that is not known."""
    noted = _noted.get(label)
    return None if noted is None else noted[0]


def holds(labels: Collection[str], state: Mapping[str, Any]) -> bool:
    """Whether what counted when these values were loaded is as it was, as far as it counts now.

    Args:
        labels: of values that are as loading gave them.
        state: all else that counts now.
    """
    states = {id(noted): noted for noted in (_noted[label][1] for label in labels)}
    then = ((name, value) for noted in states.values() for name, value in noted.items() if name not in labels)
    return all(state.get(name, value) == value for name, value in then)
