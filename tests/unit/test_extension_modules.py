"""Machine code: extension modules of a project and libraries of `ctypes` count by the bytes of their files,
and one that was built again after it was loaded is refused."""

import functools
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from prepcache.errors import UnkeyableError
from support.observing import Watched
from support.projects import Project, project_fixture  # noqa: F401

SOURCE_IN_C = """
#include <Python.h>
static PyObject *g(PyObject *self, PyObject *args) {{ return PyLong_FromLong({}); }}
static PyMethodDef owned[] = {{{{"owned", g, METH_VARARGS, ""}}, {{NULL, NULL, 0, NULL}}}};
static PyMethodDef methods[] = {{{{"g", g, METH_VARARGS, ""}}, {{NULL, NULL, 0, NULL}}}};
static PyType_Slot slots[] = {{{{0, NULL}}}};
#define FLAGS Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE
static PyType_Spec spec = {{"fastc.Op", sizeof(PyObject), 0, FLAGS, slots}};
static PyType_Spec within = {{"fastc.ops.Op", sizeof(PyObject), 0, FLAGS, slots}};
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "fastc", NULL, -1, methods}};
PyMODINIT_FUNC PyInit_fastc(void) {{
    PyObject *made = PyModule_Create(&module), *op = PyType_FromSpec(&spec);
    PyObject *method = PyInstanceMethod_New(PyObject_GetAttrString(made, "g"));
    PyObject_SetAttrString(op, "table", PyCapsule_New(&module, NULL, NULL));
    PyObject_SetAttrString(op, "method", method);
    PyObject_SetAttrString(op, "nameless", PyCFunction_New(methods, method));
    PyObject_SetAttrString(op, "asked", PyObject_CallFunction((PyObject *)&PyProperty_Type, "O", method));
    PyObject *capsule = PyCapsule_New(&module, NULL, NULL), *name = PyModule_GetNameObject(made);
    PyObject_SetAttrString(made, "owned", PyCFunction_NewEx(owned, capsule, name));
    PyObject *inner = PyType_FromSpec(&within);
    PyObject_SetAttrString(inner, "method", method);
    PyModule_AddObject(made, "Op", op);
    PyObject *ops = PyImport_AddModule("fastc.ops");
    PyModule_AddFunctions(ops, methods);
    PyObject_SetAttrString(made, "ops", ops);
    PyObject_SetAttrString(ops, "Op", inner);
    return made;
}}
"""


