"""What this process can do with NCCL."""

from __future__ import annotations


def describe() -> str:
    """Return the version of NCCL that CuPy reaches, or why there is none."""
    try:
        from cupy.cuda import nccl
    except Exception as error:
        return f"none (CuPy cannot be imported: {(str(error).strip() or type(error).__name__).splitlines()[0]})"
    if not nccl.available:
        return "none (CuPy was built without it, or the library is missing)"
    return f"version {nccl.get_version()}"
