"""What both sides speak: messages, places, explanations. Pure; the daemon imports this, too."""

SORTS = ("used_at", "created_at", "size_bytes", "items", "cost_s")
"""What a listing of entries may be sorted by: members of an entry (inspection.py)."""
