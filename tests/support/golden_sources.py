"""Golden recipes: the project that is keyed, and the distributions that are installed beside it.

What is pinned here does not depend on bytecode, so that the digests outlive minor versions of Python.
"""

SOURCES = {
    "golden_prep.py": """
        import functools
        import golden_helper
        from golden_helper import Scale

        SIZE = 3
        TABLE = {"b": 1, "a": [1.5, None, True, "text", b"bytes"]}
        SCALE = Scale(2)

        def plain(x):
            return x

        def reaching(x, n=1, *, k="key"):
            \"\"\"Reads globals, a helper, an object and the environment.\"\"\"
            import os
            assert n
            return golden_helper.scaled(x, SIZE), TABLE, SCALE(x), os.environ.get("GOLDEN_VARIABLE")

        def make(n):
            return lambda x: x * n

        closed = make(4)
        bound = functools.partial(reaching, n=2)
    """,
    "golden_helper.py": """
        FACTOR = 10

        class Scale:
            base = 1

            def __init__(self, n):
                self.n = n

            def __call__(self, x):
                return x * self.n + self.base

        def scaled(x, n):
            return x * FACTOR * n
    """,
    "golden_walk.py": """
        import functools
        import logging
        import math
        import operator
        import pathlib
        import re
        import struct
        import types

        import golden_helper

        class Meta(type):
            level = 1

        class Base:
            limit = 4

            @property
            def size(self):
                return self.limit

            @size.setter
            def size(self, value):
                self.limit = value

            @staticmethod
            def free(x: "int") -> float:
                return x

            @classmethod
            def made(cls):
                return cls()

        class Slotted(Base, metaclass=Meta):
            __slots__ = ("a", "__b")

            def __init__(self):
                self.a, self.__b = [1], {"k": None}

        class Chosen:
            def __getstate__(self):
                return {"b": 2, "a": 1}

        class Reduced:
            def __reduce__(self):
                return dict, (), None, [1], [("k", 2)]

        class Node:
            def __init__(self, up):
                self.up, self.down = up, []

        root = Node(None)
        root.down.append(Node(root))
        args = types.SimpleNamespace(size=1, unread=2)
        here = pathlib.Path(__file__).parent
        objects = [
            Slotted(), Chosen(), Reduced(), root, root.down[0].down.append, here / "golden_helper.py",
            str(here / "golden_helper.py"), here / "absent", re.compile("a+", re.I), struct.Struct("<i"),
            logging.getLogger("golden"), operator.itemgetter(1, "a"), math.sqrt, str.lower, golden_helper,
            functools.lru_cache(golden_helper.scaled), functools.cached_property(golden_helper.scaled),
            functools.partialmethod(golden_helper.scaled, 1, n=2), property(golden_helper.scaled),
            Base.made, Base().made,
        ]

        def helper(x, *rest, key=None, **more):
            '''Read by what is keyed.'''
            return x

        helper.mark = (1, 2)

        def outer():
            def inner(x):
                return empty, x, outer

            if False:
                empty = 1
            return inner

        def walked(x, again=helper, *, by=operator.add):
            import golden_lazy
            from golden_lazy import LIMIT

            return (
                objects, args.size, helper.__doc__, Slotted, Base.__subclasses__(), absent, outer(),
                golden_lazy.step(x), LIMIT, golden_helper.Scale,
            )
    """,
    "golden_lazy.py": """
        import os

        LIMIT = 5

        def step(x):
            return os.environ.get("GOLDEN_VARIABLE", LIMIT)
    """,
    "golden_syntax.py": """
        import a.b as c, d
        from . import e
        from ..f import g as h, i
        from j import *
        import importlib

        if len("a"):
            import conditional
        if TYPE_CHECKING:
            import only_for_types

        def by_text(name):
            return globals()[name]

        def by_module(name):
            return sys.modules[name]

        LITERAL: dict = {"a": [1, -2.5, None, ...], "b": (b"x", {1, 2})}
        COMPUTED = len(LITERAL)

        def decorated(one, /, two: "A.B" = 1, *three, four=2, **five) -> C.D:
            assert one, "text"
            global COMPUTED
            m = importlib.import_module(".k", __package__)
            n = [x for x in y if x] if one else {**five, "z": not two}
            return m.o(*three, key=n)[1:2, ::3]

        @decorated
        @c.wrapped(1, key="x")
        async def waiting(x: "list[E]"):
            '''Text.'''
            async with x as y, z:
                await y
                y = [w async for w in x]
            try:
                yield (lambda a, *, b=3: a @ b)
            except* (ValueError, TypeError) as error:
                raise KeyError from error
            else:
                del x.y
            finally:
                pass

        class Typed(Base[int], metaclass=Meta, flag=True):
            '''Text of a class.'''
            field: "Inner" = other.thing
            import os
            variable = os.environ["GOLDEN_ONE"], os.getenv(NAME), "GOLDEN_TWO" in os.environ

            class Inner:
                value = 1

            def method(self):
                nonlocal_ = [w := 1, f"{self!r:>{w}}", 1j, ~w, w ** -1, w // 2, w <= 3 != None]
                while w and not nonlocal_ or globals():
                    match w:
                        case {"a": [1, *_], **rest} if rest:
                            break
                        case Typed(value=None):
                            break
                        case _:
                            continue
                for w in sys.modules:
                    w += 1
                return __debug__
    """,
}

SITE = {
    "one_two-1.0.dist-info/METADATA": "Name: One_Two\nVersion: 1.0\nRequires-Dist: Three.Four (>=1)\n"
    "Requires-Dist: five ; extra == 'all'\n",
    "one_two-1.0.dist-info/RECORD": "one/__init__.py,sha256=b,1\none/a.py,sha256=a,1\n"
    "one_two-1.0.dist-info/RECORD,,\none_two-1.0.dist-info/INSTALLER,sha256=i,4\none/__pycache__/a.pyc,,\n../../bin/one,sha256=c,1\n",
    "three_four-2.dist-info/METADATA": "Name: three-four\nVersion: 2\n",
    "three_four-2.dist-info/top_level.txt": "three\n",
    "three/__init__.py": "A = 1\n",
    "three/data.txt": "not code",
    "three/b.py": "B = 2\n",
    "six-4.dist-info/METADATA": "Name: six\nVersion: 4\n",
    "six-4.dist-info/RECORD": "_six.pth,sha256=s,1\n",
    "six-4.dist-info/direct_url.json": '{"url": "file://$/source", "dir_info": {"editable": true}}',
    "source/six.py": "SIX = 6\n",
    "five-3.dist-info/METADATA": "Name: five\nVersion: 3\n",
    "five-3.dist-info/RECORD": "five.py,sha256=f,1\n",
}
"""A folder of installed distributions: one by its RECORD, that needs one without, and others aside;
`$` stands for the folder."""
