"""From a choice of blocks to a smaller, faster model: views, block specs, scopes, pruning, compression.

View -> BlockSpec (-> BlockCoupling) -> ScopeSpec -> keep mask. A mask says True for pruned in
`apply_mask` and `prune_blocks`, True for kept in `get_masks`, `block_mask` and `keep_blocks`.
"""

from __future__ import annotations

from .base import SparseBlock
from .compress import compress
from .coupling import BlockCoupling
from .criteria import constant, cubic, group_lasso_step, linear, magnitude, n_of_m
from .param import ParamBox, ParamRef
from .pruner import Pruner
from .rebuild import restructure, structure_of
from .scope import ScopeCoupling, ScopeSpec, keep_largest
from .spec import BlockSpec
from .structure import channel_groups, targets
from .view import View

__all__ = [
    "BlockCoupling",
    "BlockSpec",
    "ParamBox",
    "ParamRef",
    "Pruner",
    "ScopeCoupling",
    "ScopeSpec",
    "SparseBlock",
    "View",
    "channel_groups",
    "compress",
    "constant",
    "cubic",
    "group_lasso_step",
    "keep_largest",
    "linear",
    "magnitude",
    "n_of_m",
    "restructure",
    "structure_of",
    "targets",
]
