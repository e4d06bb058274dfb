# The extension module tilewise._core, as nanobind.stubgen writes it (see tests/python/test_typing.py). The functions of
# operations that are stated by a schema have no line here: tilewise._calls finds them by name.
from collections.abc import Sequence

def empty(shape: Sequence[int], dtype: str, like: Array | None = None) -> object:
    """
    Uninitialised memory as a DLPack array, on the device of `like` (None: the CPU).
    """

class Array:
    """A borrowed DLPack array, as the core sees it."""

    def __init__(self, array: object | None, name: str, dtype: str = "", writable: bool = False) -> None:
        """
        Imports `array`; `name` appears in messages. `dtype` reinterprets elements, bytes as two of "fp4_e2m1".
        """

    @staticmethod
    def without_memory(
        shape: Sequence[int],
        strides: Sequence[int],
        dtype: str,
        device: str,
        device_index: int,
        address: int,
        name: str,
    ) -> Array:
        """
        What a tensor without memory would be on a device; its address is never read.
        """

    @staticmethod
    def planned(name: str, shape: Sequence[int], dtype: str) -> Array:
        """
        A contiguous array on the CPU without memory, for the checks of a call that does not run.
        """

    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    def __repr__(self) -> str: ...

class ExpressionBuilder:
    """Makes the text of a score_mod or mask_mod term by term."""

    def __init__(self, function: str) -> None: ...
    def variable(self, name: str) -> int: ...
    def boolean(self, value: bool) -> int: ...
    def integer(self, value: int) -> int: ...
    def real(self, value: float) -> int: ...
    def apply(self, word: str, operands: Sequence[int]) -> int: ...
    def add_table(self, dtype: str, rank: int) -> int: ...
    def lookup(self, table: int, indices: Sequence[int]) -> int: ...
    def type(self, term: int) -> str:
        """What it is: bool, int or float."""

    def finish(self, term: int) -> str:
        """The canonical text."""

def captured_parts(function: object, options: object, facts: tuple) -> object:
    """
    What tracing a function could see, as a key of all but the tensors, these, and the code that the key has
    by its address; or None. facts: those of tilewise._captured.
    """

def write_block_mask(
    mask_mod: str,
    tables: Sequence[Array],
    batch_size: int,
    num_heads: int,
    seqlen_q: int,
    seqlen_k: int,
    block_rows: int,
    block_keys: int,
    outputs: Sequence[Array],
) -> None:
    """
    Writes which blocks mask_mod leaves in part, and which ones whole: how many, and which. Sizes of 0: one for all.
    """

def layout_names() -> list[str]: ...

class AttentionOptions:
    """Everything about a call that is not q, k, v or an output."""

    def __init__(self, **options: object) -> None: ...
    @staticmethod
    def keywords() -> list[str]:
        """What a call of the class takes."""

def attention_forward(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    softmax_lse: Array | None,
    options: AttentionOptions,
    implementation: str = "",
    torch_threads: int = 0,
    fresh_out: bool = True,
    stream: int = 0,
) -> None:
    """
    Writes out and, where given, softmax_lse. torch_threads: torch.get_num_threads(), or 0 without torch.

    fresh_out: rows of out that belong to no packed sequence become 0 too. stream: a GPU's, as a number.
    """

def warm_up(
    q: Array,
    k: Array,
    v: Array,
    out: Array | None,
    softmax_lse: bool,
    gradients: Sequence[bool],
    options: AttentionOptions,
    implementation: str = "",
) -> None:
    """
    Makes the plans of a call and loads their kernels. gradients: those wanted of q, k, v, bias and sink.
    """

def synchronize(array: Array, stream: int = 0) -> None:
    """
    Waits for what a GPU's stream holds; on the CPU there is nothing to wait for.
    """

def output_shapes(
    q: Array, k: Array, v: Array, options: AttentionOptions, backward: bool = False
) -> tuple[list[int], list[int]]:
    """Checks a forward call and returns the shapes of out and softmax_lse."""

