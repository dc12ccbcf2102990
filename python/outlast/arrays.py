"""Arrays for collectives."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from outlast import _outlast
from outlast.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

_NAMES = {
    "u8": "uint8",
    "i8": "int8",
    "u16": "uint16",
    "i16": "int16",
    "u32": "uint32",
    "i32": "int32",
    "u64": "uint64",
    "i64": "int64",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
}


class ErrorFeedback:
    """Keeps what quantising loses, and adds it the next time, so that nothing is lost for good.

    With four bits a small gradient can be rounded away step after step. Give each tensor an `ErrorFeedback` of its own
    and call it before the collective:

    >>> import numpy as np
    >>> feedback = outlast.ErrorFeedback("int4")
    >>> gradient = np.array([1.0, 0.01], np.float32)
    >>> total = np.zeros(2)
    >>> for _ in range(100):
    ...     x = gradient.copy()
    ...     feedback(x)  # then: comm.all_reduce(x, op="avg", quantize="int4")
    ...     total += x
    >>> total.round()
    array([100.,   1.])

    Args:
        quantize: The same as the collective's: `"int4"` or `"int8"`.
    """

    def __init__(self, quantize: Literal["int4", "int8"] = "int4") -> None:
        self.quantize = quantize
        self._core = _outlast.ErrorFeedback(quantize)

    def __call__(self, x: Any) -> None:
        """Add to `x` what was lost before, round it to what can be sent, and remember what the rounding takes away."""
        self._core.apply(x)

    def reset(self) -> None:
        """Forget what was lost, for instance after the model was replaced."""
        self._core.reset()

    def __repr__(self) -> str:
        return f"<outlast.ErrorFeedback {self.quantize}>"


def empty(shape: int | Sequence[int], dtype: Any = "f32") -> "np.ndarray[Any, Any]":
    """Make an array for collectives, its contents undefined.

    Where peers on the same host can share memory, such an array is read by them without a copy; elsewhere it
    is a plain array. `dtype` is one of this package's names (`"f32"`, `"bf16"`, ..) or anything that numpy knows;
    `"bf16"` needs the package `ml_dtypes`.

    >>> outlast.empty((2, 3), "f32").shape
    (2, 3)
    """
    import numpy as np

    if dtype in ("bf16", "bfloat16"):
        try:
            import ml_dtypes
        except ImportError:
            raise InvalidArgument('dtype="bf16": numpy has no such type of its own; pip install ml_dtypes') from None
        dtype = ml_dtypes.bfloat16
    elif isinstance(dtype, str):
        dtype = _NAMES.get(dtype, dtype)
    try:
        return np.empty(shape, dtype)
    except TypeError as error:
        raise InvalidArgument(f"dtype={dtype!r}: {error}") from None
