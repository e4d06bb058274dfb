# What programs import from flash_attn and its kin after install(), beside whatever of it is installed too. Each test is
# a process of its own, since what is installed stays.
"""Imports of real code, FlashAttention-4 and FlashAttention-3 beside the drop-in."""

import subprocess
import sys

import pytest

# Lines of models, trainers and engines.
IMPORTS = """
from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache, __version__
from flash_attn import flash_attn_kvpacked_func, flash_attn_qkvpacked_func
from flash_attn import flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func
from flash_attn.bert_padding import index_first_axis, index_put_first_axis, pad_input, unpad_input
from flash_attn.bert_padding import index_first_axis_residual, unpad_input_for_concatenated_sequences
from flash_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_gpu
from flash_attn.flash_attn_interface import _flash_attn_forward, _flash_attn_backward
from flash_attn.flash_attn_interface import _flash_attn_varlen_forward, _flash_attn_varlen_backward
from flash_attn.flash_attn_interface import _wrapped_flash_attn_forward, _wrapped_flash_attn_varlen_forward
from flash_attn.flash_attn_triton import flash_attn_func
from flash_attn.layers.rotary import RotaryEmbedding
from flash_attn.layers.rotary import apply_rotary_emb, apply_rotary_emb_func, apply_rotary_emb_torch
from flash_attn.layers.rotary import apply_rotary_emb_qkv_, apply_rotary_emb_kv_
from flash_attn.layers.rotary import ApplyRotaryEmb, ApplyRotaryEmbQKV_, ApplyRotaryEmbKV_
from flash_attn.layers.patch_embed import PatchEmbed
from flash_attn.losses.cross_entropy import CrossEntropyLoss
from flash_attn.ops.triton.cross_entropy import cross_entropy_loss
from flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn, rms_norm_fn, layer_norm_linear_fn
from flash_attn.ops.triton.rotary import apply_rotary
from flash_attn.ops.triton.mlp import FusedDenseSqreluDense
from flash_attn.ops.rms_norm import RMSNorm, rms_norm, DropoutAddRMSNorm, dropout_add_rms_norm
from flash_attn.ops.layer_norm import DropoutAddLayerNorm, dropout_add_layer_norm, layer_norm
from flash_attn.ops.layer_norm import dropout_add_layer_norm_parallel_residual, dropout_add_layer_norm_subset
from flash_attn.ops.activations import swiglu, sqrelu_fwd, gelu_bwd, relu_bwd, sqrelu_bwd, fast_gelu_impl
from flash_attn.ops.fused_dense import FusedDense, FusedMLP, fused_mlp_func, fused_dense_func
from flash_attn.ops.fused_dense import ColumnParallelLinear, RowParallelLinear, ParallelFusedMLP
from flash_attn.modules.mha import MHA, ParallelMHA, FlashSelfAttention, FlashCrossAttention
from flash_attn.modules.mha import SelfAttention, CrossAttention, _update_kv_cache, get_alibi_slopes
from flash_attn.modules.mlp import Mlp, GatedMlp, ParallelMLP, ParallelGatedMlp, FusedMLP, ParallelFusedMLP
from flash_attn.modules.block import Block, ParallelBlock
from flash_attn.modules.embedding import GPT2Embeddings, BertEmbeddings, ParallelGPT2Embeddings
from flash_attn.modules.embedding import VocabParallelEmbedding, ColumnParallelEmbedding
from flash_attn.utils.benchmark import benchmark_forward, benchmark_all, benchmark_combined, pytorch_profiler
from flash_attn.utils.distributed import all_gather, all_gather_raw, all_reduce, reduce_scatter, sync_shared_params
from flash_attn.utils.distributed import allreduce_sequence_parallel_grad, get_dim_for_local_rank
from flash_attn.utils.generation import GenerationMixin, InferenceParams, decode, sample
from flash_attn.utils.pretrained import state_dict_from_pretrained
from flash_attn.utils.torch import custom_fwd, custom_bwd
from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
from flash_attn.cute.interface import flash_attn_func
from flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from flash_attn_interface import flash_attn_qkvpacked_func, flash_attn_combine, get_scheduler_metadata
from flash_attn_interface import _flash_attn_forward, _flash_attn_backward
from flash_attn_3.flash_attn_interface import flash_attn_func, _flash_attn_forward
import flash_attn_3, flash_attn_2_cuda, flash_attn.layers.rotary, flash_attn.modules.mha as mha
""".strip().splitlines()


def _python(code, *paths):
    begin = "".join(f"import sys; sys.path.insert(0, {str(path)!r})\n" for path in paths)
    return subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, timeout=240)


def _printed(code, *paths):
    done = _python(code, *paths)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imports_of_real_code():
    code = f"""
import sys, tilewise.compat.flash_attn as drop_in
drop_in.install()
for line in {IMPORTS!r}:
    try:
        exec(line)
    except ImportError as error:
        print(line, error)
foreign = [name for name, module in sys.modules.items() if name.startswith("flash_attn")
           and not module.__name__.startswith("tilewise.compat.flash_attn")]
print(foreign, {{"einops", "triton", "torchvision"}} & set(sys.modules) - {{"triton"}})
import flash_attn.modules.mha, tilewise.compat.flash_attn.modules.mha as same
print(flash_attn.modules.mha is same, sys.modules["flash_attn.modules.mha"] is same)
"""
    assert _printed(code) == "[] set()\nTrue True\n"


