"""First steps: points to voxels, a convolution, the kernel map behind it, gradients, and back to points.

    python examples/first_steps.py
"""

import mlx.core as mx
import numpy as np

import mlxsparse as ms

mx.set_default_device(mx.cpu)
mx.random.seed(0)


def main() -> None:
    # A wavy floor of 20,000 points, in metres.
    rng = np.random.default_rng(0)
    points = rng.uniform(-5, 5, (20_000, 3))
    points[:, 2] = np.sin(points[:, 0]) * np.cos(points[:, 1])

    voxels = ms.voxelize(points, voxel_size=0.25)  # features: the mean position in each voxel
    x = voxels.tensor
    print(x)
    print("first site (batch, x, y, z):", x.coords[0].tolist(), " its features:", x.feats[0].tolist())

    # A submanifold convolution keeps the sites; a strided one makes coarser ones.
    conv = ms.nn.SubmConv3d(3, 8)
    down = ms.nn.Conv3d(8, 16, kernel_size=2, stride=2)
    up = ms.nn.ConvTranspose3d(16, 8, kernel_size=2, stride=2)
    fine = conv(x)
    coarse = down(fine)
    print(f"{fine.num_active} fine sites, {coarse.num_active} coarse ones of stride {coarse.stride}")

    # The way up lands on the very rows of the fine tensor, so that they can be added.
    y = up(coarse, out=fine) + fine
    assert y.key is x.key

    # A kernel map holds, tap by tap, which input row meets which output row. It is made once and kept.
    found = x.manager.kernel_map(x.key, x.key, ms.Kernel.submanifold((3, 3, 3)))
    print(found, f"= {found.num_pairs / x.num_active:.1f} neighbours a site")

    # Gradients reach weights and features.
    def loss(weight: mx.array, feats: mx.array) -> mx.array:
        return ms.ops.subm_conv3d(x.replace(feats), weight).feats.square().mean()

    value, (to_weight, to_feats) = mx.value_and_grad(loss, argnums=(0, 1))(conv.weight, x.feats)
    print(f"loss {value.item():.4f}; gradients of shape {to_weight.shape} and {to_feats.shape}")

    # Features at the points: of the voxel that holds each, or interpolated between voxel centres.
    nearest = voxels.devoxelize(feats=y)
    smooth = voxels.devoxelize(points, mode="trilinear", feats=y)
    print("at the points:", nearest.shape, smooth.shape)


if __name__ == "__main__":
    main()
