"""What the commands share: a progress bar and early checks of output paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import MLXSparseError, PointCloudError


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int, float], None]]:
    """Callable (done, total, loss) that draws a tqdm bar on stderr."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise MLXSparseError("the command line needs tqdm: pip install 'mlxsparse[app]'") from error
    bar = tqdm(desc=label, unit="step", dynamic_ncols=True, mininterval=0.5)

    def show(done: int, total: int, loss: float) -> None:
        bar.total = total
        bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        bar.close()


def check_directory(path: str) -> None:
    """PointCloudError if the output directory `path` could not be made or written; makes nothing."""
    target = Path(path).absolute()
    while not target.exists() and target != target.parent:
        target = target.parent
    if not target.is_dir():
        raise PointCloudError(
            f"the output directory {path!r} cannot be made: {str(target)!r} is not a directory"
        )
    if not os.access(target, os.W_OK):
        raise PointCloudError(f"the output directory {path!r} cannot be made or written")


def check_output_file(path: str) -> None:
    """PointCloudError if a file at `path` could not be made."""
    target = Path(path)
    if target.is_dir():
        raise PointCloudError(f"the output {path!r} is a directory; name a file")
    if not target.parent.is_dir():
        raise PointCloudError(f"the output {path!r} lies in a directory that does not exist")
    if not os.access(target.parent, os.W_OK):
        raise PointCloudError(f"the output {path!r} lies in a directory that cannot be written")
