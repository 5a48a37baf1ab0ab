"""One helper that makes an operator differentiable, with every unsupported transformation refused.

MLX's custom functions compute all gradients of a call or none. Here each differentiable input gets
a branch of its own, ``J(B0(x0) -> y, B1(x1) -> 0, ...) -> y``: MLX walks back through the branches
that lead to a wanted gradient only, so no gradient is computed that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from ..errors import TransformError

Gradient = Callable[..., mx.array]


def _refuse(name: str, what: str) -> Callable[..., Any]:
    def raising(*_: Any) -> Any:
        raise TransformError(
            f"{name} has no {what}; mlxsparse operators support first reverse-mode gradients only"
        )

    return raising


def _sealed(name: str, function: Callable[..., mx.array]) -> Any:
    """`function` as a custom function that cannot be differentiated or mapped any further."""
    sealed: Any = mx.custom_function(function)
    sealed.vjp(_refuse(name, "second gradient"))
    sealed.jvp(_refuse(name, "forward-mode derivative of its gradient (jvp)"))
    sealed.vmap(_refuse(name, "batched gradient (vmap)"))
    return sealed


def differentiable(
    name: str, forward: Callable[..., mx.array], gradients: Sequence[Gradient], *inputs: mx.array
) -> mx.array:
    """``forward(*inputs)``, with ``gradients[i](cotangent, *inputs)`` as the gradient of input i.

    The device is the default device at the call; the backward pass runs on the same one. jvp, vmap
    and second gradients raise TransformError.
    """
    device = mx.default_device()

    def branch(i: int, value: Callable[[mx.array], mx.array]) -> mx.array:
        function: Any = mx.custom_function(value)

        def vjp(primal: mx.array, cotangent: mx.array, _: mx.array) -> mx.array:
            arguments = (*inputs[:i], primal, *inputs[i + 1 :])
            with mx.stream(device):
                gradient: mx.array = _sealed(name, gradients[i])(cotangent, *arguments)
            return gradient

        function.vjp(vjp)
        function.jvp(_refuse(name, "forward-mode derivative (jvp)"))
        function.vmap(_refuse(name, "batched form (vmap)"))
        result: mx.array = function(inputs[i])
        return result

    # MLX's jvp would walk into the forward's own graph, where a kernel raises a bare error of MLX's.
    # Host functions leave no graph behind, and are spared the extra evaluation.
    cut = mx.stop_gradient if device.type == mx.DeviceType.gpu else lambda a: a
    y = branch(0, lambda x: forward(cut(x), *map(cut, inputs[1:])))
    if len(inputs) == 1:
        return y
    zeros = mx.broadcast_to(mx.zeros((), y.dtype), y.shape)
    others = [branch(i, lambda _: zeros) for i in range(1, len(inputs))]
    join: Any = mx.custom_function(lambda value, *_: value)
    join.vjp(lambda primals, cotangent, _: (cotangent,) * len(primals))
    join.jvp(_refuse(name, "forward-mode derivative (jvp)"))
    join.vmap(_refuse(name, "batched form (vmap)"))
    joined: mx.array = join(y, *others)
    return joined
