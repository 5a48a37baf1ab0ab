"""Scans come and go: keys, maps and memory die with the tensors that hold them."""

from __future__ import annotations

import gc
import resource
import sys
import threading

import mlx.core as mx
import mlx.nn
import mlx.optimizers
import mlx.utils
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse import blocks
from mlxsparse.backend import autodiff
from mlxsparse.errors import IdentityError

pytestmark = pytest.mark.usefixtures("device")


class FourLevels(mlx.nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.stem = ms.nn.SubmConv3d(1, c)
        self.down = [ms.nn.Conv3d(c, c, 2, 2) for _ in range(3)]
        self.block = [ms.nn.SubmConv3d(c, c) for _ in range(3)]
        self.up = [ms.nn.ConvTranspose3d(c, c, 2, 2) for _ in range(3)]

    def __call__(self, x):
        levels = [self.stem(x)]
        for down, block in zip(self.down, self.block):
            levels.append(block(down(levels[-1])))
        y = levels.pop()
        for up in self.up:
            y = up(y, out=levels[-1]) + levels.pop()
        return y


def scan(seed, n=300):
    rng = np.random.default_rng(seed)
    sites = np.unique(np.column_stack([np.zeros(n, int), rng.integers(-15, 15, (n, 3))]), axis=0)
    return ms.SparseTensor(mx.array(sites.astype(np.int32)), mx.ones((len(sites), 1)))


def resident():
    """Bytes of memory of this process now (its peak where the system has no /proc)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def left_to_the_collector(run):
    """Names of what is ours, or refers to an array, and was in a circle when `run` had ended.

    A circle lives until Python's collector comes, which knows nothing of the memory behind an array.
    """
    run()  # caches and compilers leave things of their own
    gc.collect()
    gc.disable()
    try:
        run()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = [
            f"{type(o).__module__}.{getattr(o, '__qualname__', type(o).__qualname__)}"
            for o in gc.garbage
            if type(o).__module__.startswith("mlxsparse")
            or any(isinstance(part, mx.array) for part in gc.get_referents(o))
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    return found


def train_a_step():
    net = FourLevels()
    step = ms.staged(mlx.nn.value_and_grad(net, lambda net, x: net(x).feats.square().mean()))
    mx.eval(step(net, scan(1)))


def attend():
    net, x = ms.nn.SparseAttention(12, 2, window=4), scan(1)
    mx.eval(mx.grad(lambda f: net(x.replace(f)).feats.sum())(mx.ones((x.capacity, 12))))


def compress():
    net, optimizer, x = FourLevels(), mlx.optimizers.Adam(1e-3), scan(1)
    optimizer.init(net.trainable_parameters())
    blocks.Pruner("channels", 0.5).attach(net)
    optimizer.update(net, mlx.utils.tree_map(mx.ones_like, net.trainable_parameters()))
    blocks.compress(net, sample=x, optimizer=optimizer)


@pytest.mark.parametrize("run", [train_a_step, attend, compress])
def test_reference_counting_alone_frees(run):
    assert left_to_the_collector(run) == []


def test_memory_is_flat_over_2000_scans():
    net = FourLevels()
    step = mlx.nn.value_and_grad(net, lambda net, x: net(x).feats.square().mean())
    gc.collect()
    keys = ms.coords.default_manager().stats()["live_keys"]
    gc.disable()  # reference counting alone must free a scan
    try:
        for i in range(2000):
            mx.eval(step(net, scan(i)))
            if i == 100:
                settled = resident()
        grown = resident() - settled
    finally:
        gc.enable()
    assert grown < 8 * 2**20, f"{grown / 2**20:.1f} MiB more after 1,900 scans"
    assert ms.coords.default_manager().stats()["live_keys"] <= keys + 1


def test_a_key_dies_with_its_tensors():
    manager = ms.CoordinateManager()
    x = ms.SparseTensor(mx.array([[0, 0, 0, 0], [0, 5, 5, 5]]), mx.ones((2, 1)), manager=manager)
    y = ms.ops.conv3d(x, mx.ones((1, 2, 2, 2, 1)), stride=2)
    assert manager.stats()["live_keys"] == 2 and manager.stats()["live_maps"] == 1
    del x
    # The coarse tensor alone keeps neither the fine one nor the map between them.
    assert manager.stats()["live_keys"] == 1 and manager.stats()["live_maps"] == 0
    with pytest.raises(IdentityError, match="out=.*generative"):
        ms.ops.conv_transpose3d(y, mx.ones((1, 2, 2, 2, 1)), stride=2)
    del y
    assert manager.stats()["live_keys"] == 0


def test_a_long_lived_input_does_not_collect_maps_to_dead_outputs():
    manager = ms.CoordinateManager()
    x = ms.SparseTensor(mx.array([[0, 0, 0, 0], [0, 5, 5, 5]]), mx.ones((2, 1)), manager=manager)
    for i in range(5):
        ms.ops.conv3d(x, mx.ones((1, 2, 2, 2, 1)), stride=2, out=mx.array([[0, i, 0, 0]]))
    assert manager.stats()["live_maps"] == 0 and manager.stats()["live_keys"] == 1


def test_clear_drops_caches_and_results_stay_the_same():
    manager = ms.CoordinateManager()
    x = ms.SparseTensor(mx.array([[0, 4, 0, 0], [0, 0, 0, 1]]), mx.ones((2, 1)), manager=manager)
    before = ms.ops.conv3d(x, mx.ones((1, 2, 2, 2, 1)), stride=2)
    manager.clear()
    assert manager.stats()["live_maps"] == 0
    after = ms.ops.conv3d(x, mx.ones((1, 2, 2, 2, 1)), stride=2)
    assert after.feats.tolist() == before.feats.tolist() and after.key is not before.key


def test_parents_are_shared_by_pooling_and_convolution():
    x = scan(1)
    pooled = ms.ops.max_pool3d(x, 2)
    assert ms.ops.conv3d(x, mx.ones((1, 2, 2, 2, 1)), stride=2).key is pooled.key
    assert ms.ops.conv3d(x, mx.ones((1, 3, 3, 3, 1)), stride=2, support="parents").key is pooled.key
    assert ms.ops.conv3d(x, mx.ones((1, 3, 3, 3, 1)), stride=2).key is not pooled.key


def test_maps_from_several_threads():
    x = scan(2, 2000)
    key = x.key
    kernel = ms.Kernel.submanifold(3)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(x.manager.kernel_map(key, key, kernel)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(m is found[0] for m in found)


def test_another_tensor_on_the_same_rows_takes_no_maps_away():
    """A tensor that MLX rebuilds finds the first live record of its rows, whatever was made of them since."""

    def record_inside(x):
        seen = []
        mx.value_and_grad(lambda feats, t: (seen.append(t.key._record), feats.sum())[1])(x.feats, x)
        return seen[0]

    x = scan(3)
    first = x.key._record
    assert record_inside(x) is first
    other = ms.SparseTensor(x.coords, x.feats * 2, batch_size=x.batch_size)
    second = other.key._record
    assert second is not first and record_inside(x) is first
    del other, second
    gc.collect()
    assert record_inside(x) is first
    other = ms.SparseTensor(x.coords, x.feats * 2, batch_size=x.batch_size)
    second = other.key._record
    del x, first
    gc.collect()
    assert record_inside(other) is second


def test_a_thread_leaves_no_trace_to_mlx():
    """MLX drops what a thread has compiled after its end, and aborts a process that ends meanwhile."""
    x = mx.ones((2, 2))
    mx.eval(x)
    autodiff.traced(x)
    held, seen = sys.getrefcount(autodiff._look), []

    def work():
        autodiff.traced(x)
        seen.append(autodiff._seen.probe is not probe)

    probe = autodiff._seen.probe
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    left = sys.getrefcount(autodiff._look)  # pytest holds what an assert names
    assert seen == [True] and left == held
