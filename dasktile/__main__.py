"""Command line: ``python -m dasktile`` with ``demo``, ``explain`` or ``doctor``."""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from dask.utils import parse_bytes

import dasktile

_TLS = "for tls://, certificates are those of the configuration distributed.comm.tls"

_ONE_WORKER = (
    "Planned for 1 worker, which moves no bytes: --workers N plans for N processes,"
    "\n--scheduler ADDRESS for those of a cluster."
)

_NO_PLUGIN = (
    "Planned for processes without dasktile's plugin: after dasktile.enable(client),"
    "\ntasks run in bundles on the workers of the plan, and fewer run."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of the package and return its exit status."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest:
        hint = ""
        if options.command == "explain" and not any(part.startswith("-") for part in rest):
            hint = '; to explain several arrays, give one expression, such as "a.py:[x, y]"'
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        status: int = options.run(parser, options)
        sys.stdout.flush()
    except BrokenPipeError:
        # what read the output, such as head, has ended; nothing can be flushed at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dasktile",
        description="Chooses tiles, placement and order for the arrays of Dask expressions.",
    )
    parser.add_argument("--version", action="version", version=f"dasktile {dasktile.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    demo = commands.add_parser(
        "demo", help="run array expressions on a local cluster, without dasktile and with it"
    )
    demo.add_argument("--workers", type=int, default=4, help="worker processes (default 4)")
    demo.add_argument(
        "--size", type=float, default=1.0, help="scales the length of every axis (default 1)"
    )
    demo.set_defaults(run=_demo)

    explain = commands.add_parser(
        "explain",
        help="show the plan of an expression of a script or module",
        description="Runs a script, or imports a module, and shows the plan of one of its arrays"
        " or xarray objects.  Nothing is computed, except by the script itself; what it has under"
        ' if __name__ == "__main__": does not run.',
    )
    explain.add_argument(
        "source",
        metavar="SCRIPT.py:EXPRESSION",
        help="a script, or the name of a module, and a Python expression of its names",
    )
    explain.add_argument(
        "--workers",
        type=int,
        help="worker processes to plan for (default: those of a client that the script makes, else"
        " 1, which moves no bytes)",
    )
    explain.add_argument("--scheduler", help=f"address of a cluster to plan for; {_TLS}")
    explain.add_argument("--method", default="auto", help='tiling method (default "auto")')
    explain.add_argument("--memory-limit", help='bytes that a task may hold, such as "2 GiB"')
    explain.add_argument(
        "--keep-chunks", action="store_true", help="give the results the chunks of the input"
    )
    explain.add_argument(
        "--chunks",
        metavar="SIZES",
        type=_chunks,
        help='give the results these chunks: a size for all axes, as 1000, "auto" or "100 MiB"; one'
        " for each axis, as 1000,-1 (--chunks=-1,1000 if it begins with a minus); or those of some"
        " axes by number or dimension, as 0=1000 or time=-1,lat=90",
    )
    explain.add_argument(
        "--largest",
        metavar="N",
        type=int,
        help="rows of the table: those of the arrays with the most bytes moved (default all)",
    )
    explain.add_argument("--html", metavar="FILE", help="write the explanation as a page, too")
    explain.add_argument(
        "--picture", metavar="FILE", help="draw the expression to .svg, .dot, .png or .pdf, too"
    )
    explain.set_defaults(run=_explain)

    doctor = commands.add_parser(
        "doctor",
        help="check the installation, and that of a cluster",
        description="Shows versions, optional packages, changed settings and what is off and why."
        "  The exit status is 1 if there is a problem.",
    )
    doctor.add_argument("--scheduler", help=f"address of a cluster to check; {_TLS}")
    doctor.set_defaults(run=_doctor)

    for command in (demo, explain, doctor):
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _chunks(text: str) -> Any:
    """The value of ``--chunks``, as ``dasktile.explain(chunks=)`` takes it."""
    if text.lstrip()[:1] in ("(", "[", "{"):
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            raise argparse.ArgumentTypeError(f"{text!r} is no Python literal") from None
    wrong = argparse.ArgumentTypeError(
        "give one size, such as 1000, auto or '100 MiB', one for each axis, such as 1000,-1,"
        f" or all of them with an axis, such as time=-1,lat=90; got {text!r}"
    )
    parts = [part.strip() for part in text.split(",")]
    named = [tuple(map(str.strip, part.partition("="))) for part in parts]
    if all(sign for _, sign, _ in named):
        if not all(name and size for name, _, size in named):
            raise wrong
        return {_integer(name): _size(size) for name, _, size in named}
    if not all(parts) or any(sign for _, sign, _ in named) or text.strip() == "None":
        raise wrong
    sizes = tuple(map(_size, parts))
    return sizes if len(sizes) > 1 else sizes[0]


