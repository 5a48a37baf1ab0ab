"""The `mlxsparse` command: one module per subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import mlx.core as mx

from .. import __version__
from ..errors import MLXSparseError
from . import demo, segment, train, view

COMMANDS = (train, segment, view, demo)


def parser() -> argparse.ArgumentParser:
    """Parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="mlxsparse", description="Label point clouds with sparse 3-D convolution."
    )
    top.add_argument("--version", action="version", version=f"mlxsparse {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2]
        description = (module.__doc__ or "").strip()
        sub = commands.add_parser(name, help=description.splitlines()[0], description=description)
        sub.add_argument(
            "--device", choices=("cpu", "gpu"), default="cpu", help="where to compute (default: %(default)s)"
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; exit status 0, 1 for data that cannot be used, 2 for wrong usage."""
    options = parser().parse_args(arguments)
    mx.set_default_device(mx.gpu if options.device == "gpu" else mx.cpu)
    try:
        status: int = options.run(options)
    except MLXSparseError as error:
        print(f"mlxsparse: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mlxsparse: interrupted", file=sys.stderr)
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
