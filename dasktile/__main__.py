"""Command line: ``python -m dasktile demo`` runs the demo."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of the package and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m dasktile")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo", help="run array expressions on a local cluster, without dasktile and with it"
    )
    demo.add_argument("--workers", type=int, default=4, help="worker processes (default 4)")
    demo.add_argument(
        "--size", type=float, default=1.0, help="scales the length of every axis (default 1)"
    )
    demo.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options = parser.parse_args(arguments)
    if options.workers < 1:
        parser.error(f"--workers must be an integer >= 1; got {options.workers}")
    if not 0.05 <= options.size <= 20:
        parser.error(f"--size must be between 0.05 and 20; got {options.size}")

    # imported here: --help must not need the packages of the demo
    from dasktile.demo import report, run

    results = run(workers=options.workers, size=options.size)
    if options.json:
        print(json.dumps([result.to_dict() for result in results], indent=2))
    else:
        report(results)
    return 0 if all(result.same for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
