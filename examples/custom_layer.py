"""A layer of your own: a ConvNeXt-like block on sparse tensors, and how to test it.

    python examples/custom_layer.py

A layer is an mlx.nn.Module whose call takes and gives a SparseTensor. Where it is plain maths on features,
work on x.feats and put the result back with x.replace; where sites matter, use mlxsparse.ops.
"""

import mlx.core as mx
import mlx.nn
import numpy as np

import mlxsparse as ms
from mlxsparse import nn, ops


class ConvNeXtBlock(mlx.nn.Module):
    """Depthwise 5x5x5 convolution, two linear layers, a scale for each channel, and the input added."""

    def __init__(self, channels: int, kernel_size: int = 5):
        super().__init__()
        self.depthwise = nn.SubmConv3d(channels, channels, kernel_size, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.widen = nn.Linear(channels, 4 * channels)
        self.narrow = nn.Linear(4 * channels, channels)
        self.gamma = mx.full((channels,), 1e-1)

    def __call__(self, x: ms.SparseTensor) -> ms.SparseTensor:
        y = self.widen(self.norm(self.depthwise(x)))
        y = y.replace(mlx.nn.gelu(y.feats))  # plain maths on features keeps sites and key
        y = self.narrow(y)
        return x + y.replace(self.gamma * y.feats)


def upside_down(x: ms.SparseTensor) -> ms.SparseTensor:
    """Where sites change, a layer makes a new tensor; validation finds duplicates and builds the index."""
    coords = x.coords * mx.array([1, 1, 1, -1])
    return ms.SparseTensor(coords, x.feats, stride=x.stride, batch_size=x.batch_size)


def main() -> None:
    mx.set_default_device(mx.cpu)
    mx.random.seed(0)
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.integers(0, 2, (300, 1)), rng.integers(-8, 8, (300, 3))], axis=1)
    coords = np.unique(rows, axis=0)
    x = ms.SparseTensor(coords.astype(np.int32), mx.random.normal((len(coords), 6)))
    block = ConvNeXtBlock(6)
    y = block(x)
    assert y.key is x.key and y.feats.shape == x.feats.shape
    print(block)

    # Shift the sites: the features must not change, for a convolution sees only differences.
    moved = ms.SparseTensor(x.coords + mx.array([0, 5, -7, 100]), x.feats)
    assert mx.allclose(block(moved).feats, y.feats, atol=1e-5)

    # Drop a batch item: the other one must not notice.
    first = ops.decollate(x)[0]
    assert mx.allclose(block(first).feats, y.feats[: first.num_active], atol=1e-5)

    # The gradient against a difference: move along a random direction by a small step.
    def loss(feats: mx.array) -> mx.array:
        return block(x.replace(feats)).feats.square().sum()

    direction = mx.random.normal(x.feats.shape)
    slope = (mx.grad(loss)(x.feats) * direction).sum().item()
    step = 1e-2
    difference = (loss(x.feats + step * direction) - loss(x.feats - step * direction)).item() / (2 * step)
    print(f"slope by gradient {slope:.4f}, by difference {difference:.4f}")
    assert abs(slope - difference) < 1e-2 * abs(slope)

    # Changed sites are a new set: adding it row by row to the old one is refused, a join says what is meant.
    turned = upside_down(y)
    try:
        turned + y
    except ms.errors.IdentityError as error:
        print("refused:", str(error)[:60], "...")
    both = ops.add(turned, y, join="outer")
    print(f"{turned.num_active} sites and {y.num_active}: {both.num_active} in the outer join")


if __name__ == "__main__":
    main()
