"""AttentionDispatcher: a program over a canvas."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import mlx.core as mx

from ..blocksparse.check import check_float, check_shape, whole_number
from ..errors import DTypeError
from .canvas import CanvasLayout, Pair, mask_to_index_pairs
from .program import connections, replace_earlier
from .relation import lay_out, relation_of_pairs


class AttentionDispatcher:
    """Attention of a program over a canvas; index pairs and block layout are worked out here, once.

    Args:
        layout: the CanvasLayout.
        program: Connections, or a mapping (src, dst) -> ConnectionProgram or MaskSpec.
        block: rows of a block; by default what costs least.
        fallback: for a tile that meets nothing of its target, as in `mask_to_index_pairs`.
        fired: triggers of the connections that count.

    Attributes: connections, those that count; pairs, their index pairs, a list each; compiled, the
    CompiledProgram. Called with q (Z, Hq, N, D), k (Z, Hk, N, D), v (Z, Hk, N, Dv) over the canvas's N
    positions it returns (Z, Hq, N, Dv): one softmax for each query over the union of its keys, 0 without any.
    """

    def __init__(
        self,
        layout: CanvasLayout,
        program: Any,
        *,
        block: int | None = None,
        fallback: str = "drop",
        fired: Collection[str] = (),
    ):
        if not isinstance(layout, CanvasLayout):
            raise DTypeError(
                f"layout is a {type(layout).__name__}, wanted a CanvasLayout; over voxels use "
                "VoxelLayout.compile(program)"
            )
        self.layout = layout
        self.connections = connections(program, layout.regions, fired)
        self.pairs: list[list[Pair]] = [
            mask_to_index_pairs(c.program.mask_spec, layout, c.src, c.dst, fallback=fallback)
            for c in self.connections
        ]
        size = None if block is None else whole_number("block", block, 1)
        relations = [relation_of_pairs(pairs, layout.num_positions) for pairs in self.pairs]
        replace_earlier([r.query for r in relations], self.connections, list(range(len(relations))))
        self.compiled = lay_out(relations, layout.num_positions, size)

    def __call__(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float | mx.array | None = None,
        return_lse: bool = False,
    ) -> Any:
        check_float("q", q)
        check_shape("q", q, (None, None, self.layout.num_positions, None), f" to fit {self.layout}")
        return self.compiled.attend_batched(q, k, v, scale=scale, return_lse=return_lse)

    def __repr__(self) -> str:
        return f"AttentionDispatcher({len(self.connections)} connections, {self.compiled})"
