"""One helper that makes an operator differentiable, with every unsupported transformation refused.

MLX's custom functions make all gradients of a call or none. Where kernels run that is no loss: a
gradient is a node of MLX's graph, and one that nobody asked for is never evaluated. Host functions
compute at once, so there each differentiable input gets a branch of its own,
``J(B0(x0) -> y, B1(x1) -> 0, ...) -> y``: MLX walks back through the branches that lead to a wanted
gradient only. No gradient is computed that nobody asked for.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx

from ..errors import TransformError
from .device import executor
from .host import silent
from .pace import called, compiling, first, next_cotangent, noted
from .replay import AFTER

Gradient = Callable[..., mx.array]
Gradients = Callable[..., Sequence[mx.array]]


@functools.lru_cache(maxsize=256)
def _refuse(name: str, what: str) -> Callable[..., Any]:
    def raising(*_: Any) -> Any:
        raise TransformError(
            f"{name} has no {what}; mlxsparse operators support first reverse-mode gradients only"
        )

    return raising


def _look(*inputs: mx.array) -> mx.array:
    _seen.body = True
    return inputs[0]


class _Seen(threading.local):
    body = False
    plain = False  # nobody will ask for gradients

    def __init__(self) -> None:
        # One for each thread, which goes with it: MLX would drop the traces of a thread after its end, and
        # ends a process that ends at that time.
        self.probe = mx.compile(_look, shapeless=True)


_seen = _Seen()


def traced(*inputs: mx.array) -> bool:
    """Whether MLX is in a transformation that these arrays may take part in (True in case of doubt).

    A compiled function runs its Python body for new types of arguments, and for traced arrays every time;
    that is the one place where MLX shows from Python what an array is. Takes a microsecond.
    """
    if _seen.plain:
        return False
    _seen.body = False
    _seen.probe(*inputs)
    return _seen.body


def asked(a: mx.array) -> bool:
    """Whether a transformation asks for the gradient of `a`, as far as one can tell.

    Not inside of mlxsparse.compile, and always inside of mx.compile, which traces all of its arguments.
    """
    return not compiling() and traced(a) and traced(a)  # the first look at a new type always says yes


def watched(w: mx.array) -> mx.array:
    """A weight whose gradient, if one is asked for, is computed early inside of mlxsparse.compile as well."""
    if not compiling() or not traced(w):
        return w
    itself: Any = mx.custom_function(lambda w: w)
    itself.vjp(lambda _, gradient, __: first(gradient))
    result: mx.array = itself(w)
    return result


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Operators inside are called as if outside of all transformations: inside of mx.compile alone."""
    before, _seen.plain = _seen.plain, True
    try:
        yield
    finally:
        _seen.plain = before


def _sealed(name: str, function: Gradient | Gradients) -> Any:
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
    if device.type == mx.DeviceType.gpu or executor() == "kernel":
        return prepared(name, forward, gradients, device)(*inputs)
    if not traced(*inputs):  # nobody can ask for a gradient, so MLX need not hear of the call
        with silent():
            return forward(*inputs)

    def branch(i: int, value: Callable[[mx.array], mx.array]) -> mx.array:
        function: Any = mx.custom_function(value)

        def vjp(primal: mx.array, cotangent: mx.array, _: mx.array) -> mx.array:
            arguments = (*inputs[:i], primal, *inputs[i + 1 :])
            with mx.stream(device), silent():
                gradient: mx.array = _sealed(name, gradients[i])(cotangent, *arguments)
            return gradient

        function.vjp(vjp)
        function.jvp(_refuse(name, "forward-mode derivative (jvp)"))
        function.vmap(_refuse(name, "batched form (vmap)"))
        result: mx.array = function(inputs[i])
        return result

    with silent():
        y = branch(0, lambda x: forward(x, *inputs[1:]))
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


def prepared(
    name: str,
    forward: Callable[..., mx.array],
    gradients: Sequence[Gradient],
    device: mx.Device,
    *,
    unread: Sequence[int] = (),
    ordered: bool = False,
) -> Callable[..., mx.array]:
    """`differentiable` where kernels run, as a function of the inputs that can be called again and again.

    One custom function for all gradients: results are not computed before they are read. Nobody may
    differentiate by inputs past the gradients. unread: inputs that no gradient reads, and that need not live
    until then; any array takes their place. ordered: the second input's gradient, which is `asked` for, is
    computed before the first one's: what it reads can go then.
    """
    sealed: list[Any] = []  # functions of their own: MLX evaluates all results of one together

    def all_of(cotangent: mx.array, _: mx.array, *inputs: mx.array) -> list[mx.array]:
        if not sealed:
            sealed.extend(_sealed(name, gradient) for gradient in gradients)
        read = [cotangent if i in unread else a for i, a in enumerate(inputs)]
        made = [gradient(cotangent, *read) for gradient in sealed]
        if ordered:
            made[0] = mx.depends([made[0]], [made[1]])[0]
        return made

    return _custom(name, forward, all_of, device, range(len(gradients)))