@functools.cache
def _machine_code(number: int) -> bytes:
    """The extension module `fastc`; without a compiler the test is skipped."""
    compiler = shutil.which("cc")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if compiler is None or not header.exists():
        pytest.skip("needs a C compiler and Python's headers")
    with TemporaryDirectory() as folder:
        source = Path(folder, "fastc.c")
        source.write_text(SOURCE_IN_C.format(number))
        target = source.with_suffix(".so")
        command = [compiler, "-shared", "-fPIC", "-O1", f"-I{header.parent}", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        return target.read_bytes()


def _compiled(project: Project, number: int, folder: Path | None = None) -> Path:
    """Puts the extension module `fastc` into the project or another folder."""
    target = (folder or project.folder) / f"fastc{sysconfig.get_config_var('EXT_SUFFIX')}"
    target.unlink(missing_ok=True)
    target.write_bytes(_machine_code(number))
    return target


def _digests_elsewhere(project: Project, first: str = "", names: Iterable[str] = ("prep",)) -> list[str]:
    """The digest of `f` in modules, in a process of its own, where an extension module is loaded anew."""
    ask = f"import importlib, sys; sys.path.insert(0, {str(project.folder)!r})\n{first}\n"
    ask += f"from prepcache.keys.recipes import recipe\nfor name in {[*names]!r}:\n"
    ask += "    print(recipe(importlib.import_module(name).f, code='function').digest)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout.split()


UNREGISTERED = """
import importlib.util, pathlib, sys
file, = pathlib.Path(__file__).parent.glob("fastc*.so")
spec = importlib.util.spec_from_file_location("fastc", file)
fastc = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fastc)
sys.modules.pop("fastc", None)  # where the module has put itself; those of pybind11 3 do not
"""
USES = [
    "import fastc\ndef f(x): return fastc.g()",
    "from fastc import g\ndef f(x): return g()",
    "def f(x):\n    import fastc\n    return fastc.g()",
    "import fastc\ndef f(x): return fastc.Op()",
    "import fastc\nop = fastc.Op()\ndef f(x): return op",
    "from fastc import owned\ndef f(x): return owned()",
    "from fastc.ops import g\ndef f(x): return g()",
    "from fastc import ops\ndef f(x): return ops.g()",
    "from fastc.ops import Op\ndef f(x): return Op()",
    "from fastc import Op\nclass Mine(Op): pass\ndef f(x): return Mine()",
]
UNREGISTERED_USES = [
    f"{UNREGISTERED}\ndef f(x): return {text}"
    for text in ("fastc.g()", "fastc.owned()", "fastc.Op()", "g()\ng = fastc.g", "fastc.ops.Op()")
]


@pytest.mark.parametrize("uses", [USES, UNREGISTERED_USES], ids=["", "not in sys.modules"])
def test_an_extension_module_of_the_project_counts_by_its_bytes(project, uses):
    """Those that `torch.utils.cpp_extension` builds and loads are not in `sys.modules`."""
    project.write(**{f"prep{number}": text for number, text in enumerate(uses)})
    names = [f"prep{number}" for number in range(len(uses))]
    first, other, again = (
        [_compiled(project, number), _digests_elsewhere(project, names=names)][1] for number in (1, 2, 1)
    )
    assert first == again
    assert not {*first} & {*other}


ANEW = {
    "unlinked": "raw = built.read_bytes(); built.unlink(); built.write_bytes(raw)",
    "kept under another name": "raw = built.read_bytes(); built.rename(built.with_name('kept')); "
    "built.write_bytes(raw)",
    "moved, then unlinked": "raw = built.read_bytes(); aside = built.parent / '~'; "
    "aside.mkdir(exist_ok=True); moved = built.rename(aside / built.name); built.write_bytes(raw); "
    "moved.unlink()",
    "behind a link": "other = built.resolve().with_suffix('.2.so'); other.write_bytes(built.read_bytes()); "
    "built.unlink(); built.symlink_to(other)",
}


def _refusal(project: Project, before: str) -> str:
    """What a process says that cannot be keyed."""
    with pytest.raises(subprocess.CalledProcessError) as raised:
        _digests_elsewhere(project, before)
    return str(raised.value.stderr)


@pytest.mark.parametrize("how", ANEW)
def test_one_built_again_after_it_was_loaded_is_refused(project, how):
    project.write(prep="import fastc\ndef f(x): return fastc.g()")
    built = _compiled(project, 1)
    if how == "behind a link":
        built.symlink_to(built.rename(project.folder / "built.so"))
    told = _refusal(project, f"import fastc, pathlib; built = pathlib.Path(fastc.__file__); {ANEW[how]}")
    assert "was rebuilt after this process had loaded it" in told and "restart the kernel" in told


def test_a_library_of_ctypes_that_is_held_is_refused_by_name(project):
    project.write(prep="import ctypes\nLIBRARY = ctypes.CDLL(None)\ndef f(x): return LIBRARY.abs(x)")
    with pytest.raises(UnkeyableError, match=r"prep\.LIBRARY: .*load the library in the function"):
        project.recipe()


def test_a_library_of_ctypes_that_a_function_loads_is_an_input(project):
    built = _compiled(project, 1)
    watched = Watched(project, f"import ctypes\ndef f(x): return bool(ctypes.CDLL(f'{{HERE}}/{built.name}'))")
    assert watched.changed() is None
    _compiled(project, 2)
    assert watched.changed() == f"project:{built.name}"


def test_an_installed_one_that_was_installed_again_is_refused(project, tmp_path):
    project.write(prep="import fastc\ndef f(x): return fastc.g()")
    site = tmp_path / "site-packages"
    info = site / "fastc-1.dist-info"
    info.mkdir(parents=True)
    built = _compiled(project, 1, site)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fastc\nVersion: 1\n")
    (info / "RECORD").write_text(f"{built.name},sha256=a,1\n")
    search = f"import os, pathlib, sys; sys.path.insert(0, {str(site)!r})\nimport fastc\n"
    again = f"built = pathlib.Path(fastc.__file__); {ANEW['unlinked']}\nos.mkdir({str(info)!r} + '/x')\n"
    assert len(_digests_elsewhere(project, search)) > 0
    assert "fastc was reinstalled" in _refusal(project, search + again)
