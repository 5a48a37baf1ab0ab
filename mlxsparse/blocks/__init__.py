"""From a choice of blocks to a smaller, faster model: views, block specs, scopes, pruning, compression.

View -> BlockSpec (-> BlockCoupling) -> ScopeSpec -> keep mask. A mask says True for pruned in
`apply_mask` and `prune_blocks`, True for kept in `get_masks`, `block_mask` and `keep_blocks`.
"""

from __future__ import annotations

from .base import SparseBlock
from .coupling import BlockCoupling
from .param import ParamBox, ParamRef
from .scope import ScopeCoupling, ScopeSpec, keep_largest
from .spec import BlockSpec
from .view import View

__all__ = [
    "BlockCoupling",
    "BlockSpec",
    "ParamBox",
    "ParamRef",
    "ScopeCoupling",
    "ScopeSpec",
    "SparseBlock",
    "View",
    "keep_largest",
]
