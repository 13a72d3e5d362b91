"""Transforms that people really use are keyable, as preprocess, as a global and as config.

The large libraries are not installed here: look-alikes with their shape stand in for them.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

TORCHVISION = '''
import enum, torch
from torch import nn

class InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    BILINEAR = "bilinear"

class Transform(nn.Module):
    """As torchvision.transforms.v2: a module whose parameters are plain attributes."""
    def forward(self, x):
        return self.transform(x, self.make_params([x]))
    def make_params(self, inputs):
        return {}

class Resize(Transform):
    def __init__(self, size, interpolation=InterpolationMode.BILINEAR, antialias=True):
        super().__init__()
        self.size, self.interpolation, self.antialias = [size, size], interpolation, antialias
    def transform(self, x, params):
        return x[..., : self.size[0], : self.size[1]]

class ToDtype(Transform):
    def __init__(self, dtype, scale=False):
        super().__init__()
        self.dtype, self.scale = dtype, scale
    def transform(self, x, params):
        return x.to(self.dtype)

class Normalize(Transform):
    def __init__(self, mean, std):
        super().__init__()
        self.mean, self.std = list(mean), list(std)
    def transform(self, x, params):
        return (x - self.mean[0]) / self.std[0]

class RandomHorizontalFlip(Transform):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p
    def make_params(self, inputs):
        return {"flip": bool(torch.rand(1) < self.p)}
    def transform(self, x, params):
        return x.flip(-1) if params["flip"] else x

class Compose(Transform):
    def __init__(self, transforms):
        super().__init__()
        self.transforms = transforms
    def forward(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x
'''
ALBUMENTATIONS = '''
import random
import numpy as np

class BasicTransform:
    """As albumentations: every transform holds generators, seeded or not."""
    def __init__(self, p=0.5):
        self.p = p
        self.params, self.processors = {}, {}
        names = {"image", "mask", "boxes", "volume", "points"}  # a set: another order in each process
        self._key2func = {name: self.apply for name in names}
        self.seed = None
        self.random_generator = np.random.default_rng(self.seed)
        self.py_random = random.Random(self.seed)
    def should_apply(self):
        return self.p >= 1.0 or self.py_random.random() < self.p
    def __call__(self, image):
        return self.apply(image) if self.should_apply() else image
    def apply(self, image):
        return image

class Resize(BasicTransform):
    def __init__(self, height, width, interpolation=1, p=1):
        super().__init__(p)
        self.height, self.width, self.interpolation = height, width, interpolation
    def apply(self, image):
        return image[: self.height, : self.width]

class GaussNoise(BasicTransform):
    def __init__(self, std=0.1, p=1):
        super().__init__(p)
        self.std = std
    def apply(self, image):
        return image + self.random_generator.normal(0, self.std, image.shape)

class HorizontalFlip(BasicTransform):
    def apply(self, image):
        return image[:, ::-1]

class Compose:
    def __init__(self, transforms, bbox_params=None, p=1.0, seed=None):
        self.transforms, self.processors, self.p = transforms, {}, p
        self.set_random_seed(seed)
    def set_random_seed(self, seed):
        self.seed = seed
        self.random_generator = np.random.default_rng(seed)
        self.py_random = random.Random(seed)
        for transform in self.transforms:
            transform.random_generator, transform.py_random = self.random_generator, self.py_random
    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image
'''

VALUES = {
    "torchvision Compose": (
        "import torch, vision as T",
        "T.Compose([T.Resize({}), T.ToDtype(torch.float32, scale=True), T.Normalize([0.5], [0.2])])",
        ("224", "256"),
    ),
    "torchvision enum": (
        "import vision as T",
        "T.Resize(8, T.InterpolationMode.{})",
        ("NEAREST", "BILINEAR"),
    ),
    "torchvision dtype": ("import torch, vision as T", "T.ToDtype(torch.{})", ("float32", "float16")),
    "torchvision class": ("import vision as T", "T.Compose([T.{}(4)])", ("Resize", "RandomHorizontalFlip")),
    "nested Compose": ("import vision as T", "T.Compose([T.Compose([T.Resize({})])])", ("1", "2")),
    "albumentations Compose": (
        "import albumentations as A",
        "A.Compose([A.Resize({}, 8), A.HorizontalFlip(p=0.5)])",
        ("4", "5"),
    ),
    "albumentations probability": ("import albumentations as A", "A.HorizontalFlip(p={})", ("0.5", "0.6")),
    "albumentations seed": ("import albumentations as A", "A.Compose([A.Resize(1, 1)], seed={})", ("1", "2")),
    "a list in a class": (
        "class Chain:\n    def __init__(self, *steps): self.steps = list(steps)\n"
        "    def __call__(self, x):\n        for step in self.steps: x = step(x)\n        return x",
        "Chain(str.lower, str.{})",
        ("strip", "upper"),
    ),
    "mapping of a config library": (
        "import omegaconf\nclass Use:\n    def __init__(self, cfg): self.cfg = cfg\n"
        "    def __call__(self, x): return x[: self.cfg['size']]",
        "Use(omegaconf.DictConfig({{'size': {}, 'name': 'a'}}))",
        ("1", "2"),
    ),
}
OMEGACONF = """
import collections.abc, threading

