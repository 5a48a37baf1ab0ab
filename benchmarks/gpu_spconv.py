"""spconv's side of benchmarks/gpu.py: python benchmarks/gpu_spconv.py WORK.npz fp16|fp32|tf32 [TEXT ...].

Prints JSON lines {case: {"sync": ms, "chain": ms, "peak MiB": ...}}. Needs torch with CUDA and spconv-cu126.
"""

from __future__ import annotations

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from spconv import constants

PRECISION = sys.argv[2]
constants.SPCONV_ALLOW_TF32 = PRECISION == "tf32"

import spconv.pytorch as sp  # noqa: E402
from spconv.core import ConvAlgo  # noqa: E402
from spconv.pytorch import ops  # noqa: E402
from torch import nn  # noqa: E402

from benchmarks import gpu_cases  # noqa: E402
from benchmarks.gpu_cases import BLOCKS, CHANNELS, CLASSES, CLOUDS, IN_CHANNELS, LEVELS, measure  # noqa: E402

DTYPE = torch.float16 if PRECISION == "fp16" else torch.float32
ONLY = sys.argv[3:] or [""]


def wait(_):
    torch.cuda.synchronize()


def report(name, run, calls=20, chain=None):
    if not gpu_cases.wanted(name, ONLY):
        return
    torch.cuda.empty_cache()
    cuda = torch.cuda
    try:
        found = measure(run, wait, calls, chain, cuda.max_memory_allocated, cuda.reset_peak_memory_stats)
    except Exception as error:
        print(f"{name}: {error}", file=sys.stderr)
        return
    print(json.dumps({name: found}), flush=True)


class Norm(nn.Module):
    def __init__(self, channels, act=True):
        super().__init__()
        self.norm, self.act = nn.BatchNorm1d(channels), act

    def forward(self, x):
        y = self.norm(x.features)
        return x.replace_feature(torch.relu_(y) if self.act else y)


class Block(nn.Module):
    def __init__(self, a, b, key):
        super().__init__()
        self.one, self.two = (sp.SubMConv3d(c, b, 3, bias=False, indice_key=key) for c in (a, b))
        self.first, self.second = Norm(b), Norm(b, False)
        self.shortcut = nn.Linear(a, b, bias=False) if a != b else nn.Identity()

    def forward(self, x):
        y = self.second(self.two(self.first(self.one(x))))
        return y.replace_feature(torch.relu(y.features + self.shortcut(x.features)))


def blocks(a, b, key):
    return nn.Sequential(*(Block(a if i == 0 else b, b, key) for i in range(BLOCKS)))


class MinkUNet(nn.Module):
    """The network of mlxsparse.models.minkunet."""

    def __init__(self):
        super().__init__()
        c, n = LEVELS, len(LEVELS)
        self.stem = nn.ModuleList(
            [sp.SubMConv3d(IN_CHANNELS, c[0], 3, bias=False, indice_key="s0"), Norm(c[0])]
            + [sp.SubMConv3d(c[0], c[0], 3, bias=False, indice_key="s0"), Norm(c[0])]
        )
        self.down = nn.ModuleList(
            sp.SparseConv3d(c[i], c[i], 2, 2, bias=False, indice_key=f"d{i}") for i in range(n - 1)
        )
        self.down_norm = nn.ModuleList(Norm(c[i]) for i in range(n - 1))
        self.encoder = nn.ModuleList(blocks(c[i], c[i + 1], f"s{i + 1}") for i in range(n - 1))
        up = range(n - 2, -1, -1)
        self.up = nn.ModuleList(
            sp.SparseInverseConv3d(c[i + 1], c[i], 2, indice_key=f"d{i}", bias=False) for i in up
        )
        self.up_norm = nn.ModuleList(Norm(c[i]) for i in up)
        self.decoder = nn.ModuleList(blocks(2 * c[i], c[i], f"s{i}") for i in up)
        self.head = nn.Linear(c[0], CLASSES)

    def forward(self, x):
        for layer in self.stem:
            x = layer(x)
        skips = []
        for down, norm, block in zip(self.down, self.down_norm, self.encoder):
            skips.append(x)
            x = block(norm(down(x)))
        for up, norm, block in zip(self.up, self.up_norm, self.decoder):
            skip = skips.pop()
            x = norm(up(x))
            x = block(x.replace_feature(torch.cat([x.features, skip.features], 1)))
        return self.head(x.features)