def attention_backward(
    dout: Array,
    dlse: Array | None,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    softmax_lse: Array,
    dq: Array | None,
    dk: Array | None,
    dv: Array | None,
    dbias: Array | None,
    dsink: Array | None,
    options: AttentionOptions,
    implementation: str = "",
    torch_threads: int = 0,
    stream: int = 0,
) -> None:
    """Writes the gradients that are given."""

class KvCacheOptions:
    """Everything about a step that is not q, a cache, k, v or out."""

    def __init__(self, **options: object) -> None: ...
    @staticmethod
    def keywords() -> list[str]:
        """What a call of the class takes."""

def kv_cache_attention(
    q: Array,
    k_cache: Array,
    v_cache: Array | None,
    k: Array | None,
    v: Array | None,
    out: Array,
    softmax_lse: Array | None,
    options: KvCacheOptions,
    implementation: str = "",
    torch_threads: int = 0,
    fresh_out: bool = True,
    stream: int = 0,
) -> None:
    """
    Appends k and v to the caches, where given, and writes out and softmax_lse.
    """

def append_kv(
    k_cache: Array,
    v_cache: Array | None,
    k: Array,
    v: Array | None,
    options: KvCacheOptions,
    implementation: str = "",
    torch_threads: int = 0,
    stream: int = 0,
) -> None:
    """Appends k and v to the caches."""

class Output:
    """A tensor that a call would write."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def sources(self) -> list[tuple[str, int]]:
        """
        Of each size the input and the axis that it is of; -1: it is stated, -2: it follows from others.
        """

def described_calls() -> list[dict[str, object]]:
    """
    Every kind of call of the operations that are stated by a schema; see tilewise._calls.
    """

class ExplainRow:
    """One implementation's verdict on a problem."""

    @property
    def implementation(self) -> str:
        """Its name, as the implementation= argument takes it."""

    @property
    def accepted(self) -> bool: ...
    @property
    def chosen(self) -> bool:
        """Whether a call would run it."""

    @property
    def estimated_us(self) -> float:
        """Estimated microseconds of an accepted one."""

    @property
    def reason(self) -> str:
        """Why it is refused, or the schedule of an accepted one."""

    def __repr__(self) -> str: ...

class Explanation:
    """Every implementation's verdict on one problem; prints as a table."""

    @property
    def problem(self) -> str:
        """
        The problem as one line, which explain() and the command line read back.
        """

    @property
    def rows(self) -> list[ExplainRow]:
        """ExplainRow of every implementation, in order."""

    @property
    def chosen(self) -> str | None:
        """The implementation that a call would run, or None."""

    def __str__(self) -> str: ...
    def __repr__(self) -> str: ...

def problem_fields() -> dict[str, list[str]]:
    """The keys of problem texts, by operation."""

def explain_forward(
    q: Array,
    k: Array,
    v: Array,
    out: Array | None,
    softmax_lse: bool,
    options: AttentionOptions,
    implementation: str = "",
    torch_threads: int = 0,
) -> Explanation: ...
def explain_problem(problem: str, implementation: str = "", torch_threads: int = 0) -> Explanation: ...
def warm_up_problem(problem: str, implementation: str = "") -> None:
    """Makes the plan of a problem and loads its kernels."""

def register_torch_operators(libtorch_path: str, python_on_gpu: Sequence[str]) -> str:
    """
    Registers the operators in the loaded libtorch; returns "" or why that cannot be done.
    """

def torch_schemas() -> list[str]:
    """The schemas of the torch operators."""

def rethrow_torch_error(message: str) -> None:
    """
    Raises the error that a torch operator reported with this message; returns if there is none.
    """

def jax_targets() -> list:
    """
    (target, platform, capsule) of each handler that jax.ffi is to register.
    """

def nearest_word(word: str, known: Sequence[str]) -> str:
    """
    The one of `known` that a mistyped word was probably meant to be, or "".
    """

def set_num_threads(num_threads: int, torch_threads: int) -> None:
    """torch_threads: torch.get_num_threads(), or 0 without torch."""

def get_num_threads(torch_threads: int) -> int: ...
def share_openmp_threads(shared: bool) -> None:
    """
    Whether calls work on the threads of the OpenMP runtime that a framework has loaded, where there is one.
    """

def version() -> str: ...
