"""The checks of a kernel's text: lint, and address spaces as clang sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from . import source, toolchain
from .lint import lint


def text_errors(header: str, body: str, kernel: Any, inputs: Sequence[mx.array], **call: Any) -> list[str]:
    """What is wrong with a kernel as MLX would compile it for these inputs; empty when nothing is."""
    found = [f"lint: {line}" for line in lint(header, body)]
    metal = source.metal_text(kernel, inputs, **call)
    accepted, diagnostics = toolchain.diagnose(source.typed_source(metal))
    if accepted:
        return found
    return found + [line for line in diagnostics.splitlines() if "error" in line]


def text_checking_factory(report: dict[str, list[str]], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` (a kernel factory) with a check of the text of every variant before its first call.

    A variant is a kernel with its dtypes and template parameters; `report` gets variant -> errors.
    """

    def factory(
        name: str, input_names: Sequence[str], output_names: Sequence[str], source: str, header: str = ""
    ) -> Callable[..., Any]:
        kernel = mx.fast.metal_kernel(
            name=name, input_names=input_names, output_names=output_names, source=source, header=header
        )
        runner = run(name, input_names, output_names, source, header)

        def call(*, inputs: Sequence[mx.array], **call: Any) -> list[mx.array]:
            small = [n for n, a in zip(input_names, inputs) if a.size < 8]
            template = [f"{n}={str(v).rpartition('.')[2]}" for n, v in call["template"] or ()]
            variant = f"{name}[{', '.join(template)}]"
            if variant not in report:
                report[variant] = text_errors(header, source, kernel, inputs, **call)
            if small:  # helpers take device pointers; the launcher pads
                report[variant].append(f"{small} have under 8 elements: Metal puts them into constant memory")
            outputs: list[mx.array] = runner(inputs=inputs, **call)
            return outputs

        return call

    return factory
