"""Checks of Metal kernels on a machine without Metal (docs/kernels.md). Not part of the installed package."""
