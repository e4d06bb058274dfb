#!/usr/bin/env bash
# Windowed layers on SGLang's torch_native backend, sglang 0.5.23 with torch 2.14.1, on a CPU.
#
# SWAKVPool keeps the keys of windowed layers in a pool of fewer places, and a mapping from the full pool's. torch_native
# writes a token's keys to its mapped place and reads them from the place that the table has, which is the full pool's:
# equal only while both allocators hand out equal places. intel_amx translates what it reads, too. A request of one
# token, whose result must be its own value, seen on 2026-11-29:
#   full layer 0.00, windowed layer 5.00 away from the token's value; with equal places 0.00 and 0.00
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip=("$work/venv/bin/pip" install -q --disable-pip-version-check)
# What SGLang imports where there is no GPU; all that it asks for would be kernels for GPUs.
"${pip[@]}" torch==2.14.1 torchvision==0.29.1 transformers==5.19.0 aiohttp==3.14.5 apache-tvm-ffi==0.1.11 \
  compressed-tensors==0.20.1 dill==0.4.1 einops==0.8.2 fastapi==0.165.0 gguf==0.19.0 ipython==9.18.1 msgspec==0.23.0 \
  numpy==2.4.6 openai==2.8.0 orjson==3.13.0 partial-json-parser==0.2.1.1.post7 pillow==13.0.0 psutil==7.2.2 \
  pybase64==1.5.1 pyzmq==27.3.0 requests==2.34.2 sentencepiece==0.2.3
"${pip[@]}" --no-deps sglang==0.5.23
cat >"$work/use.py" <<'PY'
from types import SimpleNamespace

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.runtime_context import get_context


def distance(layer_id, mapped):
    """From the token's value, which is 5 everywhere, in a pool of zeros."""
    pool = SWAKVPool(32, 16, 1, torch.float32, 1, 16, [1], [0], "cpu")
    mapping = torch.zeros(34, dtype=torch.int64)
    mapping[7] = mapped
    pool.register_mapping(mapping)
    table = ReqToTokenPool(2, 8, "cpu", False)
    table.req_to_token[1, 0] = 7
    backend = TorchNativeAttnBackend(SimpleNamespace(device="cpu", req_to_token_pool=table, token_to_kv_pool=pool))
    one = torch.ones(1, dtype=torch.int64)
    batch = ForwardBatch(
        forward_mode=ForwardMode.DECODE, batch_size=1, input_ids=one, req_pool_indices=one, seq_lens=one,
        out_cache_loc=7 * one, seq_lens_sum=1,
    )
    layer = RadixAttention(1, 16, 0.25, 1, layer_id, sliding_window_size=4 if layer_id == 1 else -1)
    value = torch.full((1, 1, 16), 5.0)
    backend.init_forward_metadata(batch)
    out = backend.forward(torch.ones(1, 16), torch.ones(1, 1, 16), value.clone(), layer, batch)
    return (out - value.view(1, 16)).abs().max().item()


with get_context().override_server_args():
    apart, equal = ([distance(layer, mapped) for layer in (0, 1)] for mapped in (3, 7))
print(f"full layer {apart[0]:.2f}, windowed layer {apart[1]:.2f} away from the token's value; "
      f"with equal places {equal[0]:.2f} and {equal[1]:.2f}")
PY
found=$("$work/venv/bin/python" "$work/use.py" 2>"$work/log" | tail -n 1) || { tail -n 5 "$work/log" >&2; exit 1; }
echo "sglang 0.5.23: $found"
expected="full layer 0.00, windowed layer 5.00 away from the token's value; with equal places 0.00 and 0.00"
[[ $found == "$expected" ]] || { echo "this has changed" >&2; exit 1; }
