"""All mutants, by what they take away from."""

from __future__ import annotations

from mutations import (
    artifact,
    batches,
    commits,
    editions,
    filling,
    index,
    isolation,
    items,
    jobs,
    lies,
    objects,
    observed,
    reached,
    recipe,
    recovery,
    removals,
    sources,
    streams,
    values,
)
from mutations.mutant import Mutant

MUTANTS: list[Mutant] = [
    *values.MUTANTS,
    *items.MUTANTS,
    *recipe.MUTANTS,
    *observed.MUTANTS,
    *sources.MUTANTS,
    *reached.MUTANTS,
    *objects.MUTANTS,
    *commits.MUTANTS,
    *lies.MUTANTS,
    *index.MUTANTS,
    *isolation.MUTANTS,
    *recovery.MUTANTS,
    *removals.MUTANTS,
    *filling.MUTANTS,
    *jobs.MUTANTS,
    *artifact.MUTANTS,
    *editions.MUTANTS,
    *batches.MUTANTS,
    *streams.MUTANTS,
]

__all__ = ["MUTANTS", "Mutant"]
