"""The `mlxsparse` command: one module per subcommand, listed in COMMANDS."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import mlx.core as mx

from .. import __version__
from ..backend import executor
from ..errors import DeviceError, MLXSparseError
from . import demo, info, prune, segment, train, tune, view
from .common import UsageError

#: A command is a module with a docstring, whose first line is its help, add_arguments(parser) and
#: run(options) -> status.
COMMANDS = (demo, train, segment, view, prune, info, tune)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"mlxsparse: error: {message} (see `{self.prog} --help`)\n")


def parser() -> argparse.ArgumentParser:
    """Parser of the whole command line."""
    top = Parser(prog="mlxsparse", description="Label point clouds with sparse 3-D convolution.")
    top.add_argument("--version", action="version", version=f"mlxsparse {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2]
        description = (module.__doc__ or "").strip()  # none under python -OO
        sub = commands.add_parser(
            name, help=description.partition("\n")[0], description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        # "-1,0" and "-1=noise" are values, as later versions of Python take them: no option begins so.
        sub._negative_number_matcher = re.compile(r"-\d")
        sub.add_argument(
            "--device", choices=("cpu", "gpu"), default="cpu", help="where to compute (default: %(default)s)"
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return top


def set_device(name: str) -> None:
    """Make "cpu" or "gpu" MLX's default device; UsageError if this machine has none."""
    before = mx.default_device()
    try:
        mx.set_default_device(mx.gpu if name == "gpu" else mx.cpu)
        executor()
    except (DeviceError, RuntimeError, ValueError) as error:
        mx.set_default_device(before)
        reason = " ".join(str(error).split())
        raise UsageError(
            f"--device {name}: MLX has no such device here, only cpu ({reason})"
        ) from None


class _Ended(BaseException):
    """A signal that ends the process: what is half-written is cleaned up first."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _ending_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end what runs inside as SIGINT does, in the main thread, where Python can."""

    def end(number: int, _: Any) -> NoReturn:
        raise _Ended(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    here = threading.current_thread() is threading.main_thread()
    ours = [n for n in numbers if here and signal.getsignal(n) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Warnings are one line each on stderr, without the place in the code."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"mlxsparse: {' '.join(str(message).split())}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)  # whatever the process made of them before
        warnings.showwarning = show
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; exit status 0, 1 for data that cannot be used, 2 for wrong usage, 128 and its number
    for a signal."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started the process, as by `>&-`
            setattr(sys, name, open(os.devnull, "w"))
    options = parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text
    try:
        with _ending_by_signals(), _warnings_as_lines():
            set_device(options.device)
            status: int = options.run(options)
            sys.stdout.flush()
            return status
    except BrokenPipeError:  # the reader of our output has gone, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UsageError as error:
        return _complain(error, 2)
    except (MLXSparseError, OSError) as error:
        return _complain(error, 1)
    except MemoryError as error:
        return _complain(MLXSparseError(f"out of memory: {error}"), 1)
    except KeyboardInterrupt:
        print("mlxsparse: interrupted", file=sys.stderr)
        return 130
    except _Ended as ended:
        print("mlxsparse: ended by a signal", file=sys.stderr)
        return 128 + ended.number


def _complain(error: Exception, status: int) -> int:
    print(f"mlxsparse: error: {' '.join(str(error).split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