def test_what_is_found_without_an_import():
    """importlib's questions about modules and distributions are answered as its imports are."""
    code = """
import importlib.metadata, importlib.util, sys
import tilewise.compat.flash_attn as drop_in
try:
    importlib.metadata.version("flash_attn")
except importlib.metadata.PackageNotFoundError:
    print("not before")
drop_in.install()
for name in ("flash_attn", "flash-attn", "Flash.Attn", "flash_attn_3"):
    print(importlib.metadata.version(name))
print(importlib.metadata.distribution("flash-attn").metadata["Name"])
print(sum("flash" in (each.metadata["Name"] or "") for each in importlib.metadata.distributions()))
for name in ("flash_attn", "flash_attn.ops", "flash_attn.modules.mlp", "flash_attn_interface", "flash_attn_3"):
    assert importlib.util.find_spec(name).origin.endswith(".py"), name
assert "flash_attn.modules.mlp" not in sys.modules
try:
    importlib.util.find_spec("flash_attn.models")
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert _printed(code).split() == [
        "not", "before", "2.8.4", "2.8.4", "2.8.4", "3.0.0", "flash-attn", "2", "flash_attn.models",
    ]  # fmt: skip


@pytest.fixture
def flash_attention_4(tmp_path):
    """flash_attn/cute alone, as FlashAttention-4 installs itself, with a module below it and a distribution."""
    cute = tmp_path / "flash_attn" / "cute"
    (cute / "deeper").mkdir(parents=True)
    (cute / "__init__.py").write_text("from .interface import flash_attn_func\n")
    (cute / "interface.py").write_text(
        "from flash_attn.cute.deeper import NAME\ndef flash_attn_func():\n    return NAME\n"
    )
    (cute / "deeper" / "__init__.py").write_text("from flash_attn.cute.deeper.last import NAME\n")
    (cute / "deeper" / "last.py").write_text("NAME = 'four'\n")
    info = tmp_path / "flash_attn_4-4.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn-4\nVersion: 4.0.0\n")
    (info / "top_level.txt").write_text("flash_attn\n")
    return tmp_path


BOTH = """
import importlib.metadata, flash_attn
from flash_attn import flash_attn_func as two
from flash_attn.cute import flash_attn_func as four
from flash_attn.cute.interface import flash_attn_func as same
from flash_attn.layers.rotary import RotaryEmbedding
import flash_attn.cute.deeper.last, torch
print(flash_attn.__name__, two.__module__, four(), four is same, flash_attn.cute.flash_attn_func())
print(importlib.metadata.version("flash_attn"), importlib.metadata.version("flash-attn-4"))
print(hasattr(torch.ops.flash_attn, "_flash_attn_forward"))
"""
SAID = """tilewise.compat.flash_attn tilewise.compat.flash_attn.flash_attn_interface four True four
2.8.4 4.0.0
True
"""


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("order", ["first", "after"])
def test_flash_attention_4_and_the_drop_in_serve_both(flash_attention_4, force, order):
    before = "" if order == "first" else "import flash_attn.cute\n"
    install = f"import tilewise.compat.flash_attn as drop_in; drop_in.install(force={force}); drop_in.install()\n"
    assert _printed(before + install + BOTH, flash_attention_4) == SAID


def test_flash_attention_4_without_install(flash_attention_4):
    """Imported alone, the drop-in registers its operators, and FlashAttention-4 is what it was."""
    code = """
import torch, tilewise.compat.flash_attn
import flash_attn.cute
print(flash_attn.__name__, flash_attn.__file__, hasattr(torch.ops.flash_attn, "_flash_attn_forward"))
"""
    assert _printed(code, flash_attention_4) == "flash_attn None True\n"


def test_flash_attention_4_inside_flash_attention_2(flash_attention_4):
    """Where both are installed, force takes the place of the second and leaves the fourth."""
    (flash_attention_4 / "flash_attn" / "__init__.py").write_text("__version__ = '2.0'\n")
    install = "import tilewise.compat.flash_attn as drop_in; drop_in.install(force=True)\n"
    assert _printed(install + BOTH, flash_attention_4) == SAID
    refused = _python(install.replace("force=True", ""), flash_attention_4)
    assert "flash_attn: there is one already, from" in refused.stderr


def test_flash_attention_3_that_is_installed(tmp_path):
    (tmp_path / "flash_attn_interface.py").write_text("NAME = 'three'\n")
    code = """
import importlib.metadata, tilewise.compat.flash_attn as drop_in
drop_in.install()
import flash_attn_interface
print(flash_attn_interface.NAME)
try:
    import flash_attn_3
except ImportError as error:
    print(error)
drop_in.install(force=True)
import flash_attn_interface, flash_attn_3
print(flash_attn_interface.__name__, flash_attn_3.flash_attn_interface is flash_attn_interface)
print(importlib.metadata.version("flash-attn-3"))
"""
    assert _printed(code, tmp_path).splitlines() == [
        "three",
        "No module named 'flash_attn_3'",
        "tilewise.compat.flash_attn_3.flash_attn_interface True",
        "3.0.0",
    ]


def test_modules_that_were_pickled():
    """A pickle that names flash_attn's classes is read as ours."""
    code = """
import pickle, tilewise.compat.flash_attn as drop_in
drop_in.install()
from flash_attn.ops.rms_norm import RMSNorm
class Made:
    def __reduce__(self):
        return RMSNorm, (4,)
ours = b"tilewise.compat.flash_attn.ops.rms_norm"
written = pickle.dumps(Made(), protocol=0)
assert ours in written
print(type(pickle.loads(written.replace(ours, b"flash_attn.ops.rms_norm"))) is RMSNorm)
"""
    assert _printed(code) == "True\n"
