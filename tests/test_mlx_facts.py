"""Facts about MLX that mlxsparse is built on, one small test each, named after the fact.

A failing test here means that MLX changed, not that mlxsparse broke: read the code that relies on the fact
before changing the test. The suite runs on the oldest and the newest supported MLX. Facts that can crash the
interpreter run in a process of their own. This file: trees, function transformations and custom functions;
memory, threads, arithmetic, kernels, modules: test_mlx_{memory,numeric,kernel,parameter}_facts.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map

from tests.mlx_facts import MLX_VERSION, cpu_device, run_python  # noqa: F401

TRACED = "during function transformations"


class Record(tuple[Any, ...]):
    """A tuple subclass that notes what it is rebuilt from; as SparseTensor is one."""

    built: list[tuple[str, list[Any]]] = []

    def __new__(cls, leaves: Iterable[Any] = ()) -> Record:
        self = super().__new__(cls, leaves)
        cls.built.append((type(leaves).__name__, list(self)))
        return self


def record(*leaves: Any) -> Record:
    value = Record(leaves)
    Record.built.clear()
    return value


# Trees ----------------------------------------------------------------------------------


def test_tree_map_rebuilds_a_tuple_subclass_from_a_generator() -> None:
    out = tree_map(lambda leaf: leaf * 2, record(mx.ones(2), 3))
    assert type(out) is Record and out[1] == 6
    assert [kind for kind, _ in Record.built] == ["generator"]


@pytest.mark.parametrize("transform", [mx.compile, mx.checkpoint])
def test_compile_and_checkpoint_rebuild_a_tuple_subclass_from_lists(transform: Any) -> None:
    out = transform(lambda x: tuple.__new__(Record, [x[0] * 2, x[1]]))(record(mx.ones(2), mx.zeros(3)))
    assert type(out) is Record and out[0].tolist() == [2, 2]
    assert {kind for kind, _ in Record.built} == {"list"}
    # One of the rebuilds holds placeholders, so __new__ must not look at its leaves.
    assert any(not isinstance(leaf, mx.array) for _, leaves in Record.built for leaf in leaves)


@pytest.mark.parametrize("transform", [mx.compile, mx.checkpoint])
def test_placeholder_leaves_are_bare_objects(transform: Any) -> None:
    """Before 0.32.1 they are capsules: code that asks "is it an mx.array" is right in every version."""
    transform(lambda x: tuple.__new__(Record, [x[0] * 2]))(record(mx.ones(2)))
    names = {type(leaf).__name__ for _, leaves in Record.built for leaf in leaves}
    assert names == {"array", "object" if MLX_VERSION >= (0, 32, 1) else "PyCapsule"}


@pytest.mark.parametrize("transform", [mx.compile, mx.checkpoint])
def test_attributes_of_a_tuple_subclass_do_not_survive_compile_and_checkpoint(transform: Any) -> None:
    value = record(mx.ones(2))
    value.__dict__["key"] = "identity"
    seen: list[bool] = []

    def body(x: Record) -> Record:
        seen.append("key" in x.__dict__)
        return x

    out = transform(body)(value)
    assert seen == [False] and "key" not in out.__dict__


def test_compile_keeps_constants_among_the_leaves_and_retraces_when_one_changes() -> None:
    compiled = mx.compile(lambda x: Record([x[0] * x[1], x[1], x[2]]))
    for factor in (3, 4, 3):
        out = compiled(record(mx.ones(2), factor, None))
        assert out[0].tolist() == [factor, factor] and out[1:] == (factor, None)


def test_grad_of_a_tuple_subclass_is_one_with_gradient_leaves() -> None:
    out = mx.grad(lambda x: (x[0] * 2).sum())(record(mx.ones(2), mx.zeros(3)))
    assert type(out) is Record
    assert out[0].tolist() == [2, 2] and out[1].tolist() == [0, 0, 0]


def test_grad_for_an_argument_with_a_leaf_that_is_no_array_raises() -> None:
    with pytest.raises(ValueError, match="only arrays"):
        mx.grad(lambda x: x[0].sum())(record(mx.ones(2), 3))


def test_gradients_pass_through_checkpoint_by_a_tuple_subclass_with_integer_and_constant_leaves() -> None:
    def loss(w: mx.array) -> mx.array:
        return mx.checkpoint(lambda x: (x[0] ** 2).sum() * x[2])(record(w * 2, mx.arange(3), 5))

    assert mx.grad(loss)(mx.ones(3)).tolist() == [40, 40, 40]


def test_eval_and_async_eval_take_a_tuple_subclass_with_constant_leaves() -> None:
    value = record(mx.ones(2) * 2, 3, None)
    mx.async_eval(value)
    mx.eval(value)
    assert value[0].tolist() == [2, 2]


PLAIN_CLASS = """
class Plain:
    def __init__(self, feats):
        self.feats = feats
