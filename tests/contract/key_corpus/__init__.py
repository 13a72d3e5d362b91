"""The key corpus: small projects, edits of them, and whether each must change the key."""

from . import (
    cases_calm,
    cases_code,
    cases_config,
    cases_data,
    cases_environment,
    cases_idioms,
    cases_reports,
    cases_values,
)
from .case import Case

CASES: list[Case] = [
    *cases_data.CASES,
    *cases_code.CASES,
    *cases_values.CASES,
    *cases_config.CASES,
    *cases_environment.CASES,
    *cases_calm.CASES,
    *cases_idioms.CASES,
    *cases_reports.CASES,
]
