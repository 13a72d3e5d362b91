"""Values: every type and part in the canonical encoding."""
# ruff: noqa: E501

from __future__ import annotations

from mutations.mutant import mutants

PLAIN = "tests/unit/test_canonical.py tests/unit/test_canonical_distinct.py"
LIBRARIES = "tests/unit/test_canonical_libraries.py"
GOLDEN = "tests/golden/test_canonical_vectors.py"
CONFIG = "tests/unit/test_recipe.py -k 'config or directory'"

MUTANTS = [
    *mutants(
        "canonical.py",
        PLAIN,
        {
            "the version constant": ("ENCODING_VERSION = 1", "ENCODING_VERSION = 2", GOLDEN),
            "the version byte": ("[bytes([ENCODING_VERSION])]", "[b'']", GOLDEN),
            "str and path of one file": (
                'b"S" if isinstance(value, str) else b"p"',
                'b"p"',
                CONFIG,
            ),
            "the length of a path's payload": ("        put(length(len(payload)))", "        pass"),
            "the class's module": (
                'f"{cls.__module__}.{cls.__qualname__}".encode()',
                "cls.__qualname__.encode()",
            ),
            "the class of a registered type": (
                'put(b"k")\n        encoder.put_class_of(value, put)',
                'put(b"k")',
            ),
            "what a key function made": ("encoder.walk(key, put)", "pass"),
            "key functions of base classes": ("for base in kind.__mro__:", "for base in (kind,):"),
            "__prepcache_key__": ('callable(getattr(kind, "__prepcache_key__", None))', "False"),
            "refusal of what contains itself": ("if id(value) in self._active:", "if False:"),
            "marks inside objects": ("if self.opaque_depth:", "if False:"),
            "the order that the function receives": ("value = {key: value[key] for key in keys}", "pass"),
        },
    ),
    *mutants(
        "builtin_types.py",
        "tests/unit/test_module_places.py",
        {
            "a path that raises": (
                'raise encoder.refuse(f"its path raised',
                'raise TypeError(f"its path raised',
            ),
        },
    ),
    *mutants(
        "builtin_types.py",
        PLAIN,
        {
            "None": ('    put(b"n")', '    put(b"F")'),
            "True": ('put(b"T" if value else b"F")', 'put(b"T")'),
            "the type of a bool": ("bool: _bool,", "bool: _int,"),
            "the sign of a long int": ("raw = value.to_bytes(", "raw = abs(value).to_bytes("),
            "the length of a long int": ('return b"I" + length(len(raw)) + raw', 'return b"I" + raw'),
            "one NaN": (
                'return _FLOAT(b"f", value) if value == value else _NAN',
                'return _FLOAT(b"f", value)',
            ),
            "the sign of zero": ('return _FLOAT(b"f", value) if', 'return _FLOAT(b"f", value + 0.0) if'),
            "the imaginary part": (
                'put(b"c" + float_bytes(value.real) + float_bytes(value.imag))',
                'put(b"c" + float_bytes(value.real))',
            ),
            "the length of a str": ('return b"s" + length(len(raw)) + raw', 'return b"s" + raw'),
            "normalisation of text": (
                'raw = value.encode("utf-8", "surrogatepass")\n    return b"s"',
                'raw = __import__("unicodedata").normalize("NFC", value).encode("utf-8")\n    return b"s"',
            ),
            "the length of bytes": ('put(b"b" + length(len(value)))', 'put(b"b")'),
            "the type of bytes": ('put(b"b" + length(len(value)))', 'put(b"s" + length(len(value)))'),
            "the count of a sequence": ("put(tag + length(len(value)))", "put(tag)"),
            "list and tuple": (
                'put_elements(encoder, b"t", value, put)',
                'put_elements(encoder, b"l", value, put)',
            ),
            "the order of a long list": (
                'map(_INT, repeat(b"i"), value)',
                'map(_INT, repeat(b"i"), sorted(value))',
            ),
            "one NaN in a long list": (
                "if kinds == {float} and not any(map(math.isnan, value)):",
                "if kinds == {float}:",
            ),
            "registered types in a long list": ("if any(map(is_registered, kinds)):", "if False:"),
            "the free order of a dict": ("for k in sorted(value, key=simple_key)]", "for k in value]"),
            "the order of a dict in an object": (
                "if encoder.opaque_depth == 0 and has_free_order(value):",
                "if has_free_order(value):",
            ),
            "the order of a dict with odd keys": (
                "if encoder.opaque_depth == 0 and has_free_order(value):",
                "if encoder.opaque_depth == 0:",
            ),
            "the order of an OrderedDict": ("OrderedDict: _ordered_dict,", "OrderedDict: _dict,"),
            "the keys of a dict": ("            put(text_bytes(key))", "            pass"),
            "the values of a dict": (
                "        walk(value, put)\n    steps.pop()\n\n\ndef _set",
                "    steps.pop()\n\n\ndef _set",
            ),
            "the count of a dict": ('put(b"d" + length(len(value)))', 'put(b"d")'),
            "the order of a set": ("for raw in sorted([encoder.part", "for raw in list([encoder.part"),
            "set and frozenset": ('b"e" if type(value) is set else b"z"', 'b"e"'),
            "the count of a set": ('else b"z") + length(len(value)))', 'else b"z"))'),
            "the names of types made of parts": (
                'raw = b"x" + length(len(name)) + name.encode()',
                'raw = b"x"',
            ),
            "the type of a buffer": (
                'f"{type(value).__name__} {view.format} {view.shape}"',
                'f"{view.format} {view.shape}"',
            ),
            "the format of a buffer": ("{view.format} {view.shape}", "{view.shape}"),
            "the shape of a buffer": ("{view.format} {view.shape}", "{view.format}"),
            "the bytes of a buffer": ("    put(raw)\n\n\ndef _regex", "\n\ndef _regex"),
            "the flags of a regex": (', ("flags", int(value.flags))]', "]"),
            "whether a regex is of text": ('("is_text", isinstance(text, str)), ', ""),
            "the name of a timezone": (', ("name", value.tzname(None).encode())]', "]"),
            "the offset of a timezone": ('("offset", value.utcoffset(None)), ', ""),
            "the fold of a time": ('"fold", ', ""),
            "the timezone of a time": (', "tzinfo")', ")"),
            "the microsecond of a time": ('"microsecond", "fold"', '"fold"'),
            "the time of a datetime": ("attributes(*_DATE, *_TIME)", "attributes(*_DATE)"),
            "the microseconds of a timedelta": ('"seconds", "microseconds"', '"seconds"'),
            "the length of a deque": ('("maxlen", v.maxlen), ', ""),
            "the factory of a defaultdict": ('("default_factory", value.default_factory), ', ""),
            "the step of a range": (
                'range: by_parts("range", attributes("start", "stop", "step"))',
                'range: by_parts("range", attributes("start", "stop"))',
            ),
            "the step of a slice": (
                'slice: by_parts("slice", attributes("start", "stop", "step"))',
                'slice: by_parts("slice", attributes("start", "stop"))',
            ),
            "plain()": ('    put(b"Q")', "    pass"),
            "str that name files": (
                "if not (encoder.looks_up_text and encoder.put_path(value, put)):",
                "if True:",
                CONFIG,
            ),
        },
    ),
    *mutants(
        "instance_types.py",
        PLAIN,
        {
            "the class of an enum": ('put(b"E")\n    encoder.put_class_of(value, put)', 'put(b"E")'),
            "the name of an enum member": ('put(b"n" if name is None else text_bytes(name))', "pass"),
            "the value of an enum member": ('encoder.step(value._value_, "value", put)', "pass"),
            "the class of a dataclass": ('put(b"D")\n    encoder.put_class_of(value, put)', 'put(b"D")'),
            "the fields of a dataclass": ("[*fields, *others]", "others"),
            "other attributes of a dataclass": ("[*fields, *others]", "fields"),
            "the names of attributes": (
                "put(text_bytes(name))\n        encoder.steps.append(name)",
                "encoder.steps.append(name)",
            ),
            "the values of attributes": ("encoder.walk(attribute, put)", "pass"),
            "the count of attributes": ("    put(length(len(names)))", "    pass"),
            "what cached_property keeps": (
                "if not isinstance(getattr(cls, n, None), functools.cached_property)",
                "if n",
            ),
            "the class of a namedtuple": ('put(b"N")\n    encoder.put_class_of(value, put)', 'put(b"N")'),
            "the names of a namedtuple": (
                "        put(text_bytes(name))\n        encoder.step(element, name, put)",
                "        encoder.step(element, name, put)",
            ),
            "the elements of a namedtuple": ("        encoder.step(element, name, put)", "        pass"),
            "the class of a subclass": (
                'b"subclass")\n        encoder.put_class_of(value, put)',
                'b"subclass")',
            ),
            "the value of a subclass": ("encoder.walk(_OWN[base](value), put)", "pass"),
            "what a subclass holds, whatever it says": ("_OWN[base](value)", "base(value)"),
            "what a namedtuple holds, whatever it says": (
                "zip(value._fields, tuple.__iter__(value), strict=True)",
                "zip(value._fields, value, strict=False)",
            ),
            "the items of a dict's subclass": (
                "put_pairs(encoder, [(k, dict",
                "put_pairs(encoder, [][:0] and [(k, dict",
            ),
            "the elements of a list's subclass": (
                "                encoder.step(element, i, put)",
                "                pass",
            ),
            "the state of a subclass": (
                "        put_state(encoder, instance_state(value), value, put)\n        encoder.leave(value)\n\n    return",
                "        encoder.leave(value)\n\n    return",
            ),
            "the items of a mapping": ("    put_pairs(encoder, pairs, put)", "    pass"),
            "the class of a mapping": ('b"mapping")\n    encoder.put_class_of(value, put)', 'b"mapping")'),
            "the elements of a sequence": ('put_elements(encoder, b"l", elements, put)', "pass"),
            "the class of a namespace": (
                'b"namespace")\n    encoder.put_class_of(value, put)',
                'b"namespace")',
            ),
            "a decimal's digits": ('("text", str(v).encode())', '("text", b"")'),
            "a denominator": ('attributes("numerator", "denominator")', 'attributes("numerator")'),
            "a UUID": ('by_parts("UUID", attributes("int"))', 'by_parts("UUID", attributes())'),
            "the key of a ZoneInfo": ('("key", str(v.key).encode())', '("key", b"")'),
        },
    ),
    *mutants(
        "library_types.py",
        LIBRARIES,
        {
            "the dtype": ("out = text_bytes(dtype.str)", "out = text_bytes(dtype.kind)"),
            "the class of an odd dtype": (
                'out += text_bytes(f"{dtype.type.__module__}.{dtype.type.__qualname__}")',
                "pass",
            ),
            "the field names of a dtype": (
                "out += text_bytes(name) + length(offset) + _dtype_bytes(field)",
                "out += length(offset) + _dtype_bytes(field)",
            ),
            "the fields of a dtype": (
                "text_bytes(name) + length(offset) + _dtype_bytes(field)",
                "text_bytes(name)",
            ),
            "the inner shape of a dtype": (" + text_bytes(str(tuple(map(int, shape))))", ""),
            "the dtype of a scalar": ('put(b"u" + _dtype_bytes(value.dtype))', 'put(b"u")'),
            "the dtype of an array": (
                "put(_dtype_bytes(plain.dtype) + length(plain.ndim)",
                "put(length(plain.ndim)",
            ),
            "the shape of an array": (' + b"".join(map(length, plain.shape)))', ")"),
            "the bytes of an array": (
                'put(memoryview(flat.view(numpy.uint8)) if flat.dtype.itemsize else b"")',
                'put(b"")',
            ),
            "the order of an array": (
                "numpy.ascontiguousarray(value).reshape(-1)",
                'value.reshape(-1, order="A")',
            ),
            "the elements of an object array": ("put_list(encoder, value.ravel().tolist(), put)", "pass"),
            "the fields of a record": ("            _data(encoder, value[name], put)", "            pass"),
            "the mask of an array": ('return ("_mask", "_fill_value", "_hardmask")', "return ()"),
            "the class of an array": ('put(b"A")\n        encoder.put_class_of(value, put)', 'put(b"A")'),
            "the file of a mapped array": ("if isinstance(value, numpy.memmap):", "if False:"),
            "the dtype of a tensor": ('f"{plain.dtype} {tuple', 'f"{tuple'),
            "the shape of a tensor": ("{tuple(plain.shape)} ", ""),
            "requires_grad": (" {value.requires_grad}", ""),
            "the layout of a tensor": (' {plain.layout}"\n', '"\n'),
            "the bytes of a tensor": ("put(memoryview(flat.view(torch.uint8).numpy()))", "pass"),
            "a conjugated view": ("value.resolve_conj().resolve_neg().cpu()", "value.cpu()"),
            "the class of a tensor": ('put(b"V")\n        encoder.put_class_of(value, put)', 'put(b"V")'),
            "the indices of a sparse tensor": ("(plain.indices(), plain.values())", "(plain.values(),)"),
            "the columns of a sparse tensor": (
                "(plain.crow_indices(), plain.col_indices(), plain.values())",
                "(plain.crow_indices(), plain.values())",
            ),
            "which dtype of torch": ('f"{type(value).__name__} {value}"', "type(value).__name__"),
            "the fields of a model": (
                "    put_state(encoder, instance_state(value), value, put)\n    _put_given",
                "    _put_given",
            ),
            "which fields were given": ("    _put_given(value, put)\n", ""),
            "the class of a model": ('put(b"M")\n    encoder.put_class_of(value, put)', 'put(b"M")'),
            "the extra fields of a model": (
                '("__pydantic_extra__", "__pydantic_private__")',
                '("__pydantic_private__",)',
            ),
            "the private fields of a model": (
                '"__pydantic_extra__", "__pydantic_private__"',
                '"__pydantic_extra__",',
            ),
        },
    ),
]
