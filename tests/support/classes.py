"""Classes whose objects are keyed: a dataclass, and what stands for OmegaConf's configs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any


@dataclasses.dataclass
class Size:
    width: int
    height: int = 2
    options: dict[str, int] = dataclasses.field(default_factory=dict)


class Container:
    """Stands for the base of OmegaConf's configs."""


class Config(Container, Mapping[str, Any]):
    """Stands for OmegaConf's DictConfig."""

    def __init__(self, **items: Any) -> None:
        self._content = items

    def __getitem__(self, key: str) -> Any:
        return self._content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)


class OmegaConf:
    """Stands for its namesake."""

    @staticmethod
    def to_container(config: Any, *, resolve: bool, throw_on_missing: bool) -> Any:
        return dict(config) if isinstance(config, Mapping) else list(config)


Config.__module__ = Container.__module__ = "omegaconf.dictconfig"
OMEGACONF = ModuleType("omegaconf")
vars(OMEGACONF).update(OmegaConf=OmegaConf)
