"""The class of each point of a cloud."""

from __future__ import annotations

import numpy as np

from ..errors import PointCloudError
from ..io.cloud import LABEL_FIELDS, PointCloud, left_out_sentence, whole_numbers


def labels_of(cloud: PointCloud, class_field: str | None = None) -> np.ndarray:
    """Class number of each point, (N,) int64; NaN among whole numbers, which is no label, is -1.

    class_field: where they are, by default in the first of LABEL_FIELDS that has whole numbers (LAS:
    `classification` before them). PointCloudError if there is none.
    """
    las = cloud.format in ("las", "laz")
    usual = ("classification", *LABEL_FIELDS) if las else LABEL_FIELDS
    for name in usual if class_field is None else (class_field,):
        values = np.asarray(cloud.fields.get(name, ()))
        if values.shape != (len(cloud),) or values.dtype.kind not in "iufb":
            continue
        if values.dtype.kind == "f":
            found = whole_numbers(values)
        else:  # what an int64 does not hold is no class
            fits = values.dtype.kind != "u" or np.all(values < 2.0**63)
            found = values.astype(np.int64) if fits else None
        if found is not None:
            return found
    if class_field is not None:
        raise PointCloudError(
            f"{cloud.path!r} has no field {class_field!r} of one whole number a point, to be its classes; "
            f"it has {sorted(cloud.fields)}{left_out_words(cloud)}"
        )
    raise PointCloudError(
        f"{cloud.path!r} has no class of each point: a field {' or '.join(LABEL_FIELDS)} with whole numbers "
        f"is needed to train, or the name of another (--classes FIELD); it has {sorted(cloud.fields)}"
        f"{left_out_words(cloud)}"
    )


def left_out_words(cloud: PointCloud) -> str:
    """What the reader left out of the cloud, to end a message about a field that is not there."""
    words = cloud.details.get("left out")
    return f"; {left_out_sentence(words, len(cloud))}" if words else ""
