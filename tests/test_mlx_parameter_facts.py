"""Facts about MLX's modules, parameters and strided arrays that mlxsparse.blocks is built on.

As tests/test_mlx_facts.py: a failing test means that MLX changed. A view of a parameter is bound to a slot
(module, key) because of the first group, reads and writes by reshapes and indices because of the second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_flatten

from tests.mlx_facts import cpu_device  # noqa: F401

X = mx.ones((2, 64))


def linear() -> nn.Linear:
    mx.random.seed(0)
    return nn.Linear(64, 64)


def loss_of(model: Any, x: mx.array) -> mx.array:
    return (model(x) ** 2).sum()


# Parameters -----------------------------------------------------------------------------


def test_assignment_in_place_keeps_the_array_and_its_aliases_see_it() -> None:
    a = mx.zeros(4)
    alias, part, copied = a, a[:2], mx.array(a)
    a[1] = 5
    a += 1
    a *= 2
    assert a is alias and alias.tolist() == [2, 12, 2, 2]
    assert part.tolist() == [0, 0] and copied.tolist() == [0, 0, 0, 0]


def test_a_module_s_attribute_is_its_dict_s_entry_and_a_write_shows_in_parameters() -> None:
    m = linear()
    assert m.weight is m["weight"]
    m.weight[:] = 3
    assert m.parameters()["weight"].sum().item() == 3 * 64 * 64
    with pytest.raises(TypeError, match="unhashable"):
        hash(m)


REPLACES: dict[str, Callable[[nn.Linear], Any]] = {
    "value_and_grad": lambda m: nn.value_and_grad(m, loss_of)(m, X),
    "optimizer": lambda m: optim.SGD(0.1).update(m, nn.value_and_grad(m, loss_of)(m, X)[1]),
    "update": lambda m: m.update({"weight": m.weight + 0}),
    "load_weights": lambda m: m.load_weights([(k, v + 0) for k, v in tree_flatten(m.parameters())]),
    "set_dtype": lambda m: m.set_dtype(mx.float16),
}
KEEPS: dict[str, Callable[[nn.Linear], Any]] = {
    "eval": lambda m: m.eval(), "train": lambda m: m.train(), "freeze": lambda m: m.freeze(),
    "forward": lambda m: mx.eval(m(X)), "identity apply": lambda m: m.apply(lambda a: a),
}  # fmt: skip


@pytest.mark.parametrize("name", REPLACES)
def test_the_array_is_replaced_by(name: str) -> None:
    m = linear()
    held = m.weight
    REPLACES[name](m)
    assert m.weight is not held


@pytest.mark.parametrize("name", KEEPS)
def test_the_array_is_kept_by(name: str) -> None:
    m = linear()
    held = m.weight
    KEEPS[name](m)
    assert m.weight is held


def test_tied_arrays_come_apart_in_value_and_grad() -> None:
    m = nn.Sequential(linear(), linear())
    m.layers[1].weight = m.layers[0].weight
    nn.value_and_grad(m, loss_of)(m, X)
    assert m.layers[1].weight is not m.layers[0].weight


def test_quantize_replaces_the_leaf_module() -> None:
    m = nn.Sequential(linear())
    leaf = m.layers[0]
    nn.quantize(m, 64, 4)
    assert m.layers[0] is not leaf and leaf.weight.dtype == mx.float32
    assert m.layers[0].weight.dtype == mx.uint32 and m.layers[0].weight.shape == (64, 8)


def test_a_boolean_array_is_a_parameter_and_set_dtype_leaves_it() -> None:
    m = linear()
    m.weight_keep = mx.ones((64, 64), mx.bool_)
    m.freeze(keys=["weight_keep"], recurse=False)
    assert "weight_keep" in m.parameters() and "weight_keep" not in m.trainable_parameters()
    m.set_dtype(mx.float16)
    assert m.weight_keep.dtype == mx.bool_


def test_unfreeze_empties_the_set_of_frozen_names_of_every_module_itself() -> None:
    m = nn.Sequential(linear())
    m.freeze()
    frozen = m.layers[0]._no_grad
    m.unfreeze()
    assert m.layers[0]._no_grad is frozen and frozen == set()


def test_a_write_inside_compile_with_captured_state_is_made_each_time() -> None:
    m = linear()

    def step(x: mx.array) -> mx.array:
        m.weight[:] = m.weight + 1
        return x

    before = m.weight[0, 0].item()
    fast = mx.compile(step, inputs=[m.state], outputs=[m.state])
    for _ in range(3):
        mx.eval(fast(X), m.state)
    assert m.weight[0, 0].item() == pytest.approx(before + 3)


def test_zeros_regrow_after_an_adam_step_and_a_mask_in_the_forward_has_no_gradient() -> None:
    m, optimizer = linear(), optim.Adam(0.1)
    keep = mx.arange(64) < 32
    for _ in range(2):
        m.weight = mx.where(keep, m.weight, 0)
        optimizer.update(m, nn.value_and_grad(m, loss_of)(m, X)[1])
    assert mx.abs(m.weight[:, 32:]).max().item() > 0
    gradient = mx.grad(lambda w: (X @ mx.where(keep, w, 0)).sum())(m.weight)
    assert mx.abs(gradient[:, 32:]).max().item() == 0


# Values ---------------------------------------------------------------------------------


def test_where_drops_nan_and_a_product_with_zero_does_not() -> None:
    a, mask = mx.array([np.nan, 1.0]), mx.array([True, False])
    assert mx.isnan(a * mx.array([0.0, 1.0])).tolist() == [True, False]
    assert mx.where(mask, 0, a).tolist() == [0, 1]


def test_the_inverse_of_an_integer_mask_is_no_mask() -> None:
    assert (~mx.array([1, 0])).tolist() == [-2, -1]
    assert (~mx.array([True, False])).tolist() == [False, True]
    with pytest.raises(ValueError):
        ~mx.array([1.0, 0.0])


def test_assignment_casts_to_the_destination() -> None:
    a = mx.zeros(2, mx.float16)
    a[:] = mx.array([1.0, 1e-9])
    assert a.dtype == mx.float16 and a.tolist() == [1, 0]


def test_as_strided_does_not_write_through_and_checks_no_bounds() -> None:
    a = mx.arange(6)
    window = mx.as_strided(a, (2, 2), (1, 1))
    window[:] = 9
    assert a.tolist() == [0, 1, 2, 3, 4, 5]
    mx.as_strided(a, (4, 4), (100, 1))  # not evaluated: it would read past the end, without an error


def test_reshapes_and_transposes_do_not_write_through() -> None:
    a = mx.zeros((2, 3))
    flat, same = a.reshape(-1), a.reshape(2, 3)
    flat[0] = 1
    same[:] = 2
    a.T[:] = 3
    assert a.sum().item() == 0
    one = mx.zeros(3)
    again = one.reshape(-1)
    again[:] = 1
    assert one.sum().item() == 0


def test_a_scatter_by_an_index_grid_round_trips() -> None:
    a = mx.arange(12)
    index = mx.array([[1, 4], [7, 10]])
    flat = a.reshape(-1)
    flat[index] = flat[index] * 10
    assert flat.tolist() == [0, 10, 2, 3, 40, 5, 6, 70, 8, 9, 100, 11] and a[1].item() == 1


def test_a_threshold_keeps_more_than_k_among_equals() -> None:
    scores = mx.ones(4)
    assert (scores >= mx.sort(scores)[-2]).sum().item() == 4
