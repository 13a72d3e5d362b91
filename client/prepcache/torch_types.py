"""torch's data set classes, which ours derive from; stand-ins for a job where torch is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)
"""What a sample of a data set is."""

if TYPE_CHECKING:
    from torch.utils.data import Dataset as Dataset
    from torch.utils.data import IterableDataset as IterableDataset
else:
    try:
        from torch.utils.data import Dataset, IterableDataset
    except ImportError:  # a job of numpy alone

        class Dataset(Generic[T_co]):
            """Stands for torch's."""

        class IterableDataset(Generic[T_co]):
            """Stands for torch's."""
