"""Patterns against their definitions, written as loops over pairs of blocks."""

from __future__ import annotations

import numpy as np
import pytest

from mlxsparse.blocksparse import BigBird, BSLongformer, Dense, Fixed, LocalWindow, Strided, Variable
from mlxsparse.errors import DTypeError, MLXSparseError, ShapeError

LENGTHS = (0, 1, 4, 30, 61)  # tokens, block 4
DIRECTIONS = ("bidirectional", "unidirectional")


def check(pattern, sees):
    """`sees(n, head, row, col)` for every pair, both directions."""
    for direction in DIRECTIONS:
        made = type(pattern)(**{**vars(pattern), "attention": direction})
        for length in LENGTHS:
            layout = made(length)
            n = -(-length // 4)
            assert layout.grid == (2, n, n) and layout.shape == (length, length)
            wanted = np.array(
                [
                    [
                        [sees(n, h, i, j) and (direction == "bidirectional" or j <= i) for j in range(n)]
                        for i in range(n)
                    ]
                    for h in range(2)
                ],
                bool,
            ).reshape(2, n, n)
            assert np.array_equal(layout.to_dense(), wanted), (made, length)
            assert layout == made.make_layout(length)


def test_dense():
    check(Dense(2, 4), lambda n, h, i, j: True)


@pytest.mark.parametrize("window", [1, 3, 5])
def test_local_window(window):
    check(
        LocalWindow(2, 4, num_sliding_window_blocks=window),
        lambda n, h, i, j: abs(i - j) <= window // 2,
    )


@pytest.mark.parametrize("stride", [1, 3, 20])
def test_strided(stride):
    check(Strided(2, 4, stride=stride), lambda n, h, i, j: abs(i - j) < stride or (i - j) % stride == 0)


@pytest.mark.parametrize("horizontal", [False, True])
@pytest.mark.parametrize(
    ("local", "shared", "turns"), [(4, 1, 1), (4, 1, 2), (3, 2, 1), (5, 2, 2), (1, 1, 1)]
)
def test_fixed(horizontal, local, shared, turns):
    def is_global(n, h, j):
        place = j % local
        last = local - (h % turns) * shared
        if j >= n - n % local:  # a short last window
            last = min(last, n % local)
        return last - shared <= place < last

    check(
        Fixed(
            2,
            4,
            num_local_blocks=local,
            num_global_blocks=shared,
            num_different_global_patterns=turns,
            horizontal_global_attention=horizontal,
        ),
        lambda n, h, i, j: (
            i // local == j // local or is_global(n, h, j) or (horizontal and is_global(n, h, i))
        ),
    )


@pytest.mark.parametrize(("n", "turns"), [(7, 1), (7, 2), (6, 2), (5, 2), (5, 1)])
def test_a_short_last_window_has_as_many_global_blocks_as_the_others(n, turns):
    layout = Fixed(2, 1, num_local_blocks=4, num_global_blocks=2, num_different_global_patterns=turns)(n)
    for head in layout.to_dense():
        seen = head[0, 4:]  # by a row of the first window
        assert seen.sum() == min(2, n - 4)
    if n == 7:
        assert layout.to_dense()[0, 0].tolist() == [1, 1, 1, 1, 0, 1, 1]


@pytest.mark.parametrize("horizontal", [False, True])
def test_variable_without_random_blocks(horizontal):
    windows = [0] + [1] * 2 + [2] * 3 + [3] * 3 + [4] * 3 + [5] * 3 + [6] * 3
    shared = {0, 5, 6}
    check(
        Variable(
            2,
            4,
            local_window_blocks=(1, 2, 3),
            global_block_indices=(0, 5),
            global_block_end_indices=(1, 7),
            horizontal_global_attention=horizontal,
        ),
        lambda n, h, i, j: windows[i] == windows[j] or j in shared or (horizontal and i in shared),
    )


def test_longformer():
    check(
        BSLongformer(2, 4, num_sliding_window_blocks=3, global_block_indices=(0, 4)),
        lambda n, h, i, j: abs(i - j) <= 1 or i in (0, 4) or j in (0, 4),
    )


def test_bigbird_without_random_blocks():
    check(
        BigBird(2, 4, num_random_blocks=0, num_global_blocks=2),
        lambda n, h, i, j: abs(i - j) <= 1 or i < 2 or j < 2,
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", [BigBird, Variable])
def test_random_blocks(kind, direction):
    few, many = (kind(2, 4, num_random_blocks=r, attention=direction)(200) for r in (0, 3))
    extra = many - few
    assert (few & many) == few and 2 * 10 < extra.nnz <= 2 * 50 * 3
    assert many == kind(2, 4, num_random_blocks=3, attention=direction)(200)
    assert many != kind(2, 4, num_random_blocks=3, attention=direction, seed=1)(200)
    heads = many.to_dense()
    assert not np.array_equal(heads[0], heads[1])
    if direction == "unidirectional":
        assert (many.cols <= many.rows).all()


def test_lists_that_change_later_do_not_change_a_pattern():
    first, last, windows = [0], [2], [1, 2]
    pattern = Variable(
        1, 4, global_block_indices=first, global_block_end_indices=last, local_window_blocks=windows
    )
    wanted = pattern(30)
    first[0], last[0], windows[0] = 3, 5, 4
    assert pattern(30) == wanted and hash(pattern) == hash(
        Variable(1, 4, "bidirectional", (0,), (2,), 0, (1, 2))
    )


def test_long_patterns_make_no_square():
    layout = LocalWindow(1, 64)(1 << 22)
    assert layout.grid == (1, 65536, 65536) and layout.nnz == 3 * 65536 - 2


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Dense(0, 4), ShapeError, "num_heads"),
        (lambda: Dense(1, 0), ShapeError, "block"),
        (lambda: Dense(1, 4)(-1), ShapeError, "length"),
        (lambda: Dense(1, 4)(2.5), DTypeError, "length"),
        (lambda: Dense(1, 4, "left"), MLXSparseError, "attention"),
        (lambda: Strided(1, 4, stride=0), ShapeError, "stride"),
        (lambda: Fixed(1, 4, num_local_blocks=2, num_global_blocks=3), ShapeError, "num_global_blocks"),
        (lambda: Variable(1, 4, local_window_blocks=())(8), ShapeError, "local_window_blocks"),
        (lambda: BSLongformer(1, 4, global_block_end_indices=(1, 2)), ShapeError, "end_indices"),
        (lambda: Variable(1, 4, local_window_blocks=3), DTypeError, "local_window_blocks"),
        (lambda: BSLongformer(1, 4, global_block_indices=3), DTypeError, "global_block_indices"),
        (lambda: BSLongformer(1, 4, global_block_indices=(0, -1)), ShapeError, "global_block_indices"),
        (lambda: Variable(1, 4, global_block_indices=(-1,)), ShapeError, "global_block_indices"),
        (lambda: Variable(1, 4, global_block_end_indices=(-1,)), ShapeError, "global_block_end_indices"),
        (lambda: BSLongformer(1, 4, "bidirectional", (3,), (3,)), ShapeError, "end_indices .* above"),
        (lambda: BigBird(1, 4, num_random_blocks=-1), ShapeError, "num_random_blocks"),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()
