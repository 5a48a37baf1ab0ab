"""What the commands share: a progress bar, option types, early checks of output paths."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import MLXSparseError, PointCloudError
from ..io.cloud import EXTENSIONS, PointCloud, atomic_write, check_target
from ..tasks.data import Part, Settings, split
from ..tasks.training import CHECKPOINT


class UsageError(MLXSparseError):
    """The command line asks for what cannot be: exit status 2."""


@contextmanager
def progress_bar(label: str, unit: str = "step") -> Iterator[Callable[..., None]]:
    """Callable (done, total, loss=None) that draws a bar on a terminal, and elsewhere prints each tenth."""
    try:
        from tqdm import tqdm
    except ImportError:
        tqdm = None
    if tqdm is None or not sys.stderr.isatty():
        yield _print_tenths(label)
        return
    bar = tqdm(desc=label, unit=unit, dynamic_ncols=True, mininterval=0.5, file=sys.stderr)

    def show(done: int, total: int, loss: float | None = None) -> None:
        bar.total = total
        if bar.n == 0 and done > 1:
            bar.initial = bar.n = done - 1  # a resumed training: do not count what was done before as speed
        if loss is not None:
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        bar.close()


def _print_tenths(label: str) -> Callable[..., None]:
    shown = 0

    def show(done: int, total: int, loss: float | None = None) -> None:
        nonlocal shown
        if 10 * done // total > shown:
            shown = 10 * done // total
            print(
                f"{label}: {10 * shown}%" + (f", loss {loss:.3f}" if loss is not None else ""),
                file=sys.stderr,
            )

    return show


def need_library(name: str, what: str) -> None:
    """MLXSparseError that says how to install the module `name`, which `what` needs, if it is not there."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise MLXSparseError(
            f"{what} needs {name}, which is not installed: pip install 'mlxsparse[app]'"
        ) from error


# ---------------------------------------------------------------- clouds

VAL_SPLIT = 0.2  # where --val-split is not given


def split_clouds(
    clouds: Sequence[PointCloud], settings: Settings, val_split: float | None, class_field: str | None
) -> tuple[list[Part], list[Part]]:
    """(training, held-out) parts of each cloud, as `split` makes them; says which have no labelled point.

    PointCloudError where no cloud has one, or where a `val_split` that was given can hold out nothing.
    """
    share = VAL_SPLIT if val_split is None else val_split
    parts = [split(cloud, settings, share, class_field) for cloud in clouds]
    training, held_out = [a for a, _ in parts], [b for _, b in parts]
    bare = [repr(cloud.path) for cloud, part in zip(clouds, training) if not part.labelled]
    told = f"no labelled point with finite coordinates in {', '.join(bare)}"
    if len(bare) == len(clouds):
        raise PointCloudError(f"{told}; the classes are {', '.join(map(str, settings.classes))}")
    if bare:
        print(f"neither trained on nor scored: {told}", file=sys.stderr)
    if val_split != 0 and not any(part.labelled for part in held_out):
        told = "a cloud of one labelled point has no part to hold out"
        if val_split:
            raise PointCloudError(f"--val-split {val_split:g}: {told}; go without a score by --val-split 0")
        print(f"no score: {told}")
    return training, held_out


# ---------------------------------------------------------------- output


def check_named(path: str, what: str) -> None:
    """UsageError if `path` is empty, as an unset variable of a shell is: it would be the folder one is in."""
    if not path:
        raise UsageError(f"{what} is an empty path; name one ('.' is the folder you are in)")


def check_other(path: str, read: str, what: str) -> None:
    """UsageError if the output `path` is `read`, which the command reads."""
    if all(map(os.path.exists, (path, read))) and os.path.samefile(path, read):
        raise UsageError(f"the output {path!r} is {what}; name another")


