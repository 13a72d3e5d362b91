"""Python's parser and compiler, without their warnings: a job has seen them when it loaded what is read here,
and may have made errors of them since."""

from __future__ import annotations

import ast
import warnings
from types import CodeType


def syntax_of(text: bytes | str, name: str = "<unknown>") -> ast.Module:
    """As `ast.parse`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, filename=name)


def code_of(source: ast.Module | bytes | str, name: str, flags: int = 0) -> CodeType:
    """As `compile`, of a module, with none of the caller's `__future__` imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code: CodeType = compile(source, name, "exec", flags, dont_inherit=True)
        return code
