"""Finds conditions on texts that are written for people: messages, reasons, hints and texts of exceptions.

A program must not depend on the wording of a sentence: a column, an enum or an error class decides. The check follows
a text through `or`, conditional expressions, `str()`, tuples, comprehensions and local names. It does not follow it
through function calls, and does not know printed lines.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = frozenset({"message", "reason", "hint"})
LISTS = frozenset({"problems", "warnings"})  # attributes with lists of texts, or of objects with a text
_CUTS = frozenset(
    {"startswith", "endswith", "partition", "rpartition", "split", "rsplit", "replace", "removeprefix", "removesuffix"}
    | {"find", "rfind", "index", "rindex", "count"}
)
_PATTERNS = frozenset({"search", "match", "fullmatch", "findall", "finditer", "sub", "subn"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class _Scope:
    """The names of a function that hold a text, or a collection of texts."""

    texts: set[str] = field(default_factory=set[str])
    errors: set[str] = field(default_factory=set[str])


def find_conditions(source: str) -> list[tuple[int, str]]:
    """Return line and code of every condition on a text."""
    tree = ast.parse(source)
    found = {place for scope in _scopes(tree) for place in _find_in(scope)}
    return sorted(found)


def _scopes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the module and every outermost function or method; nested functions share its names."""
    level: list[ast.AST] = [tree]
    while level:
        node = level.pop()
        if isinstance(node, _FUNCTIONS):
            yield node
        else:
            level += ast.iter_child_nodes(node)
            if isinstance(node, ast.expr):
                yield node


def _find_in(node: ast.AST) -> Iterator[tuple[int, str]]:
    scope = _Scope()
    nodes = list(ast.walk(node))
    for one in nodes:
        if isinstance(one, ast.ExceptHandler) and one.name:
            scope.errors.add(one.name)
    before = -1
    while before != len(scope.texts):  # a name that is assigned from another name
        before = len(scope.texts)
        for one in nodes:
            _learn(one, scope)
    for one in nodes:
        if _is_condition(one, scope):
            yield one.lineno, ast.unparse(one)  # pyright: ignore[reportAttributeAccessIssue]


def _learn(node: ast.AST, scope: _Scope) -> None:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_text(value, scope):
            scope.texts.add(name)
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            scope.texts |= {
                name.id
                for name, value in zip(names, values, strict=False)
                if isinstance(name, ast.Name) and _is_text(value, scope)
            }
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _is_text(value, scope):
            scope.texts.add(name)
        case ast.NamedExpr(target=ast.Name(id=name), value=value) if _is_text(value, scope):
            scope.texts.add(name)
        case ast.For(target=ast.Name(id=name), iter=value) if _has_texts(value, scope):
            scope.texts.add(name)
        case ast.comprehension(target=ast.Name(id=name), iter=value) if _has_texts(value, scope):
            scope.texts.add(name)
        case _:
            pass


def _has_texts(node: ast.expr, scope: _Scope) -> bool:
    return _is_text(node, scope) or (isinstance(node, ast.Attribute) and node.attr in LISTS)


def _is_text(node: ast.expr, scope: _Scope) -> bool:
    """Return True for a text for people, and for a collection of such texts."""
    if _names_text(node, scope):
        return True
    if isinstance(node, ast.Call):
        return _call_gives_text(node, scope)
    return any(_is_text(part, scope) for part in _parts(node))


def _names_text(node: ast.expr, scope: _Scope) -> bool:
    match node:
        case ast.Attribute(value=ast.Attribute(attr="c"), attr="message"):
            return False  # a column with the number of a message
        case ast.Attribute(value=ast.Name(id=name), attr="args") if name in scope.errors:
            return True
        case ast.Subscript(
            value=ast.Subscript(slice=ast.Constant(value="result")), slice=ast.Constant(value="content")
        ):
            return True  # the content of a tool result
        case ast.Attribute(value=ast.Name(id="result"), attr="text"):
            return True  # the text of a tool result
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name in TEXTS
        case ast.Name(id=name):
            return name in scope.texts
        case _:
            return False


def _call_gives_text(node: ast.Call, scope: _Scope) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
            return name in TEXTS
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]) if name in scope.errors:
            return True
        case ast.Call(func=ast.Name(id="str" | "repr" | "list" | "set" | "tuple"), args=[value]):
            return _is_text(value, scope)
        case ast.Call(func=ast.Attribute(value=value, attr="lower" | "upper" | "strip" | "rstrip" | "casefold")):
            return _is_text(value, scope)
        case _:
            return False


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the expressions of which one is the value of an expression, or an element of it."""
    match node:
        case ast.BoolOp(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return parts
        case ast.IfExp(body=body, orelse=orelse):
            return [body, orelse]
        case ast.NamedExpr(value=value) | ast.Starred(value=value) | ast.Await(value=value):
            return [value]
        case ast.FormattedValue(value=value) | ast.Subscript(value=value):
            return [value]
        case ast.JoinedStr(values=parts):
            return parts
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [left, right]
        case ast.ListComp(elt=value) | ast.SetComp(elt=value) | ast.GeneratorExp(elt=value):
            return [value]
        case _:
            return []


def _is_condition(node: ast.AST, scope: _Scope) -> bool:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            compares = any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in ops)
            return compares and any(_is_text(side, scope) for side in (left, *others))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="result"), attr="startswith" | "endswith" | "partition")):
            return True  # a result that is a string: the text of a tool result
        case ast.Call(func=ast.Attribute(attr="split"), args=[]):
            return False  # joined again, it is the same text with other blanks
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _CUTS and _is_text(value, scope):
            return True
        case ast.Call(func=ast.Attribute(attr=name), args=args) if name in _PATTERNS:
            return any(_is_text(value, scope) for value in args)
        case ast.Match(subject=subject):
            return _is_text(subject, scope)
        case ast.Subscript(slice=key):
            return not isinstance(key, ast.Constant) and _is_text(key, scope)
        case _:
            return False
