"""Pictures of point clouds, voxels and trainings."""
