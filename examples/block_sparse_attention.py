"""Block-sparse attention: sequences of different length packed together, without padding or an N x N mask.

    python examples/block_sparse_attention.py

Trains one layer to find, in each sequence, the tokens that repeat its first one, which only attention within
the sequence can do; prints the loss and the share of the blocks that is stored.
"""

from __future__ import annotations

import argparse

import mlx.core as mx
import mlx.nn
import mlx.optimizers
import numpy as np

from mlxsparse.blocksparse import BlockLayout, SparseMultiheadAttention, block_sparse_attention, segment_ids

BLOCK, CHANNELS, HEADS, KINDS = 16, 32, 4, 8


def sequences(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens of `count` sequences in a row, their ends, and for each token whether it equals the first."""
    lengths = rng.integers(5, 60, count)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(0, KINDS, ends[-1])
    first = np.repeat(tokens[ends[:-1]], lengths)
    return tokens, ends, tokens == first


class Finder(mlx.nn.Module):
    def __init__(self, layout: BlockLayout):
        super().__init__()
        self.embed = mlx.nn.Embedding(KINDS, CHANNELS)
        self.start = mx.zeros((CHANNELS,))  # marks the first token of a sequence
        self.attention = SparseMultiheadAttention(CHANNELS, HEADS, layout)
        self.head = mlx.nn.Linear(2 * CHANNELS, 1)

    def __call__(self, tokens: mx.array, starts: mx.array, layout: BlockLayout, ids: mx.array) -> mx.array:
        x = (self.embed(tokens) + starts[:, None] * self.start)[None]
        y = self.attention(x, layout=layout, segments=ids)
        return self.head(mx.concatenate([x * y, y], axis=-1))[0, :, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    if steps < 1:
        parser.error("--steps takes at least 1")
    rng = np.random.default_rng(0)
    mx.random.seed(0)

    # The same result as attending sequence by sequence.
    _, ends, _ = sequences(rng, 5)
    layout = BlockLayout.from_cu_seqlens(ends, BLOCK)
    q = mx.random.normal((1, HEADS, int(ends[-1]), 8))
    packed = block_sparse_attention(q, q, q, layout, segments=segment_ids(ends))
    alone = [
        mx.fast.scaled_dot_product_attention(*(q[:, :, a:b],) * 3, scale=8**-0.5)
        for a, b in zip(ends, ends[1:])
    ]
    difference = mx.abs(packed - mx.concatenate(alone, axis=2)).max()
    print(f"difference to attention sequence by sequence: {float(difference):.1e}")

    model = Finder(layout)
    optimizer = mlx.optimizers.Adam(3e-3)
    step = mlx.nn.value_and_grad(
        model,
        lambda tokens, starts, layout, ids, target: mlx.nn.losses.binary_cross_entropy(
            model(tokens, starts, layout, ids), target, reduction="mean"
        ),
    )
    for i in range(steps):
        tokens, ends, target = sequences(rng, 32)
        layout = BlockLayout.from_cu_seqlens(ends, BLOCK)
        starts = np.zeros(len(tokens), np.float32)
        starts[ends[:-1]] = 1
        loss, gradients = step(
            mx.array(tokens), mx.array(starts), layout, segment_ids(ends), mx.array(target.astype(np.float32))
        )
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
        if i % 20 == 0 or i == steps - 1:
            print(
                f"step {i}: loss {float(loss):.3f}, {len(tokens)} tokens, {layout.density:.1%} of the blocks"
            )


if __name__ == "__main__":
    main()
