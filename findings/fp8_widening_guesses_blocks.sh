#!/usr/bin/env bash
# transformers 5.24.0 widens an fp8 weight by blocks that it computes from the number of its scales, not by the blocks
# that the checkpoint states. Where the last block is short, as DeepSeek's format allows, that is another size.
#
# DeepSeek-V3's kv_a_proj_with_mqa has 576 rows and 5 rows of scales, one for each 128 rows and one for the last 64. On a
# CPU, where transformers always widens, loading such a layer fails with a ValueError. Where the numbers happen to divide
# nothing is said and the weights are wrong: of 160 rows, with scales 1 and 2, the first 128 rows are to be 1 and the
# others 2, and become 80 rows of 1 and 80 of 2, through from_pretrained too. Seen on 2026-11-29:
# "160 rows: 80 x 1.0, 80 x 2.0 (stated blocks: 128 x 1.0, 32 x 2.0); 576 rows: ValueError".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
  torch==2.13.0 transformers==5.24.0 safetensors==0.8.0 accelerate==1.15.0 numpy==2.4.6
seen=$(cd "$work" && HF_HUB_OFFLINE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PY'
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

# A Llama whose down_proj, with a weight of 160 x 256, is quantised as the format has it.
config = LlamaConfig(hidden_size=160, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, vocab_size=32)
AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained("model")
name = "model.layers.0.mlp.down_proj.weight"
tensors = load_file("model/model.safetensors")
tensors[name] = torch.ones(160, 256).to(torch.float8_e4m3fn)
tensors[f"{name}_scale_inv"] = torch.tensor([[1.0], [2.0]]).expand(2, 2).contiguous()
save_file(tensors, "model/model.safetensors", metadata={"format": "pt"})
others = [f"model.layers.0.{part}" for part in ("self_attn", "mlp.gate_proj", "mlp.up_proj")]
quantisation = {
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": [*others, "lm_head"],
}
path = Path("model/config.json")
path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": quantisation}))
model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)
values, counts = model.get_parameter(name).detach()[:, 0].unique_consecutive(return_counts=True)
rows = ", ".join(f"{count} x {value}" for value, count in zip(values.tolist(), counts.tolist()))
scales = torch.ones(5, 2)
try:
    Fp8Dequantize(None)._dequantize_one(torch.ones(576, 256).to(torch.float8_e4m3fn), scales)
    wide = "widened"
except ValueError as error:
    wide = type(error).__name__
print(f"160 rows: {rows} (stated blocks: 128 x 1.0, 32 x 2.0); 576 rows: {wide}")
PY
) || { cat "$work/log" >&2; exit 1; }
echo "transformers 5.24.0: $seen"
[[ $seen == "160 rows: 80 x 1.0, 80 x 2.0 (stated blocks: 128 x 1.0, 32 x 2.0); 576 rows: ValueError" ]] || { echo "this has changed" >&2; exit 1; }
