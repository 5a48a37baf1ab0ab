"""Pictures of point clouds and voxels."""
