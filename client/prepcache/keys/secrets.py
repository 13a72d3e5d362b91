"""Secrets: which names and values look like one. They count, and parts say only that they are there: by a
digest, a reader of the store could try out guesses."""

from __future__ import annotations

import functools
import os
import re
from functools import lru_cache
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

SECRET = "secret"
"""All that parts say of one, as protocol/explain.py knows."""
SECRET_NAMES = (
    "secret", "password", "passwd", "pwd", "passphrase", "api_key", "apikey", "access_key", "private_key",
    "credential", "auth", "authorization", "bearer", "cookie", "dsn",
)  # fmt: skip
"""A leaf whose name holds one of these, or their plural, or "token", as whole words, numbered or not, is a
secret (`hf_token`, `AWS_SECRET_ACCESS_KEY`, `passwords`, `api_key2`); "tokens" are those of texts."""

_WORDS = re.compile(r"(?:^|_)(?:token|(?:" + "|".join(SECRET_NAMES) + r")s?)\d*(?:$|_)")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_SECRET = re.compile(r"(?:^|_)(?:max|min|num|n|pad|unk|bos|eos|cls|sep|mask|special)_")
_LOOKED_INTO = 64
"""Elements of a container that are looked into for names of secrets."""
_PASSWORD_IN_URL = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
_NAMED = re.compile(r"(?:^|[?&])-*([\w.-]+)=|^-+([\w.-]+)$")
"""Parameters of a URL, and options of a command line: `--hf-token`, `--hf-token=x`, `hub.token=x`."""
_BY_NAME = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)
"""What is shown by its name; what lies in it is code, or has a value of its own."""
_READ_CHARS = 1024
"""Of a text; what is shown of one ends long before."""


@lru_cache(maxsize=16384)
def is_secret(name: str) -> bool:
    """Whether a config name looks like that of a secret; `max_token_length` and `pad_token` do not."""
    words = _CAMEL.sub("_", name).replace("-", "_").lower()
    return _WORDS.search(words) is not None and _NOT_SECRET.search(words) is None


def holds_secret(value: Any, depth: int = 4) -> bool:
    """Whether something in a value has a secret's name (a key, attribute, option, parameter of a URL), or is
    a URL with a password."""
    if isinstance(value, str | bytes):
        text = os.fsdecode(value[:_READ_CHARS])
        names = [name.replace(".", "_") for both in _NAMED.findall(text) for name in both]
        return _PASSWORD_IN_URL.search(text) is not None or any(map(is_secret, names))
    if depth == 0:
        return False
    if type(value) in (list, tuple):
        is_pair = len(value) == 2 and isinstance(value[0], str) and is_secret(value[0])
        return is_pair or any(holds_secret(one, depth - 1) for one in value[:_LOOKED_INTO])
    if isinstance(value, dict):
        named = value
    elif isinstance(value, functools.partial):
        named = {**value.keywords, "": list(value.args)}
    else:
        state = None if isinstance(value, _BY_NAME) else getattr(value, "__dict__", None)
        named = state if isinstance(state, dict) else {}
    return any(
        (isinstance(name, str) and is_secret(name)) or holds_secret(part, depth - 1)
        for name, part in islice(named.items(), _LOOKED_INTO)
    )
