"""View and ParamRef: bound to slots, checked bounds, overlap, pure twins; against NumPy's strides."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import mlx.optimizers as optim
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from mlxsparse.blocks import BlockSpec, ParamBox, ParamRef, View
from mlxsparse.blocks.coupling import overlap
from mlxsparse.errors import DTypeError, MLXSparseError, OverlapError, ShapeError, StaleViewError


class Net(mlx.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [mlx.nn.Linear(8, 6), mlx.nn.Linear(6, 64), mlx.nn.Linear(64, 64)]

    def __call__(self, x):
        for layer in self.layers:
            x = mx.tanh(layer(x))
        return x


def loss_of(net, x):
    return (net(x) ** 2).sum()


X = mx.array(np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32))


def train_step(net, optimizer):
    _, gradients = mlx.nn.value_and_grad(net, loss_of)(net, X)
    optimizer.update(net, gradients)
    mx.eval(net.parameters())


def value_and_grad_only(net):
    mlx.nn.value_and_grad(net, loss_of)(net, X)


def compiled(net):
    optimizer = optim.Adam(1e-2)
    optimizer.init(net.trainable_parameters())
    state = [net.state, optimizer.state]

    def step(x):
        loss, gradients = mlx.nn.value_and_grad(net, loss_of)(net, x)
        optimizer.update(net, gradients)
        return loss

    fast = mx.compile(step, inputs=state, outputs=state)
    fast(X)
    mx.eval(state)


CHANGES = {
    "value_and_grad": value_and_grad_only,
    "Adam": lambda net: train_step(net, optim.Adam(1e-2)),
    "SGD": lambda net: train_step(net, optim.SGD(1e-2)),
    "compiled step": compiled,
    "load_weights": lambda net: net.load_weights([(k, v + 1) for k, v in tree_flatten(net.parameters())]),
    "set_dtype": lambda net: net.set_dtype(mx.float16),
    "eval and freeze": lambda net: net.eval().freeze(),
}


@pytest.mark.parametrize("bind", ["module", "path"])
@pytest.mark.parametrize("change", CHANGES)
def test_writes_through_after(change, bind):
    net = Net()
    if bind == "module":
        view = View((net.layers[0], "weight"), (2, 8), (24, 1))
    else:
        view = View.of(net, "layers.0.weight", (2, 8), (24, 1))
    CHANGES[change](net)
    np.testing.assert_array_equal(np.array(view.data), np.array(net.layers[0].weight)[[0, 3]])
    held = net.layers[0].weight
    view.data = 7
    assert net.layers[0].weight is held  # the array's identity stays
    weight = np.array(net.layers[0].weight)
    assert (weight[[0, 3]] == 7).all() and (weight[[1, 2, 4, 5]] != 7).any()
    assert dict(tree_flatten(net.parameters()))["layers.0.weight"].tolist() == weight.tolist()


def test_a_write_is_seen_by_the_next_compiled_step():
    net = Net()
    state = [net.state]
    forward = mx.compile(lambda x: net(x).sum(), inputs=state)
    forward(X)
    View.of(net, "layers.2.weight").data = 0
    View.of(net, "layers.2.bias").data = 0
    assert forward(X).item() == 0


def test_quantize_makes_a_view_stale():
    net = Net()
    view = View.of(net, "layers.2.weight")
    mlx.nn.quantize(net, 64, 4, class_predicate=lambda path, m: path.endswith("2"))
    with pytest.raises(StaleViewError, match="layers.2.weight"):
        _ = view.data
    with pytest.raises(StaleViewError):
        view.data = 0


def test_other_shapes_and_missing_parameters_are_stale():
    net = Net()
    view = View((net.layers[0], "weight"))
    net.layers[0].weight = mx.zeros((6, 9))
    with pytest.raises(StaleViewError, match="make the view again"):
        _ = view.data
    del net.layers[0]["weight"]
    with pytest.raises(StaleViewError, match="no parameter"):
        _ = view.data
    with pytest.raises(StaleViewError):
        View.of(net, "layers.9.weight")
    with pytest.raises(MLXSparseError, match="no array"):
        View((net, "layers"))


@st.composite
def strided(draw):
    """(parameter shape, view shape, stride, offset) within bounds."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    size = int(np.prod(shape))
    sizes = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    stride = tuple(draw(st.integers(-6, 8)) for _ in sizes)
    reach = [(n - 1) * s for n, s in zip(sizes, stride)] if np.prod(sizes) else []
    low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    offset = draw(st.integers(-low, max(-low, size - 1 - high)))
    return shape, sizes, stride, offset


