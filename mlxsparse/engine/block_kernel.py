"""Block-sparse operators by kernels: block_matmul.py, block_softmax.py and block_attention.py on a GPU."""

from __future__ import annotations

import mlx.core as mx
import numpy as np


from .block_index import BlockIndex, Side, Tables


class _Kernel:
    def sdd(self, a: mx.array, b: mx.array, index: BlockIndex, ta: bool, tb: bool, dense: bool) -> mx.array:
        raise NotImplementedError

    dsd = dds = sdd


KERNEL = _Kernel()
