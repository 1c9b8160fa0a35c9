"""Checks between passes that a program, or a tiled program, is legal.

The rules are in :mod:`dasktile.ir.program_rules` and :mod:`dasktile.ir.tiled_rules`.  A rule is a
function that returns the first fault of one node, or None.  A fault is a defect of a pass, and
never of the user's arguments.

The rules count elements from chunks, runs and homes alone.  They use no function that the passes
use, so that an error in such a function cannot hide itself.  What a plan costs is no rule.
"""

from __future__ import annotations

from dasktile.ir.program import Program
from dasktile.ir.program_rules import PROGRAM_RULES, Fault, names_fault, outputs_fault
from dasktile.ir.tiled import TiledProgram
from dasktile.ir.tiled_rules import TILED_RULES, Check, longest_fixed, tilings_fault


class VerificationError(RuntimeError):
    """A program or a tiled program breaks a rule, which is a defect of dasktile.

    Parameters
    ----------
    rule
        Name of the rule.
    subject
        The node, or the whole program.
    fault
        What is wrong, and what was expected.
    """

    def __init__(self, rule: str, subject: str, fault: str) -> None:
        super().__init__(f"{subject} breaks the rule {rule!r}: {fault}")
        self.rule, self.subject, self.fault = rule, subject, fault

    def __reduce__(self) -> tuple[type[VerificationError], tuple[str, str, str]]:
        return type(self), (self.rule, self.subject, self.fault)


def verify_program(program: Program) -> None:
    """Check that a program is legal.

    Parameters
    ----------
    program
        The program.

    Raises
    ------
    VerificationError
        If it is not; the message has the node, the rule, what is wrong and what was expected.
    """
    for index in range(len(program.nodes)):
        for rule, fault_of in PROGRAM_RULES.items():
            _raise(rule, _subject(program, index), fault_of(program, index))
    _raise("names", "the program", names_fault(program))
    _raise("outputs", "the program", outputs_fault(program))


def verify_tiled(tiled: TiledProgram, memory_limit: int | None = None) -> None:
    """Check that a tiled program, and the program in it, are legal.

    Parameters
    ----------
    tiled
        The tiled program.
    memory_limit
        Bytes that the tiles of one task may take, and that a worker may hold of one array of which
        others hold replicas.  None where no limit holds, as for tiles that are the input's chunks.

    Raises
    ------
    VerificationError
        If they are not; the message has the node, the rule, what is wrong and what was expected.
    """
    verify_program(tiled.program)
    _raise("tilings", "the tiled program", tilings_fault(tiled))
    check = Check(tiled, memory_limit, longest_fixed(tiled))
    for index in range(len(tiled.program.nodes)):
        for rule, fault_of in TILED_RULES.items():
            _raise(rule, _subject(tiled.program, index), fault_of(check, index))


def _subject(program: Program, index: int) -> str:
    node = program.nodes[index]
    return f"node {index} ({node.op} {node.name!r})"


def _raise(rule: str, subject: str, fault: Fault) -> None:
    if fault is not None:
        raise VerificationError(rule, subject, fault)
