"""Formulas in linear notation, which reads well as it stands, and as trees of MathML.

The notation is a part of UnicodeMath (Sargent 2016): a_b and a^b are indices, a/b is a fraction,
√a a root; parentheses around a whole index, numerator, denominator or radicand only group. What
stands in quotation marks are words.

Example: "softmax((Q K^T)/√(d_k)) V".
"""

import re

type Tree = list[str | Tree]
"""The name of an element of MathML, then its children: trees, or its text."""

_TOKEN = re.compile(r'"[^"]*"|[0-9]+(?:\.[0-9]+)?|[^\W\d_]+|\S')
_SCRIPTS = {"_": "msub", "^": "msup"}


def parsed(formula: str) -> Tree:
    """A formula as a tree of MathML, an <mrow>."""
    tokens = _TOKEN.findall(formula)
    tree = _row(tokens)
    if tokens:
        raise ValueError(f"formula {formula!r}: nothing opens this {tokens[0]}")
    return tree


def _row(tokens: list[str]) -> Tree:
    """All up to the end or to a parenthesis that closes; takes what it reads from the list."""
    row: Tree = ["mrow"]
    while tokens and tokens[0] != ")":
        row.append(_fraction(tokens))
    return row


def _fraction(tokens: list[str]) -> Tree:
    left = _scripted(tokens)
    while tokens and tokens[0] == "/":
        tokens.pop(0)
        left = ["mfrac", _bare(left), _bare(_scripted(tokens))]
    return left


def _scripted(tokens: list[str]) -> Tree:
    base = _atom(tokens)
    found = {}
    while tokens and tokens[0] in _SCRIPTS:
        kind = _SCRIPTS[tokens.pop(0)]
        found[kind] = _bare(_atom(tokens))
    if len(found) == 2:
        return ["msubsup", base, found["msub"], found["msup"]]
    for kind, script in found.items():
        base = [kind, base, script]
    return base


def _atom(tokens: list[str]) -> Tree:
    token = tokens.pop(0)
    if token == "(":
        inner = _row(tokens)
        tokens.pop(0)
        return ["mrow", ["mo", "("], inner, ["mo", ")"]]
    if token == "√":
        return ["msqrt", _bare(_scripted(tokens))]
    if token.startswith('"'):
        return ["mtext", f"\N{NO-BREAK SPACE}{token[1:-1]}\N{NO-BREAK SPACE}"]
    if token[0].isdigit():
        return ["mn", token]
    return ["mi" if token.isalpha() else "mo", token]


def _bare(tree: Tree) -> Tree:
    """Without the parentheses around all of it."""
    is_group = tree[0] == "mrow" and len(tree) == 4 and tree[1] == ["mo", "("]
    return tree[2] if is_group else tree  # type: ignore[return-value]