def run_cloud(name, coords):
    coords = coords.astype(np.int32)
    coords[:, 1:] -= coords[:, 1:].min(0)
    n, batch = len(coords), int(coords[:, 0].max()) + 1
    index = torch.from_numpy(coords).cuda()
    shape = [int(v) // 16 * 16 + 16 for v in coords[:, 1:].max(0)]

    def tensor(feats):
        return sp.SparseConvTensor(feats, index, shape, batch)

    def rand(*size):
        return torch.randn(*size, device="cuda", dtype=DTYPE)

    if PRECISION == "fp16":  # once
        arguments = ([3] * 3, [1] * 3, [1] * 3, [1] * 3, [0] * 3)
        report(
            f"{name} map only subm3",
            lambda: ops.get_indice_pairs_implicit_gemm(
                index, batch, shape, ConvAlgo.MaskImplicitGemm, *arguments, subm=True, is_train=False
            ),
        )
    # Functions of their own: what a case leaves behind would be in the peaks of the next.
    for c in CHANNELS:
        convolution(name, n, c, tensor, rand)
    if PRECISION != "tf32":
        created(name, n, tensor, rand)
    if PRECISION == "fp16":
        network(name, n, tensor, rand)


def convolution(name, n, c, tensor, rand):
    feats = rand(n, c)
    conv = sp.SubMConv3d(c, c, 3, bias=False, indice_key="k").cuda().to(DTYPE)
    with torch.no_grad():
        x = tensor(feats)
        known = conv(x).indice_dict
        x.indice_dict = known

        def chain(times):
            y = x
            for _ in range(times):
                y = conv(y)
            return y

        report(f"{name} {PRECISION} subm{c}, map cached", lambda: conv(x), chain=chain)
        if c == 32:
            report(f"{name} {PRECISION} map+subm32", lambda: conv(tensor(feats)), 10)
    x = known = None
    ct, leaf = rand(n, c), feats.requires_grad_(True)
    known = conv(tensor(leaf)).indice_dict

    def step():
        x = tensor(leaf)
        x.indice_dict = known
        conv(x).features.backward(ct)
        leaf.grad = conv.weight.grad = None

    report(f"{name} {PRECISION} subm{c}, map cached, forward and both gradients", step, 10)


def created(name, n, tensor, rand):
    feats = rand(n, 64)
    with torch.no_grad():
        for k, p in ((2, 0), (3, 1)):
            conv = sp.SparseConv3d(64, 64, k, 2, p, bias=False).cuda().to(DTYPE)
            report(f"{name} {PRECISION} conv k{k}s2 map+conv", lambda conv=conv: conv(tensor(feats)), 10)
        pool = sp.SparseMaxPool3d(2, 2).cuda()
        report(f"{name} {PRECISION} maxpool k2s2 map+pool", lambda: pool(tensor(feats)), 10)


def network(name, n, tensor, rand):
    net = MinkUNet().cuda().half()
    feats = rand(n, IN_CHANNELS)
    net.eval()
    with torch.no_grad():
        report(f"{name} fp16 MinkUNet inference, maps and all", lambda: net(tensor(feats)), 10)
        known = tensor(feats)
        net(known)

        def cached():
            x = tensor(feats)
            x.indice_dict = known.indice_dict
            return net(x)

        report(f"{name} fp16 MinkUNet inference, maps cached", cached, 10)
    net.train()
    known = None
    labels = torch.randint(0, CLASSES, (n,), device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(net(tensor(feats)).float(), labels)
        loss.backward()
        optimizer.step()

    report(f"{name} fp16 MinkUNet training step", step, 5)


if __name__ == "__main__":
    torch.manual_seed(0)
    work = np.load(sys.argv[1])
    for label in CLOUDS:
        if label in work:
            run_cloud(label, work[label])