@settings(deadline=None, max_examples=150)
@given(strided())
def test_reads_writes_and_bounds_are_those_of_strides(case):
    shape, sizes, stride, offset = case
    flat = np.arange(np.prod(shape), dtype=np.float32)
    p = mx.array(flat.reshape(shape))
    index = np.zeros(sizes, np.int64) + offset
    for axis, (n, s) in enumerate(zip(sizes, stride)):
        index += np.expand_dims(np.arange(n) * s, [a for a in range(len(sizes)) if a != axis])
    if index.size and (index.min() < 0 or index.max() >= flat.size):
        with pytest.raises(ShapeError, match="reaches"):
            View(p, sizes, stride, offset=offset)
        return
    view = View(p, sizes, stride, offset=offset)
    np.testing.assert_array_equal(np.array(view.data), flat[index] if index.size else np.zeros(sizes))
    assert view.numel() == index.size and view.ndim == len(sizes)
    assert view.cosize == (index.max() - index.min() + 1 if index.size else 0)
    assert view.is_injective == (len(np.unique(index)) == index.size)
    assert view.is_complete == (len(np.unique(index)) == flat.size)
    value = mx.array(np.arange(index.size, dtype=np.float32).reshape(sizes) + 100)
    if view.is_injective:
        written = np.array(view.write(p, value))
        expected = flat.copy()
        expected[index] = np.array(value)
        np.testing.assert_array_equal(written, expected.reshape(shape))
        np.testing.assert_array_equal(np.array(p), flat.reshape(shape))  # the twin is pure
    else:
        with pytest.raises(OverlapError):
            view.data = value
        view.data = 5  # all agree
        assert (np.array(view.data) == 5).all()
    if index.size:
        at = mx.array(np.stack(np.unravel_index(np.arange(index.size), sizes), axis=-1).astype(np.int32))
        assert view.linear_offset(at).tolist() == index.reshape(-1).tolist()
        expected_index = np.stack(np.unravel_index(index.reshape(-1), shape), axis=-1)
        assert view.to_param_index(at).tolist() == expected_index.tolist()
        if len(shape) == 2:
            assert view.to_param_rc(at).tolist() == expected_index.tolist()


def test_permutations_take_the_reshape_path_and_agree_with_the_grid():
    p = mx.array(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    view = View(p, (4, 2, 3), (1, 12, 4))
    assert view.strides.axes is not None and View(p, (2, 3), (12, 4), offset=1).strides.axes is None
    np.testing.assert_array_equal(np.array(view.data), np.array(p).transpose(2, 0, 1))
    view.data = mx.zeros((4, 2, 3)) + mx.arange(4)[:, None, None]
    assert (np.array(view.param.value) == np.arange(4)).all()


def test_gradients_go_through_read_and_write():
    view = View(mx.zeros((4, 6)), (2, 3), (12, 2), offset=1)
    p = mx.array(np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32))
    gradient = np.array(mx.grad(lambda p: (view.read(p) ** 2).sum())(p))
    seen = np.zeros(24, bool)
    seen[view.strides.grid] = True
    np.testing.assert_allclose(gradient.reshape(-1), np.where(seen, 2 * np.array(p).reshape(-1), 0))
    gradient = np.array(mx.grad(lambda p: view.write(p, mx.zeros((2, 3))).sum())(p))
    np.testing.assert_array_equal(gradient.reshape(-1), np.where(seen, 0, 1))


def test_pure_twins_compile():
    view = View(mx.zeros((4, 6)))
    p = mx.ones((4, 6))
    mask = mx.array([[True, False, False], [False, False, True]])
    out = mx.compile(lambda p: view.masked(p, mask, (2, 2)))(p)
    assert out.sum().item() == 16
    out = mx.compile(lambda p: view.multiplied(p, mx.full((2, 3), 2.0), (2, 2)))(p)
    assert out.sum().item() == 48
    twice = View(mx.zeros((4, 6)), (2, 4), (0, 1))
    with pytest.raises(OverlapError):
        mx.compile(lambda p: twice.write(p, mx.zeros((2, 4))))(p)


def test_a_mask_zeroes_nan_and_must_be_boolean_and_injective():
    view = View(mx.array([[np.nan, 1.0], [np.inf, 2.0]]))
    view.apply_mask(mx.array([[True, False], [True, False]]), (1, 1))
    assert view.data.tolist() == [[0, 1], [0, 2]]
    with pytest.raises(DTypeError, match="bool, got .*int32; compare it with 0"):
        view.apply_mask(mx.array([[1, 0], [1, 0]]), (1, 1))
    with pytest.raises(DTypeError, match=r"bool, got ndarray; pass mx.array\(mask\)"):
        view.apply_mask(np.ones((2, 2), bool), (1, 1))
    with pytest.raises(ShapeError):
        view.apply_mask(mx.array([[True, False]]), (1, 1))
    with pytest.raises(OverlapError):
        View(mx.ones(4), (2, 4), (0, 1)).apply_mask(mx.array([[True], [False]]), (1, 4))
    with pytest.raises(OverlapError):
        View(mx.ones(4), (2, 4), (0, 1)).apply_multiplier(mx.ones((2, 1)), (1, 4))
    with pytest.raises(ShapeError, match="divide"):
        view.apply_multiplier(mx.ones((2, 1)), (1, 3))


