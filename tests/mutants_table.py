"""All mutants, by what they take away from."""

from __future__ import annotations

from mutations import (
    artifact,
    code,
    commits,
    editions,
    filling,
    index,
    items,
    observed,
    recipe,
    removals,
    values,
)
from mutations.mutant import Mutant

MUTANTS: list[Mutant] = [
    *values.MUTANTS,
    *items.MUTANTS,
    *recipe.MUTANTS,
    *observed.MUTANTS,
    *code.MUTANTS,
    *commits.MUTANTS,
    *index.MUTANTS,
    *removals.MUTANTS,
    *filling.MUTANTS,
    *artifact.MUTANTS,
    *editions.MUTANTS,
]

__all__ = ["MUTANTS", "Mutant"]