"""


def test_a_plain_class_gives_zero_gradients_through_checkpoint() -> None:
    done = run_python(
        PLAIN_CLASS
        + """
def loss(w):
    return mx.checkpoint(lambda x: (x.feats ** 2).sum())(Plain(w * 2))
print(mx.grad(loss)(mx.ones(3)).tolist())
"""
    )
    assert done.stdout.strip() == "[0.0, 0.0, 0.0]", done.stderr  # right would be 8


def test_a_plain_class_as_result_of_checkpoint_crashes() -> None:
    done = run_python(
        PLAIN_CLASS
        + """
print(mx.grad(lambda w: mx.checkpoint(lambda w: Plain(w * w))(w).feats.sum())(mx.ones(3)).tolist())
"""
    )
    assert done.returncode < 0 and not done.stdout, (done.stdout, done.stderr)


def test_compile_refuses_a_plain_class_as_argument_and_returns_a_dead_array_in_one() -> None:
    done = run_python(
        PLAIN_CLASS
        + """
try:
    mx.compile(lambda x: x.feats * 2)(Plain(mx.ones(3)))
except ValueError as error:
    print("argument:", error)
try:
    mx.eval(mx.compile(lambda w: Plain(w * 2))(mx.ones(3)).feats)
except RuntimeError as error:
    print("result:", error)
"""
    )
    assert "argument: [compile] Function arguments must be trees" in done.stdout, done.stderr
    assert "result: [eval] Attempting to eval an array without a primitive" in done.stdout, done.stderr


def test_a_traced_array_kept_after_its_trace_is_dead() -> None:
    kept: list[mx.array] = []

    def body(x: mx.array) -> mx.array:
        kept.append(x * 3)
        return x + 1

    mx.eval(mx.compile(body)(mx.ones(3)))
    with pytest.raises(RuntimeError, match="without a primitive"):
        mx.eval(kept[0])


# Tracers --------------------------------------------------------------------------------


def probe(read: str, transform: str) -> str:
    """What a host operator sees that tries to `read` its argument `a` inside `transform`."""
    done = run_python(
        f"""
        seen = []
        def body(a):
            try:
                {read}
                seen.append("works")
            except ValueError as error:
                seen.append(str(error))
            return a.sum()
        try:
            mx.eval(mx.{transform}(body)(mx.ones(3)))
            print(seen)
        except BaseException as error:
            print("escaped", seen)
        """
    )
    return done.stdout.strip() if done.returncode == 0 else f"crashed {done.returncode}"


@pytest.mark.parametrize("transform", ["compile", "vmap"])
def test_eval_in_compile_and_vmap_raises_a_catchable_value_error(transform: str) -> None:
    assert TRACED in probe("mx.eval(a)", transform)


@pytest.mark.parametrize("transform", ["compile", "vmap"])
def test_asarray_in_compile_and_vmap_raises_and_is_catchable_only_from_0_32_4(transform: str) -> None:
    """Before 0.32.4 the C++ exception leaves through CPython's buffer slot: no `except` on the way runs, and
    the interpreter may crash later. So a tracer probe must call mx.eval first, which is always safe."""
    seen = probe("np.asarray(a)", transform)
    if MLX_VERSION >= (0, 32, 4):
        assert TRACED in seen
    else:
        assert seen == "escaped []" or seen.startswith("crashed")


@pytest.mark.parametrize("transform", ["grad", "checkpoint"])
def test_eval_and_asarray_work_in_grad_and_checkpoint(transform: str) -> None:
    assert probe("mx.eval(a); np.asarray(a)", transform) == "['works']"


# custom_function ------------------------------------------------------------------------


def test_custom_vjp_gets_only_the_wanted_cotangents_by_splitting_the_inputs() -> None:
    """J(B(x) -> y, A(w) -> zeros) with J's vjp (ct, ct) runs only the wanted one of A's and B's vjp."""
    calls: list[str] = []

    @mx.custom_function
    def b(x: mx.array) -> mx.array:
        return mx.array(np.asarray(x) * 2)

    @b.vjp
    def b_vjp(primals: Any, cotangent: mx.array, _output: Any) -> mx.array:
        calls.append("B")
        return cotangent * 2

    @mx.custom_function
    def a(w: mx.array) -> mx.array:
        return mx.zeros((3,))

    @a.vjp
    def a_vjp(primals: Any, cotangent: mx.array, _output: Any) -> mx.array:
        calls.append("A")
        return cotangent.sum() * mx.ones((2,))

    @mx.custom_function
    def join(y: mx.array, _zeros: mx.array) -> mx.array:
        return y

    @join.vjp
    def join_vjp(primals: Any, cotangent: mx.array, _output: Any) -> tuple[mx.array, mx.array]:
        return cotangent, cotangent

    for argnums, wanted in ((0, ["B"]), (1, ["A"]), ((0, 1), ["A", "B"])):
        calls.clear()
        grads = mx.grad(lambda x, w: join(b(x), a(w)).sum(), argnums=argnums)(mx.ones(3), mx.ones(2))
        mx.eval(grads)
        assert sorted(calls) == wanted
    assert grads[0].tolist() == [2, 2, 2] and grads[1].tolist() == [3, 3]


