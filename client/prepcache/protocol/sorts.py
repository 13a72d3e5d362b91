"""What a listing of entries may be sorted by; apart from the messages, which take a while to import."""

SORTS = ("used_at", "created_at", "size_bytes", "items", "cost_s")
"""Members of an entry (inspection.py)."""
