"""`python -m prepcached`: the `prepcached` command."""

from __future__ import annotations

from prepcached.cli import main

main()
