"""Proxies, which pass for what they wrap: by class, what they wrap, and state of their own."""

from __future__ import annotations

import pytest

from support.projects import Project, project_fixture  # noqa: F401

PROXY = '''
class Proxy:
    """As wrapt's: class, attributes and `__dict__` are those of what it wraps; it cannot be pickled."""
    __slots__ = ("__wrapped__", "_self_wrapper", "__weakref__")
    def __init__(self, wrapped, wrapper=None):
        object.__setattr__(self, "__wrapped__", wrapped)
        object.__setattr__(self, "_self_wrapper", wrapper)
    @property
    def __class__(self): return self.__wrapped__.__class__
    @property
    def __dict__(self): return self.__wrapped__.__dict__
    def __getattr__(self, name): return getattr(self.__wrapped__, name)
    def __call__(self, *args): return self._self_wrapper(self.__wrapped__, *args)
    def __reduce__(self): raise NotImplementedError("a proxy must define __reduce__()")
    def __reduce_ex__(self, protocol): raise NotImplementedError("a proxy must define __reduce__()")

class Noting(Proxy):
    def __init__(self, wrapped, note):
        super().__init__(wrapped)
        object.__setattr__(self, "_self_note", note)

def decorator(wrapper):
    return lambda wrapped: Proxy(wrapped, wrapper)
'''
HEAD = "import proxy as P\ndef w(wrapped, x): return wrapped(x)\n"

ROWS = {
    "what it wraps": ("HELD = P.Proxy({'n': $})\ndef f(x): return HELD['n']", "1", "2"),
    "a slot of its own": ("HELD = P.Proxy([], $)\ndef f(x): return HELD._self_wrapper", "1", "2"),
    "state of its own": ("HELD = P.Noting([], $)\ndef f(x): return HELD._self_note", "1", "2"),
    "a function that is wrapped": ("@P.decorator(w)\ndef g(x): return $\ndef f(x): return g(x)", "1", "2"),
    "the function that wraps": (
        "@P.decorator(lambda wrapped, x: $)\ndef g(x): return x\ndef f(x): return g(x)",
        "1",
        "2",
    ),
    "preprocess itself": ("@P.decorator(w)\ndef f(x): return $", "1", "2"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_proxy_counts_by_what_it_wraps_and_its_state(project: Project, name: str) -> None:
    text, one, other = ROWS[name]

    def digest(expression: str) -> str:
        project.write(proxy=PROXY, prep=HEAD + text.replace("$", expression))
        return project.digest(code="function")

    before = digest(one)
    assert digest(one) == before
    assert digest(other) != before