def _size(text: str) -> int | str | None:
    """A number of elements, None, or a size in words."""
    size = None if text == "None" else _integer(text)
    if not isinstance(size, str):
        return size
    try:
        number = float(size)
    except ValueError:
        if size != "auto":
            try:
                parse_bytes(size)
            except ValueError:
                raise argparse.ArgumentTypeError(
                    "a size is a number of elements, -1 for a whole axis, auto, None, or bytes such"
                    f" as '100 MiB'; got {text!r}"
                ) from None
        return size
    # Dask takes a number in a string for bytes
    if not number.is_integer():
        raise argparse.ArgumentTypeError(f"a number of elements must be an integer; got {text!r}")
    return int(number)


def _integer(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


# Each command imports what it needs: --help must not need the packages of the demo.


def _demo(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.workers < 1:
        parser.error(f"--workers must be an integer >= 1; got {options.workers}")
    if not 0.05 <= options.size <= 20:
        parser.error(f"--size must be between 0.05 and 20; got {options.size}")

    from dasktile.demo import report, run

    results = run(workers=options.workers, size=options.size)
    if options.json:
        print(json.dumps([result.to_dict() for result in results], indent=2))
    else:
        report(results)
    return 0 if all(result.same for result in results) else 1


def _explain(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.workers is not None and options.scheduler is not None:
        parser.error("--workers and --scheduler exclude each other")
    if options.chunks is not None and options.keep_chunks:
        parser.error("--chunks and --keep-chunks exclude each other")
    if options.largest is not None and options.largest < 1:
        parser.error(f"--largest must be an integer >= 1; got {options.largest}")

    from dasktile.script import ScriptError, explain_source

    try:
        explanation = explain_source(
            options.source,
            method=options.method,
            workers=options.workers,
            scheduler=options.scheduler,
            memory_limit=options.memory_limit,
            keep_chunks=options.keep_chunks,
            chunks=options.chunks,
        )
        if not explanation.nodes:
            raise TypeError(f"{options.source} has no dask arrays to tile")
        if options.html is not None:
            explanation.save(options.html)
        if options.picture is not None:
            explanation.visualize(options.picture)
    except (ScriptError, TypeError, ValueError, ImportError, OSError) as error:
        return _failed(parser, "explain", error)
    if options.json:
        print(json.dumps(explanation.to_dict(), indent=2))
    else:
        print(explanation.text(largest=options.largest))
    is_default = options.workers is None and options.scheduler is None
    if is_default and explanation.workers == 1 and not options.json:
        print(f"\n{_ONE_WORKER}")
    is_local = options.workers is not None and options.workers > 1
    if is_local and not options.json:
        print(f"\n{_NO_PLUGIN}")
    return 0


def _doctor(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from dasktile.doctor import run

    try:
        report = run(options.scheduler)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        return _failed(parser, "doctor", error)
    print(json.dumps(report.to_dict(), indent=2) if options.json else report)
    return 1 if report.problems else 0


def _failed(parser: argparse.ArgumentParser, command: str, error: Exception) -> int:
    """Say in one line why a command failed, and return its exit status."""
    # errors of Dask about chunks have a note that names the argument
    lines = [str(error) or type(error).__name__, *getattr(error, "__notes__", ())]
    text = " ".join("; ".join(lines).split())
    print(f"{parser.prog} {command}: error: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
