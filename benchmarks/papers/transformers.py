"""Programs of the papers' networks in Einstein notation: attention, a LLaMA block, a classifier.

Sizes are those of LLaMA-7B unless given: width 4096, 32 heads, 11008 in the feed-forward part.
Rotary embedding is left out: it is elementwise and moves no bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role, validate


@dataclass
class Network:
    """A builder of programs, whose operations are strings such as ``"bsa,ahd->bshd"``.

    Parameters
    ----------
    itemsize
        Bytes of a number.
    chunks
        Largest number of chunks along every axis of the original graph; 1 if no comparison with
        this graph is needed.
    """

    itemsize: int = 4
    chunks: int = 1
    nodes: list[Node] = field(default_factory=list)

    def program(self, *outputs: int) -> Program:
        """The program so far; its output is the last node unless `outputs` are given."""
        program = Program(tuple(self.nodes), outputs or (len(self.nodes) - 1,))
        validate(program)
        return program

    def source(self, name: str, *shape: int, placed: bool = False) -> int:
        """Add an input with any placement.

        Parameters
        ----------
        name
            Name of the array.
        *shape
            Shape of the array.
        placed
            Whether every worker has the tiles that it reads at the start, so that reads move no
            bytes.
        """
        labels = tuple(Label(size, Role.FREE, self._cuts(size)) for size in shape)
        return self._add(
            name, "source", Kind.SOURCE, labels, range(len(shape)), (),
            work=0.0, itemsize=0 if placed else self.itemsize,
        )  # fmt: skip

    def einsum(self, name: str, spec: str, *inputs: int) -> int:
        """Add an operation: multiply the inputs and sum over the letters that the result lacks.

        Parameters
        ----------
        name
            Name of the result.
        spec
            A letter for every axis of every input and of the result.  Labels are in the order of
            the result's letters, then of the others.
        *inputs
            Indices of the arrays.
        """
        reads, result = spec.split("->")
        operands = reads.split(",")
        letters = list(dict.fromkeys(result + "".join(operands)))
        sizes: dict[str, int] = {}
        for axes, index in zip(operands, inputs, strict=True):
            for letter, size in zip(axes, self.nodes[index].shape, strict=True):
                if sizes.setdefault(letter, size) != size:
                    raise ValueError(f"{spec!r}: {letter} is both {sizes[letter]} and {size}")
        labels = tuple(
            Label(sizes[letter], Role.FREE if letter in result else Role.REDUCE,
                  self._cuts(sizes[letter]))
            for letter in letters
        )  # fmt: skip
        sums = len(letters) > len(result)
        kind = Kind.MAP if not sums else Kind.CONTRACT if len(inputs) > 1 else Kind.FOLD
        edges = tuple(
            Edge(index, tuple(AxisMap(letters.index(letter)) for letter in axes))
            for axes, index in zip(operands, inputs, strict=True)
        )
        return self._add(
            name, spec, kind, labels, range(len(result)), edges,
            work=2.0 if kind is Kind.CONTRACT else 1.0, itemsize=self.itemsize,
        )  # fmt: skip

    def _cuts(self, size: int) -> tuple[int, ...]:
        count = math.gcd(size, self.chunks)
        return (size // count,) * count

    def _add(
        self,
        name: str,
        op: str,
        kind: Kind,
        labels: tuple[Label, ...],
        out: Sequence[int],
        edges: tuple[Edge, ...],
        *,
        work: float,
        itemsize: int,
    ) -> int:
        self.nodes.append(
            Node(
                name=name,
                op=op,
                kind=kind,
                labels=labels,
                out=tuple(map(AxisMap, out)),
                shape=tuple(labels[label].size for label in out),
                dtype=f"f{self.itemsize}",
                itemsize=itemsize,
                chunks=tuple(labels[label].cuts for label in out),
                edges=edges,
                partial=float(self.itemsize),
                work=work,
            )
        )
        return len(self.nodes) - 1


def _attend(net: Network, q: int, k: int, v: int) -> int:
    """Scores, softmax and weighted sum, of (batch, sequence, heads, width) arrays."""
    scores = net.einsum("scores", "bshd,bthd->bsht", q, k)
    largest = net.einsum("largest", "bsht->bsh", scores)
    powers = net.einsum("powers", "bsht,bsh->bsht", scores, largest)
    total = net.einsum("total", "bsht->bsh", powers)
    weights = net.einsum("softmax", "bsht,bsh->bsht", powers, total)
    return net.einsum("attended", "bsht,bthd->bshd", weights, v)


def attention(
    batch: int = 4, tokens: int = 4096, heads: int = 32, width: int = 128, itemsize: int = 4
) -> Program:
    """Attention alone, with queries, keys and values as inputs.

    Parameters
    ----------
    batch, tokens, heads, width
        Number of sequences, their length, number of heads, and width of a head.
    itemsize
        Bytes of a number.
    """
    net = Network(itemsize)
    q, k, v = (net.source(name, batch, tokens, heads, width) for name in "qkv")
    _attend(net, q, k, v)
    return net.program()


def llama_block(
    batch: int = 4,
    tokens: int = 4096,
    *,
    hidden: int = 4096,
    heads: int = 32,
    ffn: int = 11008,
    placed: bool = False,
    itemsize: int = 4,
) -> Program:
    """One block of LLaMA-7B on a whole prompt, as for the first token.

    Parameters
    ----------
    batch, tokens
        Number of sequences and their length.
    hidden, heads, ffn
        Widths of the network.
    placed
        Whether every worker has the weights that it reads at the start, as the paper assumes of
        all inputs; otherwise each weight has one owner at the start.
    itemsize
        Bytes of a number.
    """
    net = Network(itemsize)
    width = hidden // heads
    x = net.source("x", batch, tokens, hidden)

    def weight(name: str, *shape: int) -> int:
        return net.source(name, *shape, placed=placed)

    def normed(name: str, array: int) -> int:
        squares = net.einsum(f"{name}_squares", "bsa->bs", array)
        return net.einsum(name, "bsa,bs,a->bsa", array, squares, weight(f"{name}_scale", hidden))

    before = normed("norm1", x)
    q, k, v = (
        net.einsum(name, "bsa,ahd->bshd", before, weight(f"w{name}", hidden, heads, width))
        for name in "qkv"
    )
    attended = _attend(net, q, k, v)
    mixed = net.einsum("mixed", "bshd,hda->bsa", attended, weight("wo", heads, width, hidden))
    middle = net.einsum("middle", "bsa,bsa->bsa", x, mixed)
    after = normed("norm2", middle)
    gate, up = (
        net.einsum(name, "bsa,af->bsf", after, weight(f"w{name}", hidden, ffn))
        for name in ("gate", "up")
    )
    act = net.einsum("act", "bsf,bsf->bsf", gate, up)
    down = net.einsum("down", "bsf,fa->bsa", act, weight("wdown", ffn, hidden))
    net.einsum("out", "bsa,bsa->bsa", middle, down)
    return net.program()


def classifier(
    batch: int = 128, features: int = 8192, hidden: int = 8192, classes: int = 14_588
) -> Program:
    """One training step of a feed-forward classifier with one hidden layer.

    Parameters
    ----------
    batch, features, hidden, classes
        Number of samples, and sizes of the layers; the paper's data have up to 597,540 features.
    """
    net = Network()
    x, y = net.source("x", batch, features), net.source("y", batch, classes)
    w1, w2 = net.source("w1", features, hidden), net.source("w2", hidden, classes)
    h = net.einsum("h", "bh->bh", net.einsum("xw1", "bf,fh->bh", x, w1))
    error = net.einsum("error", "bc,bc->bc", net.einsum("hw2", "bh,hc->bc", h, w2), y)
    dw2 = net.einsum("dw2", "bh,bc->hc", h, error)
    dh = net.einsum("dh", "bh,bh->bh", net.einsum("ew2", "bc,hc->bh", error, w2), h)
    dw1 = net.einsum("dw1", "bf,bh->fh", x, dh)
    new1 = net.einsum("new1", "fh,fh->fh", w1, dw1)
    new2 = net.einsum("new2", "hc,hc->hc", w2, dw2)
    return net.program(new1, new2)


def chain(skewed: bool, size: int) -> Program:
    """(A B) + (C (D E)).

    Parameters
    ----------
    skewed
        Whether the shapes are A s x s/10, B s/10 x s, C s x s/10, D s/10 x 10s and E 10s x s;
        otherwise all matrices are s x s.
    size
        The length s.
    """
    net = Network(itemsize=8, chunks=4)
    tenth = size // 10
    shapes = [(size, size)] * 5
    if skewed:
        shapes = [(size, tenth), (tenth, size), (size, tenth), (tenth, 10 * size),
                  (10 * size, size)]  # fmt: skip
    a, b, c, d, e = (net.source(name, *shape) for name, shape in zip("ABCDE", shapes, strict=True))
    ab = net.einsum("AB", "ij,jk->ik", a, b)
    de = net.einsum("DE", "ij,jk->ik", d, e)
    net.einsum("sum", "ik,ik->ik", ab, net.einsum("CDE", "ij,jk->ik", c, de))
    return net.program()