def together(
    name: str,
    forward: Callable[..., mx.array],
    gradients: Gradients,
    device: mx.Device,
    *,
    read: Sequence[int],
    unread: Sequence[int] = (),
) -> Callable[..., mx.array]:
    """As `prepared`, for gradients that are computed together: ``gradients(cotangent, result, *inputs)``.

    read: inputs that `forward` reads and that somebody may differentiate by. unread: of result and inputs
    those that the gradients do not read, as in `prepared`.
    """
    sealed = _sealed(name, gradients)

    def all_of(cotangent: mx.array, *given: mx.array) -> Sequence[mx.array]:
        made: Sequence[mx.array] = sealed(
            cotangent, *(cotangent if i in unread else a for i, a in enumerate(given))
        )
        return made

    return _custom(name, forward, all_of, device, read)


def _custom(
    name: str,
    forward: Callable[..., mx.array],
    gradients: Gradients,
    device: mx.Device,
    read: Sequence[int],
) -> Callable[..., mx.array]:
    def vjp(primals: Any, cotangent: mx.array, result: mx.array) -> Any:
        arguments = primals if isinstance(primals, (tuple, list)) else (primals,)
        cotangent = next_cotangent(cotangent)
        with mx.stream(device):
            made = gradients(cotangent, result, *arguments)
        # Nobody asks for those of the rest: any array of their shape, which costs nothing.
        made = (*made, *arguments[len(made) :])
        return made if len(made) > 1 else made[0]

    custom: list[Any] = []  # the function, made where a transformation asks for it: that takes a while

    def inner(*inputs: mx.array) -> mx.array:
        # MLX's jvp would walk into the forward's own graph, where a kernel raises.
        cut = list(inputs)
        for i in read:
            cut[i] = mx.stop_gradient(cut[i])
        return forward(*cut)

    def traceable(*inputs: mx.array) -> mx.array:
        if not custom:
            function: Any = mx.custom_function(inner)
            function.vjp(vjp)
            function.jvp(_refuse(name, "forward-mode derivative (jvp)"))
            function.vmap(_refuse(name, "batched form (vmap)"))
            custom.append(function)
        result: mx.array = custom[0](*inputs)
        return result

    plain = direct(forward, device)

    def call(*inputs: mx.array) -> mx.array:
        if traced(*inputs):
            result = traceable(*inputs)
            noted(result)
            return result
        return plain(*inputs)

    return call


def direct(forward: Callable[..., mx.array], device: mx.Device) -> Callable[..., mx.array]:
    """`forward` for arrays of which nobody asks for a gradient (`traced`)."""
    on_gpu = device.type == mx.DeviceType.gpu

    def call(*inputs: mx.array) -> mx.array:
        return _launched(forward, inputs) if on_gpu else forward(*inputs)

    return call


def _launched(forward: Callable[..., mx.array], inputs: Sequence[mx.array]) -> mx.array:
    """forward(*inputs) on a GPU, outside of all transformations."""
    result = forward(*inputs)
    (noted if _seen.plain else called)(result)
    return result


def launched(forward: Callable[..., mx.array], *inputs: mx.array) -> mx.array | None:
    """``forward(*inputs)``, launches alone, where nobody can ask for its gradients; else None."""
    return None if traced(*inputs) else _launched(forward, inputs)


def again(
    forward: Callable[..., mx.array], replayed: bool, weight: int = 1
) -> Callable[..., mx.array | None]:
    """``launched(forward, ...)`` as a function of the inputs that is called often.

    replayed: by MLX, which traces native kernels alone, and from some call on, as a trace costs as much as a
    few; None before. As in `traced` it runs a body for traced arrays: one compiled function does both.
    weight: what a call counts (backend/pace.py).
    """
    if not replayed:
        return lambda *inputs: launched(forward, *inputs)
    calls = itertools.count()

    @mx.compile
    def replay(*inputs: mx.array) -> mx.array:
        _seen.body = True
        return forward(*inputs)

    def call(*inputs: mx.array) -> mx.array | None:
        if next(calls) < AFTER:
            return None
        _seen.body = False
        result: mx.array = replay(*inputs)
        if _seen.body:
            return None
        if _seen.plain:
            noted(result)
        else:
            called(result, weight)
        return result

    return call
