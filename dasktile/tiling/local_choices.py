"""The variables of the second level: of each array, which of its labels may be cut, and where.

The first level has chosen how the mesh divides each array.  The cuts of a label may be fixed: those
of an unchanged operation, of a persisted array, or of an output that must have certain chunks.
Others are near-even, with the blocks of the input graph as one more possibility.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from dasktile.ir import AxisMap, Chunks, Kind, Node, Role, bounds
from dasktile.tiling.candidates import Space, array_labels
from dasktile.tiling.grid import Grid, cuts_of, sizes
from dasktile.tiling.options import Option

#: Number of parts of each label of a node, or of each axis of a kept array.
Parts = tuple[int, ...]

#: Length of a label up to which all its cuts are compared, to find labels that are cut alike
#: (chosen: groups of longer ones are few).
SHORT = 16


@dataclass(frozen=True, slots=True)
class Choice:
    """A variable of the second level: the parts of the labels of a node or of a kept array.

    Parameters
    ----------
    node
        Index of the node.
    keep
        True for the array as it is kept for its readers.
    option
        The candidate that the first level chose.
    classes
        The axis class of each label, -1 where a label has none.
    label_sizes, grids
        Size of each label, and the positions at which it may be cut.
    fixed
        Chunk sizes of each label that may not be chosen; None for the others.
    own
        For each label, chunk sizes for which few blocks are joined; None if no cut of the mesh
        allows them.  For kept arrays, those that the array must be made in.
    mesh_parts
        Parts into which the mesh cuts each label.
    family
        Choices of one family have the same costs, and share their offers.
    final
        True for an output in the chunks that it must have; `keep` is true, too.
    """

    node: int
    keep: bool
    option: Option
    classes: tuple[int, ...]
    label_sizes: tuple[int, ...]
    grids: tuple[Grid, ...]
    fixed: tuple[tuple[int, ...] | None, ...]
    own: tuple[tuple[int, ...] | None, ...]
    mesh_parts: Parts
    family: int
    final: bool = False


def local_choices(
    space: Space, states: Sequence[int], retile: bool, moving: Collection[int]
) -> list[Choice]:
    """The variables of the second level, in the order of those of the first.

    Parameters
    ----------
    space, states
        The variables of the first level and the chosen candidates.
    retile
        True to choose part counts; False to price the input's own chunks.
    moving
        Roots whose blocks are made where they are read, in the chunks of the input graph.
    """
    making = _Making(space, retile, moving)
    for variable, state in zip(space.variables, states, strict=True):
        option = variable.options[state]
        if variable.final is not None:
            choice = making.final(variable.node, variable.final, option)
        else:
            choice = making.tiling(variable.node, variable.keep, option)
        making.choices.append(choice)
    return making.choices


@dataclass
class _Making:
    """The choices that are made so far, as later ones depend on the cuts of their inputs.

    Parameters
    ----------
    space, retile, moving
        As for `local_choices`.
    choices
        The choices.
    families
        By what the costs of a choice depend on, the number of its family.
    """

    space: Space
    retile: bool
    moving: Collection[int]
    choices: list[Choice] = field(default_factory=list)
    families: dict[object, int] = field(default_factory=dict)
    #: Whether all blocks have homes, by the identity of chunk sizes and of where the mesh may cut
    #: them, as many blocks take long to look up.  Both are kept, so that identities stay theirs.
    aligned: dict[tuple[int, int, int, int], tuple[tuple[int, ...], Grid, bool]] = field(
        default_factory=dict
    )

    def tiling(self, index: int, keep: bool, option: Option) -> Choice:
        """A node in its own tiling, or its array as it is kept for readers."""
        node = self.space.program.nodes[index]
        classes, grids = self.space.axes.members[index], self.space.axes.grids[index]
        is_moving = not keep and index in self.moving
        if keep:
            axis_classes = tuple(
                -1 if axis.label is None else classes[axis.label] for axis in node.out
            )
            _, spots, _ = array_labels(node, self.space.axes.kept[index])
            lengths = node.shape
            fixed: tuple[tuple[int, ...] | None, ...] = (None,) * len(node.shape)
            pinned = [axis.label is not None and self._is_fixed(node, axis.label)
                      for axis in node.out]  # fmt: skip
        else:
            axis_classes, spots = classes, grids
            lengths = tuple(label.size for label in node.labels)
            fixed = tuple(
                label.cuts if is_moving or self._is_fixed(node, number)
                else (label.size,) if label.role is Role.WHOLE else None
                for number, label in enumerate(node.labels)
            )  # fmt: skip
            pinned = []
        if option.follow is not None:
            along = dict(zip(option.follow.dims, option.follow.cuts, strict=True))
            fixed = tuple(along.get(place) or cuts for place, cuts in enumerate(fixed))
        mesh_parts = tuple(
            self.space.mesh.parts(option.cutting(label)) for label in range(len(lengths))
        )
        if is_moving:
            mesh_parts = (1,) * len(lengths)
        own: tuple[tuple[int, ...] | None, ...] = (None,) * len(lengths)
        if keep:
            own = tuple(
                cuts if is_pinned else None
                for cuts, is_pinned in zip(node.chunks, pinned, strict=True)
            )
        elif self.retile:
            own = tuple(self._natural(node, label) for label in range(len(lengths)))
        # blocks that cross a cut of the mesh would have no home
        own = tuple(
            cuts if cuts is not None and self._have_homes(cuts, length, parts, spot) else None
            for cuts, length, parts, spot in zip(own, lengths, mesh_parts, spots, strict=True)
        )
        if keep and not self.retile and None not in own:
            fixed = own
        cuts = tuple(map(_cuts_of, spots, lengths, mesh_parts))
        # costs do not depend on where a slice starts
        reads = tuple(
            (tuple(map(_from_start, edge.axes)), producer.shape, producer.itemsize)
            for edge in node.edges
            for producer in (self.space.program.nodes[edge.producer],)
        )
        alike = (keep, option, lengths, cuts, fixed, own, node.kind, node.labels, node.out,
                 node.shape, node.itemsize, reads)  # fmt: skip
        family = self.families.setdefault(alike, len(self.families))
        return Choice(
            index, keep, option, axis_classes, lengths, spots, fixed, own, mesh_parts, family
        )

    def _have_homes(self, cuts: tuple[int, ...], length: int, parts: int, spots: Grid) -> bool:
        """Whether no block crosses a cut of the mesh into some parts."""
        key = id(cuts), id(spots), length, parts
        if key not in self.aligned:
            at = bounds(sizes(length, parts, spots))
            self.aligned[key] = cuts, spots, set(at) <= set(bounds(cuts))
        return self.aligned[key][2]

    def final(self, index: int, chunks: Chunks, option: Option) -> Choice:
        """An output in the chunks that it must have."""
        shape = self.space.program.nodes[index].shape
        nothing = (None,) * len(shape)
        parts = (self.space.mesh.parts(option.cutting(axis)) for axis in range(len(shape)))
        return Choice(
            node=index,
            keep=True,
            option=option,
            classes=(-1,) * len(shape),
            label_sizes=shape,
            grids=tuple(map(bounds, chunks)),
            fixed=chunks,
            own=nothing,
            mesh_parts=tuple(parts),
            family=self.families.setdefault(("final", option, chunks), len(self.families)),
            final=True,
        )

    def _natural(self, node: Node, label: int) -> tuple[int, ...]:
        """Chunk sizes along a label for which few blocks are joined.

        They are those in which an input is made, if it must be made in them, else those of the
        input graph.
        """
        for edge in node.edges:
            choice = self.choices[self.space.source(edge.producer)]
            made = self.space.program.nodes[edge.producer]
            for axis, spec in enumerate(edge.axes):
                if spec.label != label or not spec.identity:
                    continue
                if made.shape[axis] != node.labels[label].size:
                    continue
                along = AxisMap(axis) if choice.keep else made.out[axis]
                if along.label is None or not along.identity:
                    continue
                cuts = choice.own[along.label]
                if cuts is None and not choice.keep and self._is_fixed(made, along.label):
                    cuts = choice.fixed[along.label]
                if cuts is not None:
                    return cuts
        return node.labels[label].cuts

    def _is_fixed(self, node: Node, label: int) -> bool:
        """Whether a label of a node keeps the cuts of the input."""
        pinned = node.labels[label].role is Role.PINNED
        return not self.retile or pinned or node.kind is Kind.OPAQUE


def _from_start(axis: AxisMap) -> AxisMap:
    """The map of a slice that starts at the first element."""
    return replace(axis, start=0) if axis.start else axis


def _cuts_of(grid: Grid, length: int, parts: int) -> object:
    """`cuts_of` for all numbers of parts of a short label, and for that of the mesh."""
    if length > SHORT:
        return grid
    return cuts_of(grid, length, (*range(1, length + 1), parts))