def check_once(paths: Sequence[str]) -> None:
    """UsageError if two of the clouds are one file, whose points would count twice."""
    seen: dict[str, str] = {}
    for path in paths:
        place = os.path.realpath(path)
        if place in seen:
            before = f", as {seen[place]!r} before" * (seen[place] != path)
            raise UsageError(f"{path!r} is given twice{before}: name it once")
        seen[place] = path


def check_directory(path: str, weights: str = "") -> None:
    """PointCloudError if the output directory `path` could not be made or written; makes nothing.

    UsageError if it is empty, or `weights`, a directory that is read.
    """
    check_named(path, "the output directory")
    check_other(path, weights, "where the weights are read from")
    target = Path(path).absolute()
    while not target.exists() and target != target.parent:
        target = target.parent
    if not target.is_dir():
        raise PointCloudError(
            f"the output directory {path!r} cannot be made: {str(target)!r} is not a directory"
        )
    if not os.access(target, os.W_OK):
        raise PointCloudError(f"the output directory {path!r} cannot be made or written")


def make_directory(path: str) -> Path:
    """The output directory, made if need be, without temporary files that a killed command left in it."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (CHECKPOINT, "model.safetensors", "config.json", "report.json"):
            for left in folder.glob(f".{name}.*.tmp"):
                with contextlib.suppress(OSError):
                    left.unlink()
    except OSError as error:
        raise PointCloudError(f"the output directory {path!r} cannot be made: {error}") from error
    return folder


def check_file(path: str) -> None:
    """PointCloudError if the output `path` is a directory, a device or a pipe."""
    if os.path.isdir(path):
        raise PointCloudError(f"the output {path!r} is a directory; name a file")
    check_target(path)


def check_output_file(path: str, cloud: str) -> None:
    """PointCloudError if a file at `path` could not be made; UsageError if it is `cloud`, which is read."""
    check_named(path, "the output")
    target = Path(path)
    check_other(path, cloud, "the cloud itself")
    check_file(path)
    if not target.parent.is_dir():
        raise PointCloudError(f"the output {path!r} lies in a directory that does not exist")
    if not os.access(target.parent, os.W_OK):
        raise PointCloudError(f"the output {path!r} lies in a directory that cannot be written")


def check_label_extension(path: str) -> None:
    """UsageError if the name of `path` says no format that labels are written in."""
    if Path(path).suffix.lower() not in ("", ".label", *EXTENSIONS):
        raise UsageError(
            f"the output {path!r} has an extension that says no format; known are "
            f"{', '.join([*EXTENSIONS, '.label'])}"
        )


def check_seed(seed: int) -> None:
    """UsageError if `seed` is none that every generator takes."""
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed must be at least 0 and below 2**63, got {seed}")


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON whole or not at all; NaN (the score of a class that is not there) becomes null."""

    with atomic_write(path) as stream:
        stream.write((json.dumps(_without_nan(value), indent=2) + "\n").encode())


def _without_nan(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _without_nan(v) for key, v in item.items()}
    if isinstance(item, (list, tuple)):
        return [_without_nan(v) for v in item]
    return None if isinstance(item, float) and item != item else item


# ---------------------------------------------------------------- option types


def _number(kind: Callable[[str], Any], text: str, wanted: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = _number(int, text, "a whole number")
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def positive_float(text: str) -> float:
    """A finite number above 0."""
    value = _number(float, text, "a finite number above 0")
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number above 0")
    return value


def fraction(text: str) -> float:
    """A number in [0, 1)."""
    value = _number(float, text, "a number in [0, 1)")
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1)")
    return value


def channels(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between."""
    try:
        return tuple(positive(part) for part in text.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 16,32,64,64") from None


def classes(text: str) -> tuple[int, ...]:
    """Class numbers with commas between."""
    return tuple(_number(int, part, "a class number, as 0 or 0,1,7") for part in text.split(","))


def words(text: str) -> tuple[str, ...]:
    """Names with commas between; `none` is no name, and an unset variable of a shell is refused."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} has no name: write none for none")
    return () if text == "none" else found