def test_custom_function_without_jvp_gives_silently_zero_tangents_where_numpy_cut_the_graph() -> None:
    @mx.custom_function
    def square(x: mx.array) -> mx.array:
        return mx.array(np.asarray(x) ** 2)

    @square.vjp
    def square_vjp(x: mx.array, cotangent: mx.array, _output: Any) -> mx.array:
        return 2 * x * cotangent

    assert mx.grad(square)(mx.array(3.0)).item() == 6
    assert mx.jvp(square, [mx.array(3.0)], [mx.array(1.0)])[1][0].item() == 0


def test_custom_function_without_jvp_ignores_its_vjp_and_follows_the_forward_graph() -> None:
    @mx.custom_function
    def square(x: mx.array) -> mx.array:
        return x * x

    @square.vjp
    def square_vjp(x: mx.array, cotangent: mx.array, _output: Any) -> mx.array:
        return 100 * cotangent

    assert mx.grad(square)(mx.array(3.0)).item() == 100
    assert mx.jvp(square, [mx.array(3.0)], [mx.array(1.0)])[1][0].item() == 6


def test_second_gradient_of_a_numpy_vjp_is_silently_zero() -> None:
    @mx.custom_function
    def cube(x: mx.array) -> mx.array:
        return mx.array(np.asarray(x) ** 3)

    @cube.vjp
    def cube_vjp(x: mx.array, cotangent: mx.array, _output: Any) -> mx.array:
        return mx.array(3 * np.asarray(x) ** 2 * np.asarray(cotangent))

    assert mx.grad(cube)(mx.array(2.0)).item() == 12
    assert mx.grad(mx.grad(cube))(mx.array(2.0)).item() == 0  # right would be 12


def test_errors_raised_in_vjp_jvp_and_vmap_of_a_custom_function_reach_the_caller() -> None:
    @mx.custom_function
    def f(x: mx.array) -> mx.array:
        return x * x

    for name in ("vjp", "jvp", "vmap"):

        def refuse(*_args: Any, name: str = name) -> Any:
            raise KeyError(name)

        getattr(f, name)(refuse)
    with pytest.raises(KeyError, match="vjp"):
        mx.grad(f)(mx.array(3.0))
    with pytest.raises(KeyError, match="jvp"):
        mx.jvp(f, [mx.array(3.0)], [mx.array(1.0)])
    with pytest.raises(KeyError, match="vmap"):
        mx.vmap(f)(mx.ones(3))


def test_gradients_through_indices_raise_and_stop_gradient_mends_it() -> None:
    def gather(x: mx.array) -> mx.array:
        return x[x.astype(mx.int32)].sum()

    def scatter(x: mx.array) -> mx.array:
        return mx.zeros(3).at[x.astype(mx.int32)].add(x).sum()

    with pytest.raises(ValueError, match="Cannot calculate VJP with respect to indices"):
        mx.grad(scatter)(mx.ones(3))
    if MLX_VERSION >= (0, 32, 1):
        with pytest.raises(ValueError, match="Cannot calculate VJP with respect to indices"):
            mx.grad(gather)(mx.ones(3))
    else:  # 0.32.0 treats a gather's integer indices as constants
        assert mx.grad(gather)(mx.ones(3)).tolist() == [0, 3, 0]
    assert mx.grad(lambda x: x[mx.stop_gradient(x.astype(mx.int32))].sum())(mx.ones(3)).tolist() == [0, 3, 0]


def test_a_compiled_function_runs_its_body_again_for_traced_arguments_only() -> None:
    ran: list[int] = []

    def body(*a: mx.array) -> mx.array:
        ran.append(1)
        return a[0]

    probe = mx.compile(body, shapeless=True)

    def runs(*a: mx.array) -> bool:
        ran.clear()
        probe(*a)
        return bool(ran)

    x = mx.ones((4, 2))
    probe(x)
    assert not runs(x) and not runs(x + 1) and not runs(mx.ones((7, 3)))
    seen: list[bool] = []

    def inside(a: mx.array) -> mx.array:
        b = a * 2
        mx.eval(b) if traced_by_grad else None
        seen.extend([runs(a), runs(b), runs(mx.stop_gradient(b))])
        return b.sum()

    traced_by_grad = True
    mx.grad(inside)(x)
    mx.jvp(inside, [x], [x])
    assert all(seen) and len(seen) == 6
    traced_by_grad = False
    seen.clear()
    mx.vmap(inside)(x)
    mx.compile(inside)(x)
    mx.grad(mx.checkpoint(inside))(x)
    assert all(seen[:2] + seen[3:5] + seen[6:8])
    assert not runs(x)
