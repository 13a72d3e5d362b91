"""The store: artifacts on disk, their index, and what keeps both true.

layout      where things are under the root (pure)
root        opening a root: checks, the lock, the remembered budget
records     what the store takes and gives
tables      the index's tables; index: its queries and transactions
staging     taking a staged file from a client that is not trusted
holds       who reads what (pure, in memory)
eviction    what fits, and what must go (pure)
removal     rows first, files after: evict, purge, replace
opening     its index found, or made again where it is damaged
recovery    what a crash left: swept or indexed at start; rebuild
merge       many small artifacts into one
integrity   reading everything again, slowly
check       does the index say what the disk holds
reading     what sessions are answered, and hold
registry    recipes: their rows and readable parts
entries     what people see and pin
offline     a root that no daemon has open: rebuild, check
store       the facade that the daemon calls
"""

from __future__ import annotations
