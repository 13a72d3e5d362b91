"""What a namedtuple is, to samples and to keys alike. Needs no library: nor does encoding plain values."""


def is_namedtuple(kind: type) -> bool:
    """Whether a class is a namedtuple's."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields") and hasattr(kind, "_make")
