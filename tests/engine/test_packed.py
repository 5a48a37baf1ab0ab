"""Maps onto itself are packed once several convolutions have read them: the same bits, less memory."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.backend.tap_tiles import table_of
from mlxsparse.coords import KernelMap
from mlxsparse.engine import conv_kernel, device_map
from tests.static_cases import kernels as kernels
from tests.static_cases import needs_kernels, weight

pytestmark = needs_kernels


class Mail:
    """What was sent, and whether it is there."""

    def __init__(self, array: mx.array, arrived: bool | None):
        self.array, self.arrived = array, arrived

    def read(self) -> list[list[int]]:
        assert self.arrived, "a read that waits"
        return [np.array(self.array).tolist()]


@pytest.fixture
def sent(kernels: None, monkeypatch: pytest.MonkeyPatch) -> list[Mail]:
    """All that was sent; it arrives when a test says so."""
    found: list[Mail] = []

    def send(array: mx.array) -> Mail:
        found.append(Mail(array, False))
        return found[-1]

    monkeypatch.setattr(device_map, "send", send)
    monkeypatch.setattr(device_map, "shared", lambda: True)
    monkeypatch.setattr(device_map, "PACKED", 64)
    return found


def arrive(sent: list[Mail]) -> None:
    for mail in sent:
        mail.arrived = True


def tensor(rows: int = 600, side: int = 12, channels: int = 4) -> ms.SparseTensor:
    r = np.random.default_rng(rows)
    sites = np.unique(np.column_stack([r.integers(0, 2, rows), r.integers(-side, side, (rows, 3))]), axis=0)
    feats = r.standard_normal((len(sites), channels)).astype(np.float32)
    return ms.SparseTensor(r.permutation(sites).astype(np.int32), mx.array(feats), batch_size=2)


def map_of(x: ms.SparseTensor, size: int = 3) -> KernelMap:
    return x.manager.kernel_map(x.key, x.key, ms.Kernel.submanifold(size))


def results(x: ms.SparseTensor, w: mx.array) -> list[np.ndarray]:
    def both(feats: mx.array, w: mx.array) -> mx.array:
        return ms.ops.subm_conv3d(x.replace(feats), w).feats.square().sum()

    made = ms.ops.subm_conv3d(x, w).feats, *mx.grad(both, argnums=(0, 1))(x.feats, w)
    return [np.array(a) for a in made]


def test_a_map_is_packed_when_its_size_is_here_and_not_before(sent: list[Mail]) -> None:
    x, w = tensor(), weight(4, 3, 4)
    first = np.array(ms.ops.subm_conv3d(x, w).feats)
    assert not sent, "one convolution may be all that there is"
    whole, table = map_of(x).nbytes, np.array(map_of(x).relation.output.untiled())
    wanted = results(x, w)
    assert len(sent) == 1 and map_of(x).nbytes == whole
    sent[0].arrived = True
    for a, b in zip(results(x, w), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(wanted[0], first)
    assert map_of(x).relation.output.tiles.kept == 27 and 3 * map_of(x).nbytes < 2 * whole
    assert x.manager.stats()["map_bytes"] >= map_of(x).nbytes
    np.testing.assert_array_equal(np.array(map_of(x).relation.output.untiled()), table)
    for a, b in zip(results(x, w), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(sent) == 1, "its size was asked for again"


def test_other_operators_read_a_packed_map(sent: list[Mail]) -> None:
    x, w = tensor(), weight(4, 3, 4)
    wanted = np.array(ms.ops.max_pool3d(x, 3, stride=1, padding=1, out=x.key).feats)
    few = ms.ops.Taps((3, 3, 3), (0, 13, 26))
    some = np.array(ms.ops.subm_conv3d(tensor(), w.reshape(4, 27, 4)[:, [0, 13, 26]], taps=few).feats)
    for _ in range(3):
        ms.ops.subm_conv3d(x, w)
        arrive(sent)
    assert map_of(x).relation.output.tiles.kept == 27
    y = ms.ops.max_pool3d(x, 3, stride=1, padding=1, out=x.key)
    np.testing.assert_array_equal(np.array(y.feats), wanted)
    got = ms.ops.subm_conv3d(x, w.reshape(4, 27, 4)[:, [0, 13, 26]], taps=few)
    np.testing.assert_array_equal(np.array(got.feats), some)


def test_a_table_of_packed_tiles_reads_nothing_behind_their_end(sent: list[Mail]) -> None:
    x, w = tensor(), weight(4, 3, 4)
    for _ in range(3):
        ms.ops.subm_conv3d(x, w)
        arrive(sent)
    tiles = map_of(x).relation.output.tiles
    last = int(tiles.nbr[2 * (tiles.places // 256) - 1])
    assert tiles.kept == 27 and last < 1 << 26, "the last block has the last tap"

    class Watched:
        def __getitem__(self, at: slice | mx.array) -> mx.array:
            if isinstance(at, mx.array):
                assert 0 <= at.min().item() <= at.max().item() < tiles.nbr.size
            return tiles.nbr[at]

    got = table_of(tiles._replace(nbr=Watched()))  # type: ignore[arg-type]
    np.testing.assert_array_equal(np.array(got), np.array(map_of(x).relation.output.untiled()))


def test_a_map_that_was_read_without_tiles_first_is_packed(sent: list[Mail]) -> None:
    x, w = tensor(), weight(4, 3, 4)
    ms.ops.subm_conv3d(x, w.reshape(4, 27, 4)[:, [0, 13]], taps=ms.ops.Taps((3, 3, 3), (0, 13)))
    for _ in range(4):
        ms.ops.subm_conv3d(x, w)
        arrive(sent)
    assert map_of(x).relation.output.tiles.kept == 27


def test_what_another_thread_makes_meanwhile_does_not_keep_the_old_tiles(
    sent: list[Mail], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, product = tensor(), weight(4, 3, 4), conv_kernel.product

    def slow(*args: Any, **kwargs: Any) -> Any:
        call = product(*args, **kwargs)
        for _ in range(2):  # as the other thread does
            map_of(x).again()
            arrive(sent)
        return call

    ms.ops.subm_conv3d(x, w)
    monkeypatch.setattr(conv_kernel, "product", slow)
    y = ms.ops.subm_conv3d(x, w[:3])
    assert map_of(x).relation.output.tiles.kept == 27 and not map_of(x).calls
    np.testing.assert_array_equal(np.array(ms.ops.subm_conv3d(x, w[:3]).feats), np.array(y.feats))


def test_packed_tiles_that_cannot_be_begun_are_not_taken(
    sent: list[Mail], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = tensor(), weight(4, 3, 4)
    monkeypatch.setattr(device_map, "begin", lambda *_: False)
    for _ in range(4):
        ms.ops.subm_conv3d(x, w)
        arrive(sent)
    assert map_of(x).relation.output.tiles.kept == 0 and len(sent) == 1


def test_two_threads_do_not_pack_at_once(sent: list[Mail]) -> None:
    x, w = tensor(), weight(4, 3, 4)
    ms.ops.subm_conv3d(x, w)
    side = map_of(x).relation.output
    with device_map._packing:
        assert side.pack() is None and not sent
    assert side.pack() is None and len(sent) == 1


def test_nothing_is_packed_that_stays_as_large(sent: list[Mail]) -> None:
    side = np.indices((9, 9, 9)).reshape(3, -1).T.astype(np.int32)  # most sites have all their neighbours
    coords = np.column_stack([np.zeros(len(side), np.int32), side])
    x, w = ms.SparseTensor(coords, mx.ones((len(side), 4)), batch_size=1), weight(4, 3, 4)
    for _ in range(4):
        ms.ops.subm_conv3d(x, w)
        arrive(sent)
    assert len(sent) == 1 and map_of(x).relation.output.tiles.kept == 0


def test_a_map_of_fixed_capacity_is_packed_where_the_host_knows_its_sites(sent: list[Mail]) -> None:
    x, w = tensor(), weight(4, 3, 4)
    x = x.with_capacity(x.num_active + 40)
    for _ in range(3):
        ms.ops.subm_conv3d(x, w)
        arrive(sent)
    assert map_of(x).relation.output.tiles.kept == 27


@pytest.mark.parametrize("case", ["few rows", "few taps", "no shared memory", "two sets"])
def test_maps_that_stay_as_they_are(sent: list[Mail], monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    x, w = tensor(), weight(4, 1 if case == "few taps" else 3, 4)
    if case == "few rows":
        monkeypatch.setattr(device_map, "PACKED", 1 << 16)
    if case == "no shared memory":
        monkeypatch.setattr(device_map, "shared", lambda: False)
    for _ in range(4):
        if case == "two sets":
            y = ms.ops.conv3d(x, w, stride=2, padding=1)
            found = x.manager.kernel_map(x.key, y.key, ms.Kernel.of(3, 2, 1))
        else:
            ms.ops.subm_conv3d(x, w)
            found = map_of(x, w.shape[3])
    assert found.relation.output.tiles.kept == 0 and not sent


def test_nothing_is_packed_whose_size_does_not_arrive(sent: list[Mail]) -> None:
    x, w = tensor(), weight(4, 3, 4)
    for _ in range(4):
        ms.ops.subm_conv3d(x, w)
        for mail in sent:
            mail.arrived = None  # as inside of a transformation
    assert map_of(x).relation.output.tiles.kept == 0 and len(sent) == 1
