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

ALBUMENTATIONS = '''
import random
import numpy as np

class BasicTransform:
    """As albumentations: every transform holds generators, seeded or not."""
    def __init__(self, p=0.5):
        self.p = p
        names = {"image", "mask", "boxes", "volume", "points"}  # a set: another order in each process
        self._key2func = {name: self.apply for name in names}
        self.seed = None
        self.random_generator = np.random.default_rng(self.seed)
        self.py_random = random.Random(self.seed)
    def apply(self, image):
        return image

class Resize(BasicTransform):
    def __init__(self, height, p=1):
        super().__init__(p)
        self.height = height

class Compose:
    def __init__(self, transforms, seed=None):
        self.transforms, self.seed = transforms, seed
        self.random_generator = np.random.default_rng(seed)
        self.py_random = random.Random(seed)
'''
OMEGACONF = """
class OmegaConf:
    @staticmethod
    def to_container(config, *, resolve, throw_on_missing): return config._content

class Container: pass

class DictConfig(Container):
    '''As OmegaConf: values in nodes, with parents, flags and caches beside them.'''
    def __init__(self, content):
        self._content, self._parent, self._flags_cache = content, self, (n for n in ())
"""
VALUES = {
    "albumentations": ("import albumentations as A", "A.Compose([A.Resize({})])", ("4", "5")),
    "albumentations seed": ("import albumentations as A", "A.Compose([A.Resize(1)], seed={})", ("1", "2")),
    "config library": ("import omegaconf", "omegaconf.DictConfig({{'size': {}, 'name': 'a'}})", ("1", "2")),
}
PLACES = {
    "preprocess": "{head}\nVALUE = {value}\nclass F:\n    def __init__(self): self.held = VALUE\n"
    "    def __call__(self, x): return self.held\nf = F()\n",
    "default": "{head}\ndef f(x, held={value}):\n    return held\n",
    "config": "{head}\nVALUE = {value}\ndef f(x, held):\n    return held\n",
}


@pytest.fixture
def libraries(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Look-alikes where libraries lie."""
    project.put("site-packages/albumentations.py", ALBUMENTATIONS)
    project.put("site-packages/omegaconf.py", OMEGACONF)
    monkeypatch.syspath_prepend(project.folder / "site-packages")
    return project


def key(project: Project, place: str, name: str, choice: int) -> str:
    head, value, choices = VALUES[name]
    project.write(prep=PLACES[place].format(head=head, value=value.format(choices[choice])))
    module = project.load()
    config = {"held": module.VALUE} if place == "config" else {}
    return recipe(module.f, config=config, code="function").digest


@pytest.mark.parametrize("name", VALUES)
def test_a_transform_counts_by_its_class_and_parameters(libraries: Project, name: str) -> None:
    for place in PLACES:
        one, again, other = (key(libraries, place, name, choice) for choice in (0, 0, 1))
        assert one == again, place
        assert one != other, place


def test_a_table_of_own_methods_has_no_order_that_counts(libraries: Project) -> None:
    head, value, choices = VALUES["albumentations"]
    libraries.write(prep=PLACES["default"].format(head=head, value=value.format(choices[0])))
    command = [sys.executable, "-c", "import prep, prepcache; print(prepcache.recipe(prep.f).digest)"]
    told = set()
    for seed in "12":
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "site-packages"}
        told.add(subprocess.run(command, cwd=libraries.folder, env=env, stdout=-1, check=True).stdout)
    assert len(told) == 1
