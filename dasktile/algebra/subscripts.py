"""The subscripts of an Einstein summation: the label of every axis, and the size of every label."""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: Labels of the axes of one array.
Term = tuple[str, ...]


def parsed(subscripts: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Term], Term]:
    """Labels of the axes of every operand, and of the result.

    Axes of an ellipsis are labelled ``...1``, ``...2``, starting from the last axis.
    """

    def wrong(what: str) -> ValueError:
        return ValueError(f"einsum {subscripts!r}: {what}")

    left, arrow, right = subscripts.replace(" ", "").partition("->")
    for text in (left, right):
        for letter in text.replace("...", "").replace(",", ""):
            if not (letter.isascii() and letter.isalpha()):
                raise wrong(f"{letter!r} is not a label; labels are letters")
    texts = left.split(",")
    if len(texts) != len(shapes):
        raise wrong(f"subscripts for {len(texts)} operands, but {len(shapes)} operands are given")
    inputs = [
        _term(wrong, number, text, shape)
        for number, (text, shape) in enumerate(zip(texts, shapes, strict=True))
    ]
    named = [label for term in inputs for label in term]
    longest = max((int(label[3:]) for label in named if label[3:]), default=0)
    dots = tuple(f"...{place}" for place in range(longest, 0, -1))
    if not arrow:
        once = sorted(label for label in set(named) if not label[3:] and named.count(label) == 1)
        return inputs, (*dots, *once)
    output = _expanded(wrong, "the output", right, dots)
    if dots and "..." not in right:
        raise wrong(f"an ellipsis stands for {longest} axes, and the output has none")
    for label in output:
        if output.count(label) > 1:
            raise wrong(f"label {label!r} is twice in the output")
        if label not in named:
            raise wrong(f"label {label!r} of the output is in no operand")
    return inputs, output


def _term(
    wrong: Callable[[str], ValueError], number: int, text: str, shape: tuple[int, ...]
) -> Term:
    letters = len(text.replace("...", ""))
    more = len(shape) - letters
    if more < 0 or (more > 0 and "..." not in text):
        raise wrong(f"operand {number} has {len(shape)} axes, shape {shape}; {text!r} labels"
                    f" {letters}")  # fmt: skip
    dots = tuple(f"...{place}" for place in range(more, 0, -1))
    return _expanded(wrong, f"operand {number}", text, dots)


def _expanded(
    wrong: Callable[[str], ValueError], name: str, text: str, dots: tuple[str, ...]
) -> Term:
    if "," in text or text.count("...") > 1:
        raise wrong(f"{text!r} of {name} may have one ellipsis and no comma")
    before, ellipsis, after = text.partition("...")
    return (*before, *(dots if ellipsis else ()), *after)


def label_sizes(
    subscripts: str, shapes: Sequence[tuple[int, ...]], inputs: Sequence[Term]
) -> dict[str, int]:
    """The size of every label; axes of size one broadcast."""
    sizes: dict[str, int] = {}
    owner: dict[str, int] = {}
    for number, (shape, term) in enumerate(zip(shapes, inputs, strict=True)):
        for axis, (label, size) in enumerate(zip(term, shape, strict=True)):
            first = shape[term.index(label)]
            known = sizes.get(label, 1)
            if size != first:
                raise ValueError(
                    f"einsum {subscripts!r}: label {label!r} is of sizes {first} and {size} in"
                    f" operand {number} of shape {shape}"
                )
            if known != 1 and size not in (1, known):
                other = owner[label]
                raise ValueError(
                    f"einsum {subscripts!r}: label {label!r} is of size {known} in operand {other}"
                    f" of shape {shapes[other]}, but of size {size} in operand {number} of"
                    f" shape {shape}, axis {axis}"
                )
            if label not in sizes or size != 1:
                sizes[label], owner[label] = size, number
    return sizes