def test_what_a_view_takes():
    net = Net()
    linear = net.layers[0]
    slot = View((linear, "weight"))
    same = [
        View(ParamRef(linear, "weight")),
        View.of(net, "layers.0.weight"),
        View(slot),
        View.from_existing(slot),
    ]
    assert all(view == slot and hash(view) == hash(slot) for view in same)
    assert View.from_existing(slot) is slot
    assert View(slot, (48,)) != slot and View((linear, "bias")) != slot
    part = View(linear.weight, (2, 2), (8, 1), offset=3)
    assert View(part).offset == 3 and View(part).stride == (8, 1) and View(part) == part
    assert View(part, (3,)).offset == 0
    assert View(ParamBox(mx.ones(3))).data.tolist() == [1, 1, 1]
    box = ParamBox(mx.ones(3))
    View(box).data = 2
    assert box.value.tolist() == [2, 2, 2]
    assert "layers.0.weight" in repr(same[1]) and "offset=3" in repr(part)
    for wrong in (3, "weight", (linear, 3)):
        with pytest.raises(DTypeError):
            View(wrong)
    with pytest.raises(ShapeError, match="one length"):
        View(linear.weight, (2, 2), (1,))
    with pytest.raises(ShapeError, match="shape"):
        View(linear.weight, None, (1,))
    with pytest.raises(ShapeError, match="2-D"):
        View(mx.ones(3)).to_param_rc(mx.array([[0]]))
    with pytest.raises(ShapeError, match="does not fit"):
        slot.data = mx.ones((5, 8))


def test_a_view_of_a_view_with_a_shape_is_one_of_the_parameter():
    window = View(ParamBox(mx.arange(24).reshape(4, 6)), (2, 2), (6, 1), offset=7)
    assert View(window).data.tolist() == [[7, 8], [13, 14]]
    assert View(window, (2, 2)).data.tolist() == [[0, 1], [2, 3]]
    assert View(window, (2, 2), (6, 1), offset=7) == window


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: View(p, (2.9, 4)), "shape must be an integer, got 2.9"),
        (lambda p: View(p, ("2", 4)), "shape must be an integer"),
        (lambda p: View(p, 4), "shape must be a sequence"),
        (lambda p: View(p, (2, 4), (1.9, 1)), "stride must be an integer, got 1.9"),
        (lambda p: View(p, (2, 4), offset=2.5), "offset must be an integer, got 2.5"),
        (lambda p: View(p, (2, 4), offset=True), "offset must be an integer, got True"),
        (lambda p: View(p).apply_mask(mx.zeros((1, 1), mx.bool_), (4.5, 6)), "block must be an integer"),
        (lambda p: View.block_view_of(p, (2.5, 6)), "block must be an integer, got 2.5"),
        (lambda p: View.broadcast_block_to_element(p, (True, 2)), "block must be an integer, got True"),
    ],
)
def test_what_is_no_integer_is_not_cut_to_one(call, words):
    with pytest.raises(ShapeError, match=words):
        call(mx.zeros((4, 6)))


def test_integers_of_numpy_are_integers():
    view = View(mx.zeros((4, 6)), np.array([2, 4]), (np.int64(6), np.uint8(1)), offset=np.int32(1))
    assert view == View(view, (2, 4), (6, 1), offset=1) and type(view.offset) is type(view.shape[0]) is int


def test_writing_casts_to_the_parameter():
    view = View(mx.zeros((2, 2), mx.bfloat16))
    view.data = np.array([[1.5, 2], [3, 4]])
    assert view.data.dtype == mx.bfloat16 and view.data.astype(mx.float32).tolist() == [[1.5, 2], [3, 4]]


def test_an_index_past_int32_is_refused():
    view = View(mx.zeros((1,)))
    object.__setattr__(view.strides, "offset", 2**31)
    with pytest.raises(MLXSparseError, match="2\\*\\*31"):
        view.linear_offset(mx.array([[0]]))


def test_elements_that_views_share_are_marked(monkeypatch):
    """np.unique hashes them from NumPy 2.3 on, which took seconds for the weight of a wide layer."""
    for name in ("unique", "intersect1d"):
        monkeypatch.delattr(np, name)
    net = mlx.nn.Linear(6, 4)
    even, odd, rows = (
        BlockSpec(View(ParamRef(net, "weight"), shape, stride, offset=offset), (1, 1))
        for shape, stride, offset in (((12, 1), (2, 1), 0), ((12, 1), (2, 1), 1), ((2, 6), (12, 1), 0))
    )
    assert overlap(even, rows) and overlap(odd, rows) and not overlap(even, odd)
    assert not View(mx.zeros(5), (3, 2), (1, 1)).is_injective
    assert View(mx.zeros(4), (3, 2), (1, 1)).is_complete
