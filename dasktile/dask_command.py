"""The command ``dask dasktile``, which Dask finds by the entry point group ``dask_cli``."""

from __future__ import annotations

import click

from dasktile.__main__ import main


# Options, --help among them, are those of the package's own command line.
@click.command(
    "dasktile",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="The command line of dasktile.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run ``python -m dasktile`` with the same arguments."""
    raise SystemExit(main(arguments))
