"""What this process can do with a GPU; with `nccl` the only module that knows CuPy."""

from __future__ import annotations


def describe() -> str:
    """Return the state of CuPy and the GPUs that it sees, with the reason where there is none."""
    try:
        import cupy
    except Exception as error:  # a broken installation raises more than ImportError
        return f"none (CuPy cannot be imported: {_first_line(error)})"
    try:
        names = [
            cupy.cuda.runtime.getDeviceProperties(device)["name"].decode()
            for device in range(cupy.cuda.runtime.getDeviceCount())
        ]
    except Exception as error:
        return f"none (CuPy {cupy.__version__} finds no usable GPU: {_first_line(error)})"
    return f"{len(names)} x {names[0]} (CuPy {cupy.__version__})" if names else f"none (CuPy {cupy.__version__})"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
