"""Text lint for rules of Metal's language that a C++ front end does not know."""

from __future__ import annotations

import re
from collections.abc import Iterator

SPACE = r"(?:device|threadgroup|constant|thread)"
_FORBIDDEN = {
    r"\bdouble\b": "no double in Metal",
    r"\bgoto\b": "no goto",
    r"\bvirtual\b": "no virtual functions",
    r"\b(?:throw|try)\b": "no exceptions",
    r"\b(?:new|delete)\b": "no heap",
    r"\b(?:dynamic_cast|typeid)\b": "no run-time type information",
    r"\bthread_local\b": "no thread_local",
    r"\basm\b": "no inline assembly",
    r"\bstd::": "no std::",
    r"\b__(?:global|local|private|constant|generic)\b": "no words of OpenCL",
    # What Metal and its headers define besides types; clang takes them for names.
    r"\b(?:kernel|vertex|fragment|ray_data|object_data|threadgroup_imageblock|llong|ullong|quad|complex"
    r"|imaginary|restrict|assert|main)\b": "a word that Metal reserves",
    # The launcher passes row-contiguous arrays and one `dims` array; MLX finds these names in comments too.
    r"\b\w+_(?:shape|strides|ndim)\b": "no *_shape, *_strides or *_ndim: pass sizes in dims",
}
_TYPES = set(
    "float half bfloat int uint short ushort char uchar long ulong bool void size_t auto T U V".split()
)
_TYPES |= {
    f"{t}{n}" for t in ("float", "half", "int", "uint", "short", "ushort", "bfloat") for n in (2, 3, 4)
}
_DECLARATOR = re.compile(
    r"(?:^|[;{}()<,])\s*((?:(?:const|volatile|static|constexpr|inline|typedef|METAL_FUNC)\s+)*)"
    rf"({SPACE}\s+)?"
    rf"((?:const\s+)?(?:{SPACE}\s+)?[A-Za-z_][\w:]*(?:<[^;(){{}}]*?>)?(?:\s+const)?)"
    r"\s*([*&]+)\s*(const\s+)?(\w+)\s*(?=[=,;)\[{(])"
)
# In casts, of parameters without a name, as a template's argument, behind another name or in a macro; and of
# an array. Clang takes these for OpenCL's generic ones.
_NAMELESS = re.compile(
    r"(?:[(,<]|\busing\s+\w+\s*=|#\s*define\s+\w+)\s*(?:const\s+)?\w+(?:<[^;(){}]*?>)?(?:\s+const)?"
    r"\s*[*&]+\s*(?=[,)>;\n]|$)"
)
_OF_ARRAY = re.compile(rf"({SPACE}\s+)?(?:const\s+)?\b(\w+)\s*\(\s*[*&]\s*\w+\s*\)\s*\[")
_PROGRAM_SCOPE = re.compile(
    r"\s*(?:(?:static|const|constexpr)\s+)*(?:int|uint|float|half|bool|short|ushort|\w+_t)\s+\w+\s*(?:\[.*\])?\s*="
)
_THREADGROUP = r"\bthreadgroup\s+[\w:<>]+\s+\w+\s*(?:\[[^\]]*\])*\s*"


def without_comments(text: str) -> str:
    """`text` with comments and strings blanked, line numbers kept."""
    pattern = r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"])*\""
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.S)


def lint(header: str, body: str) -> list[str]:
    """Violations in a kernel's header and body, as "where:line: message"."""
    found = []
    for where, text in (("header", without_comments(header)), ("body", without_comments(body))):
        for position, message in sorted(_violations(where, text)):
            found.append(f"{where}:{text.count(chr(10), 0, position) + 1}: {message}")
    if not (header + body).isascii():
        found.append("text: not ASCII, which is how MLX hands it to Metal")
    # Comments count here: MLX looks for these names in the whole source.
    names = re.finditer(r"\b\w+_(?:shape|strides|ndim)\b", body)
    spoken = without_comments(body)
    found += [
        f"body:{body.count(chr(10), 0, m.start()) + 1}: MLX takes {m.group(0)} in a comment for an argument"
        for m in names
        if spoken[m.start() : m.end()] != m.group(0)
    ]
    return found


def _violations(where: str, text: str) -> Iterator[tuple[int, str]]:
    yield from _pointers(where, text)
    for m in _NAMELESS.finditer(text):
        yield m.start(), f"pointer or reference without an address space: '{m.group(0).strip(' (,<')}'"
    for m in _OF_ARRAY.finditer(text):
        if not m.group(1) and m.group(2) in _TYPES:
            yield m.start(), f"pointer or reference without an address space: '{m.group(0).strip()}'"
    for pattern, message in _FORBIDDEN.items():
        for m in re.finditer(pattern, text):
            yield m.start(), message
    for m in re.finditer(_THREADGROUP + "=", text):
        yield m.start(), "threadgroup variable with an initialiser"
    yield from _members(text)
    if where == "header":
        for m in re.finditer(_THREADGROUP + ";", text):
            yield m.start(), "threadgroup variable outside a kernel's body"
        yield from _program_scope(text)
    else:
        yield from _early_returns(text)


def _pointers(where: str, text: str) -> Iterator[tuple[int, str]]:
    """Pointers and references without an address space in the same declarator."""
    for m in _DECLARATOR.finditer(text):
        kind = m.group(3).strip()
        if re.search(rf"\b{SPACE}\b", m.group(0)):
            continue
        lower_case_name = re.fullmatch(r"[a-z_]\w*", kind) and kind not in _TYPES and not kind.endswith("_t")
        if kind in ("return", "else", "case", "sizeof", "in") or lower_case_name:
            continue
        if text[m.start()] in "(,<" and where == "body":  # an argument: an expression, not a declaration
            continue
        yield m.start(3), f"pointer or reference without an address space: '{m.group(0).strip(' ;{}(,')}'"


def _members(text: str) -> Iterator[tuple[int, str]]:
    """Member functions without `thread` behind their arguments: from Metal 4.1 on (macOS 27) `this` points to
    no address space by itself, and what belongs to it cannot be passed as a `thread T&`."""
    for m in re.finditer(r"\bstruct\s+\w+(?:<[^{};]*>)?\s*\{", text):
        start, depth = m.end(), 1
        for brace in re.finditer(r"[{}]", text[m.end() :]):
            at = m.end() + brace.start()
            if brace.group() == "}":
                depth -= 1
                if depth == 0:
                    break
                start = at + 1
                continue
            head = text[start:at].rpartition(";")[2]
            if depth == 1 and re.search(r"\)\s*(?:const\s*)?$", head) and "static" not in head.split():
                yield at, "a member function without `thread` behind its arguments"
            depth += 1


def _program_scope(text: str) -> Iterator[tuple[int, str]]:
    depth = position = 0
    for line in text.split("\n"):
        if depth == 0 and _PROGRAM_SCOPE.match(line) and not re.search(r"\bconstant\b", line):
            yield position, "a variable at program scope must be in the constant address space"
        depth += line.count("{") - line.count("}")
        position += len(line) + 1


def _early_returns(text: str) -> Iterator[tuple[int, str]]:
    """A `return` where a barrier or a simd-group function follows: lanes that left would be missed."""
    together = [
        m.start() for m in re.finditer(r"\b(?:threadgroup_barrier|simdgroup_\w+|simd_\w+)\s*\(", text)
    ]
    for m in re.finditer(r"\breturn\b", text):
        if together and m.start() < together[-1]:
            yield m.start(), "return before a barrier or a simd-group function"
