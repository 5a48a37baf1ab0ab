"""Every kernel case on this machine's GPU, against NumPy: `python tests/gpu/run_kernels.py [TEXT]`.

Needs MLX with Metal or CUDA, and NumPy; no network, no test runner. TEXT: only cases whose name contains it.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import sys
import time
import traceback

os.environ.setdefault("MLXSPARSE_KERNEL_CASES", "large")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import mlx.core as mx  # noqa: E402

PARTS = tuple("tiles attend blocks segments conv bits coords fixed sites norm order rows".split())


def device_name() -> str:
    info = getattr(mx, "device_info", None)  # not in every MLX that we support
    return str(info().get("device_name", "")) if info else ""


def main() -> int:
    from mlxsparse.errors import DeviceError

    if not (mx.metal.is_available() or mx.cuda.is_available()):
        raise DeviceError("needs MLX with Metal or CUDA")
    mx.set_default_device(mx.gpu)
    print(f"mlx {mx.__version__}, {mx.default_device()}, {device_name()}", flush=True)
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    failed: list[str] = []
    passed = 0
    for part in PARTS:
        module = importlib.import_module(f"tests.kernels.cases_{part}")
        for name, case in module.CASES.items():
            label = f"{part}/{name}"
            if only not in label:
                continue
            start = time.time()
            try:
                case()
                mx.synchronize()
                passed += 1
                print(f"PASS {label} {time.time() - start:.2f} s", flush=True)
            except Exception as error:  # whatever a case raises is its failure
                failed.append(label)
                print(f"FAIL {label} {type(error).__name__}: {str(error)[:1500]}", flush=True)
                if not isinstance(error, AssertionError):
                    traceback.print_exc(limit=-4)
    print(f"{passed} passed, {len(failed)} failed {failed}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
