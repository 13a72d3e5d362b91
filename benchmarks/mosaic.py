"""`streaming` (Mosaic MDS), beside the CPU build of torch.

It imports torchvision, for data sets of its own that nobody uses here; torchvision has no build for that
torch. Where it is missing, empty modules with the names that are imported stand in for it.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

STAND_INS = {
    "torchvision": (),
    "torchvision.datasets": ("VisionDataset",),
    "torchvision.transforms": (),
    "torchvision.transforms.functional": ("to_tensor",),
}


def _stand_in() -> None:
    for name, members in STAND_INS.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        for member in members:
            setattr(module, member, type(member, (), {}))
        sys.modules[name] = module


if importlib.util.find_spec("torchvision") is None:
    _stand_in()

import streaming  # noqa: E402

__all__ = ["streaming"]