class OmegaConf:
    @staticmethod
    def to_container(config, *, resolve, throw_on_missing): return dict(config)

class Container: pass

class DictConfig(Container, collections.abc.MutableMapping):
    '''As OmegaConf: values in nodes, with parents, flags and caches beside them.'''
    def __init__(self, content):
        self.__dict__["_content"] = dict(content)
        self.__dict__["_parent"] = self
        self.__dict__["_flags_cache"] = threading.Lock()
    def __getitem__(self, key): return self._content[key]
    def __setitem__(self, key, value): self._content[key] = value
    def __delitem__(self, key): del self._content[key]
    def __iter__(self): return iter(self._content)
    def __len__(self): return len(self._content)
"""
PLACES = {
    "preprocess": "{head}\nf = {value}\n",
    "global": "{head}\nTRANSFORM = {value}\ndef f(x):\n    return TRANSFORM(x)\n",
    "default": "{head}\ndef f(x, transform={value}):\n    return transform(x)\n",
    "config": "{head}\nTRANSFORM = {value}\ndef f(x, transform):\n    return transform(x)\n",
}


@pytest.fixture
def libraries(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Look-alikes: one beside the project's modules, those that have an adapter where libraries lie."""
    project.write(vision=TORCHVISION)
    project.put("site-packages/albumentations.py", ALBUMENTATIONS)
    project.put("site-packages/omegaconf.py", OMEGACONF)
    monkeypatch.syspath_prepend(project.folder / "site-packages")
    return project


def key(project: Project, place: str, name: str, choice: int, code: str = "function") -> str:
    head, value, choices = VALUES[name]
    project.write(prep=PLACES[place].format(head=head, value=value.format(choices[choice])))
    if place != "config":
        return project.digest(code=code)
    module = project.load()
    return recipe(module.f, config={"transform": module.TRANSFORM}, code=code).digest


@pytest.mark.parametrize("name", VALUES)
def test_a_transform_counts_by_its_class_and_parameters(libraries: Project, name: str) -> None:
    for place in PLACES:
        one, again, other = (key(libraries, place, name, choice) for choice in (0, 0, 1))
        assert one == again, place
        assert one != other, place


def test_a_table_of_own_methods_has_no_order_that_counts(libraries: Project) -> None:
    head, value, choices = VALUES["albumentations Compose"]
    libraries.write(prep=PLACES["global"].format(head=head, value=value.format(choices[0])))
    command = [sys.executable, "-c", "import prep, prepcache; print(prepcache.recipe(prep.f).digest)"]
    told = {
        subprocess.run(
            command,
            cwd=libraries.folder,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "site-packages"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert len(told) == 1


def test_the_code_of_a_transform_counts_wherever_it_stands(libraries: Project) -> None:
    """A Compose in the config, made of project classes: an edit of a class is an edit of the recipe."""
    before = key(libraries, "config", "torchvision Compose", 0)
    libraries.write(vision=TORCHVISION.replace("x[..., : self.size[0]", "x[..., 1 : self.size[0]"))
    assert key(libraries, "config", "torchvision Compose", 0) != before
    libraries.write(vision=TORCHVISION.replace('"flip": bool(', '"flop": bool('))
    assert key(libraries, "config", "torchvision Compose", 0) == before, "a class that it does not use"
