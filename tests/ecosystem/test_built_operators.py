"""Operators that `torch.utils.cpp_extension` builds at run time count by what was built."""

import os
import shutil
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import prepcache
from torch.utils.cpp_extension import load_inline

SOURCE = '''
#include <pybind11/pybind11.h>
int scaled(int x) { return x * FACTOR; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scaled", &scaled); }
'''
operator = load_inline(
    "scaling", [SOURCE.replace("FACTOR", sys.argv[1])], no_implicit_headers=True, build_directory="built"
)
assert "scaling" not in sys.modules

def preprocess(item):
    return operator.scaled(item)

print(preprocess(2), prepcache.recipe(preprocess).digest)
"""


@pytest.mark.nightly
@pytest.mark.timeout(900)  # it compiles
@pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("ninja")), reason="needs g++ and ninja (pip install ninja)"
)
def test_an_edited_source_of_load_inline_is_another_recipe(tmp_path):
    (tmp_path / "built").mkdir()
    (tmp_path / "job.py").write_text(SCRIPT)
    digests = []
    for factor in ("2", "2", "3"):
        done = subprocess.run(
            [sys.executable, "job.py", factor], cwd=tmp_path, env=os.environ, stdout=subprocess.PIPE,
            text=True, check=True,
        )  # fmt: skip
        made, digest = done.stdout.split()
        assert made == str(2 * int(factor))
        digests.append(digest)
    assert digests[0] == digests[1] != digests[2]
