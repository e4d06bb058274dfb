# The words of traced functions: what they are to an expression.
"""Names of torch's functions and dtypes as expressions have them."""

from __future__ import annotations

DTYPES = {
    "float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64", "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2", "bool": "bool", "uint8": "u8", "int32": "i32", "int64": "i64",
}  # fmt: skip
# What torch's functions, its methods and Python's operators do, by their names.
OPERATORS = {
    "add": "+", "sub": "-", "subtract": "-", "mul": "*", "multiply": "*", "div": "/", "divide": "/", "truediv": "/",
    "true_divide": "/", "floordiv": "//", "floor_divide": "//", "mod": "%", "remainder": "%", "neg": "-",
    "negative": "-", "abs": "abs", "absolute": "abs", "exp": "exp", "exp2": "exp2", "log": "log", "tanh": "tanh",
    "where": "select", "minimum": "min", "maximum": "max", "clamp_min": "max", "clamp_max": "min", "lt": "<",
    "less": "<", "le": "<=", "less_equal": "<=", "eq": "==", "ne": "!=", "not_equal": "!=", "logical_and": "&",
    "bitwise_and": "&", "and": "&", "logical_or": "|", "bitwise_or": "|", "or": "|", "logical_not": "~",
    "bitwise_not": "~", "invert": "~", "logical_xor": "!=", "bitwise_xor": "!=", "xor": "!=",
}  # fmt: skip
SWAPPED = {"gt": "<", "greater": "<", "ge": "<=", "greater_equal": "<=", "rsub": "-"}
REFLECTED = ("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rand", "ror", "rxor", "rdiv")
FILLED = {"new_ones": 1, "ones_like": 1, "new_zeros": 0, "zeros_like": 0, "new_full": None, "full_like": None}
# What stand-ins have as methods.
METHODS = (
    *OPERATORS, *SWAPPED, "clamp", "clip", "pow", "square", "relu", "to", "float", "int", "long", "bool", "type_as",
    "item", "detach", "clone", "contiguous", "new_ones", "new_zeros", "new_full",
)  # fmt: skip
