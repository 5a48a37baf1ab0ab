"""Point-cloud files: LAS, LAZ, COPC, PCD, PLY, KITTI and nuScenes .bin, NumPy, text."""

from .cloud import PointCloud
from .points import read_points, write_labels

__all__ = ["PointCloud", "read_points", "write_labels"]
