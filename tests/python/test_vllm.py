"""tilewise.vllm beside stand-ins of vLLM's classes, release by release: what is registered when, what the backend
answers, what its layers compute over caches of every layout, and what is refused by name."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import logging
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vllm_stand_in  # noqa: E402
from vllm_stand_in import RELEASES  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=RELEASES)
def release(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("TILEWISE_VLLM", raising=False)
    vllm_stand_in.install(monkeypatch, request.param)
    return request.param


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWISE_VLLM", raising=False)
    vllm_stand_in.install(monkeypatch, "0.32.0")


def module(name: str) -> Any:
    return importlib.import_module(name)


def registered() -> dict[str, str]:
    members = module("vllm.v1.attention.backends.registry").AttentionBackendEnum
    return {member.name: member.get_path() for member in members if member.is_overridden()}


def metadata(**changes: Any) -> Any:
    """That of one request with one token, but for `changes`."""
    one = torch.ones(1, dtype=torch.int32)
    given = {
        "query_start_loc": torch.tensor([0, 1], dtype=torch.int32), "query_start_loc_cpu": None, "seq_lens": one,
        "num_reqs": 1, "num_actual_tokens": 1, "max_query_len": 1, "max_seq_len": 1, "block_table_tensor": one[None],
        "slot_mapping": one.long(),
    }  # fmt: skip
    return module("vllm.v1.attention.backend").CommonAttentionMetadata(**{**given, **changes})


def build(common: Any, **more: Any) -> Any:
    builder = module("tilewise.vllm.backend").TilewiseBuilder(None, ["layer.0"], SimpleNamespace(), "cpu")
    return builder.build(0, common, **more)


# ---- what is registered ---------------------------------------------------------------------


def test_vllm_finds_the_entry_point() -> None:
    found = {(entry.name, entry.value) for entry in importlib.metadata.entry_points(group="vllm.general_plugins")}
    assert ("tilewise", "tilewise.vllm:register") in found


def test_nothing_changes_until_it_is_asked(release: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        module("tilewise.vllm").register()
    assert registered() == {"CUSTOM": "tilewise.vllm.backend.TilewiseBackend"}
    assert not module("vllm.model_executor.custom_op").op_registry_oot
    assert not caplog.records
    assert "tilewise.vllm.backend" not in sys.modules, "nothing is imported that nobody uses"


def test_the_variable_asks_on_cpus(
    release: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("TILEWISE_VLLM", "experts, attention")
    for _ in range(2):
        module("tilewise.vllm").register()
    assert not caplog.records, "vLLM sets its loggers up later"
    experts = module("tilewise.vllm.experts").TilewiseExperts
    assert module("vllm.model_executor.custom_op").op_registry_oot == {"UnquantizedFusedMoEMethod": experts}
    assert registered()["CPU_ATTN"] == "tilewise.vllm.backend.TilewiseCpuBackend"
    members = module("vllm.v1.attention.backends.registry").AttentionBackendEnum
    for member in ("CPU_ATTN", "CUSTOM"):
        path = members[member].get_path()
        backend = getattr(module(path.rpartition(".")[0]), path.rpartition(".")[2])
        assert backend.get_name() == member, "vLLM looks the backend up by this name"
    for _ in range(2):
        backend.get_impl_cls()(4, 64, 0.1, 2)
        experts_method().process_weights_after_loading(experts_layer())
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(";")[0] for line in lines] == [
        "Tilewise computes attention",
        "Tilewise computes unquantised experts",
    ]
    assert all(f"in vLLM {release}, " in line for line in lines)


def test_the_variable_asks_for_experts_alone_on_gpus(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vllm_stand_in.install(monkeypatch, "0.26.0", cpu=False)
    monkeypatch.setenv("TILEWISE_VLLM", "attention,experts")
    caplog.set_level(logging.INFO)
    module("tilewise.vllm").register()
    assert set(registered()) == {"CUSTOM"}
    assert "use --attention-backend CUSTOM" in caplog.text
    experts = module("tilewise.vllm.experts").TilewiseExperts
    assert module("vllm.model_executor.custom_op").op_registry_oot == {"UnquantizedFusedMoEMethod": experts}


def test_latent_attention_is_asked_for_on_gpus(
    release: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM has one name for a backend of another package, whose class is of one kind of layers."""
    vllm_stand_in.install(monkeypatch, release, cpu=False)
    monkeypatch.setenv("TILEWISE_VLLM", "mla")
    for _ in range(2):
        module("tilewise.vllm").register()
    assert registered() == {"CUSTOM": "tilewise.vllm.mla.TilewiseMlaBackend"}
    prompts = module("vllm.v1.attention.backends.mla.prefill.registry").MLAPrefillBackendEnum.CUSTOM
    assert prompts.get_path() == "tilewise.vllm.mla.TilewiseMlaPrefill"
    assert not caplog.records
    mla = module("tilewise.vllm.mla")
    assert mla.TilewiseMlaBackend.get_name() == mla.TilewiseMlaPrefill.get_name() == "CUSTOM"
    assert mla.TilewiseMlaBackend.get_impl_cls() is mla.TilewiseMlaImpl
    assert mla.TilewiseMlaBackend.get_builder_cls() is mla.TilewiseMlaBuilder
    assert [mla.TilewiseMlaBackend.get_preferred_block_size(size) for size in (16, 128)] == [64, 128]
    for major in (7, 9):
        for cls in (mla.TilewiseMlaBackend, mla.TilewiseMlaPrefill):
            assert cls.supports_compute_capability(SimpleNamespace(major=major)) == (major == 9)


def test_latent_attention_on_a_cpu_is_vllms_own(
    vllm: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TILEWISE_VLLM", "mla")
    module("tilewise.vllm").register()
    assert "TILEWISE_VLLM=mla is for GPUs" in caplog.text and "CPU_ATTN" not in registered()


def test_a_word_that_is_none_is_refused(vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_VLLM", "attention,moe")
    with pytest.raises(
        ValueError, match=r"TILEWISE_VLLM: must be of attention, experts, linear, mla, .* \(got 'moe'\)"
    ):
        module("tilewise.vllm").register()
    assert not registered()


def test_another_plugins_classes_stay(
    vllm: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry = module("vllm.v1.attention.backends.registry")
    registry.register_backend(registry.AttentionBackendEnum.CUSTOM, "other.Backend")
    module("vllm.model_executor.custom_op").op_registry_oot["UnquantizedFusedMoEMethod"] = SimpleNamespace
    monkeypatch.setenv("TILEWISE_VLLM", "experts")
    module("tilewise.vllm").register()
    assert registered() == {"CUSTOM": "other.Backend"}
    assert "experts stay those of types.SimpleNamespace, which was registered before" in caplog.text


@pytest.mark.parametrize("cpu", [True, False])
def test_openmps_threads_are_shared_on_cpus(monkeypatch: pytest.MonkeyPatch, cpu: bool) -> None:
    """By each that makes layers of attention or of experts."""
    vllm_stand_in.install(monkeypatch, "0.32.0", cpu)
    module("tilewise.vllm.attention").TilewiseImpl(4, 64, 0.1)
    experts_method().process_weights_after_loading(experts_layer())
    assert len(vllm_stand_in.SHARED) == (2 if cpu else 0)


def test_a_release_that_is_not_known_gets_a_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vllm_stand_in.install(monkeypatch, "0.41.2")
    caplog.set_level(logging.INFO)
    module("tilewise.vllm.attention").TilewiseImpl(4, 64, 0.1)
    assert "knows vLLM 0.26, 0.32, 0.33, and not 0.41.2: what it does not know is refused by name" in caplog.text


# ---- what the backend answers ---------------------------------------------------------------


def test_the_backend_answers_the_selector(release: str) -> None:
    backend = module("tilewise.vllm.backend").TilewiseBackend
    layer: dict[str, Any] = {
        "head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "fp8_e4m3", "use_mla": False, "has_sink": True,
        "attn_type": "decoder", "has_sliding_window": True, "use_non_causal": True, "use_batch_invariant": True,
        "device_capability": SimpleNamespace(major=9, minor=0), "use_sparse": False, "a_field_of_tomorrow": False,
    }  # fmt: skip
    assert backend.validate_configuration(**layer) == []
    others = {
        "head_size": 12, "dtype": torch.float64, "kv_cache_dtype": "fp8_e5m2", "use_mla": True, "attn_type": "mamba",
        "device_capability": SimpleNamespace(major=7, minor=5), "use_sparse": True,
    }  # fmt: skip
    for name, value in others.items():
        assert backend.validate_configuration(**{**layer, name: value}) == [name]
    assert backend.validate_configuration(**{**layer, "dtype": torch.float32}) == ["dtype"], "GPUs have no such cache"
    assert torch.float32 in module("tilewise.vllm.backend").TilewiseCpuBackend.supported_dtypes
    sizes = [size.base for size in backend.get_supported_kernel_block_sizes(kv_cache_spec=None)]
    assert sizes == [16]
    assert backend.get_kv_cache_shape(7, 32, 4, 64, cache_dtype_str="auto") == (7, 4, 32, 128)
    assert not backend.forward_includes_kv_cache_update


def test_full_graphs_are_of_uniform_batches(release: str) -> None:
    """vLLM may replay a captured mixed batch with longer queries than it was captured with."""
    support = module("vllm.v1.attention.backend").AttentionCGSupport
    assert module("tilewise.vllm.backend").TilewiseBuilder._cudagraph_support is support.UNIFORM_BATCH


def test_a_steps_metadata(release: str) -> None:
    step = build(metadata(num_reqs=2, query_start_loc=torch.tensor([0, 3, 4, 4, 4]), seq_lens=torch.arange(4),
                          block_table_tensor=torch.arange(8).view(4, 2), is_prefilling=torch.ones(2)))  # fmt: skip
    assert (len(step.query_start_loc), len(step.seq_lens), len(step.block_table), step.causal) == (3, 2, 2, True)
    step.slot_mapping = None  # as vLLM's builder of cross-attention does


@pytest.mark.parametrize("field", ["dcp_local_seq_lens", "mm_req_doc_ranges", "rswa_prefix_lens"])
def test_metadata_that_is_not_honoured_is_refused(release: str, field: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{field}: is not supported by tilewise's attention in vLLM"):
        build(metadata(**{field: torch.ones(1)}))


def test_causality_of_each_request_is_refused(vllm: None) -> None:
    with pytest.raises(NotImplementedError, match="causal: must be one bool for a batch"):
        build(metadata(causal=torch.tensor([True])))


def test_fields_and_keywords_of_newer_releases(vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are accepted where they say nothing."""
    base = module("vllm.v1.attention.backend").CommonAttentionMetadata
    newer = dataclasses.make_dataclass(
        "Newer", [("sparse_blocks", Any, dataclasses.field(default=None))], bases=(base,)
    )
    monkeypatch.setattr(module("vllm.v1.attention.backend"), "CommonAttentionMetadata", newer)
    assert build(metadata(), draft_index=None).num_reqs == 1
    with pytest.raises(NotImplementedError, match=r"sparse_blocks: .* passed by vLLM's metadata \(got Tensor\)"):
        build(metadata(sparse_blocks=torch.ones(1)))
    with pytest.raises(NotImplementedError, match=r"draft_index: .* passed by vLLM's metadata builder \(got 3\)"):
        build(metadata(), draft_index=3)


# ---- experts --------------------------------------------------------------------------------


def experts_layer(activation: str = "silu", **changes: Any) -> Any:
    torch.manual_seed(0)
    rows = 24 if activation.endswith("_no_mul") else 48
    given = {
        "layer_name": "layers.0.experts", "activation": SimpleNamespace(value=activation), "expert_map": None,
        "w13_weight": torch.randn(4, rows, 32) / 6, "w2_weight": torch.randn(4, 32, 24) / 5, "swiglu_alpha": None,
        "swiglu_limit": None, "swiglu_beta": None, "apply_router_weight_on_input": False, "repacked": False,
    }  # fmt: skip
    return SimpleNamespace(**{**given, **changes})


def experts_method(**sizes: int) -> Any:
    ranks = SimpleNamespace(**{f"{name}_size": sizes.get(name, 1) for name in ("tp", "pcp", "dp", "ep", "sp")})
    return module("tilewise.vllm.experts").TilewiseExperts(SimpleNamespace(moe_parallel_config=ranks))


def run_experts(layer: Any, method: Any) -> Any:
    torch.manual_seed(1)
    x, weights, ids = torch.randn(5, 32), torch.rand(5, 2), torch.randint(4, (5, 2), dtype=torch.int32)
    method.process_weights_after_loading(layer)
    out = method.forward_native(layer, x, weights, ids, shared_experts=None, shared_experts_input=None)
    return out, x, weights, ids


ACTIVATIONS = {
    "silu": lambda h: torch.nn.functional.silu(h[:24]) * h[24:],
    "gelu_tanh": lambda h: torch.nn.functional.gelu(h[:24], approximate="tanh") * h[24:],
    "relu2_no_mul": lambda h: torch.relu(h).square(),
    "swigluoai": lambda h: (lambda g, u: g * torch.sigmoid(1.702 * g) * (u + 1))(
        h[0::2].clamp(max=0.5), h[1::2].clamp(-0.5, 0.5)
    ),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_experts(vllm: None, activation: str) -> None:
    own = {"swiglu_limit": 0.5, "swiglu_beta": 1.0} if activation == "swigluoai" else {}
    biases = {"w13_bias": torch.randn(4, 24 if activation.endswith("_no_mul") else 48), "w2_bias": torch.randn(4, 32)}
    layer = experts_layer(activation, **own, **biases)
    out, x, weights, ids = run_experts(layer, experts_method())
    assert not layer.repacked
    for token, (row, w, e) in enumerate(zip(x, weights, ids.tolist())):
        hidden = [ACTIVATIONS[activation](layer.w13_weight[i] @ row + layer.w13_bias[i]) for i in e]
        parts = [layer.w2_weight[i] @ h + layer.w2_bias[i] for i, h in zip(e, hidden)]
        torch.testing.assert_close(out[token], w[0] * parts[0] + w[1] * parts[1], rtol=1e-4, atol=1e-4)


def test_experts_that_are_tilewises_leave_routing_to_vllm(vllm: None) -> None:
    """Nor do they ask for what takes tokens to other ranks, which vLLM's own would be asked for."""
    ours, theirs = experts_method(), experts_method(tp=2)
    for method in (ours, theirs):
        method.process_weights_after_loading(experts_layer())
    assert (ours.is_monolithic, theirs.is_monolithic) == (False, True)
    assert ours.maybe_make_prepare_finalize(routing_tables=None) is None
    with pytest.raises(ValueError, match="should not be called"):
        theirs.maybe_make_prepare_finalize(routing_tables=None)


@pytest.mark.parametrize(
    ("changes", "ranks", "reason"),
    [
        ({}, {"tp": 2}, "its experts are spread over ranks"),
        ({"expert_map": torch.zeros(8)}, {}, "it has a map of experts"),
        ({"activation": "situ"}, {}, r"moe\(\) has no activation situ"),
        ({"swiglu_limit": 7.0}, {}, r"its silu has limit=7.0"),
        ({"activation": "swigluoai", "swiglu_beta": 0.5}, {}, "its swigluoai has beta=0.5"),
        ({"w2_weight": torch.zeros(4, 32, 24, dtype=torch.float8_e4m3fn)}, {}, "its weights are"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_other_experts_are_vllms_own(
    vllm: None, changes: Any, ranks: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    layer = experts_layer(**changes)
    out, *_ = run_experts(layer, experts_method(**ranks))
    assert out == "vLLM's own" and layer.repacked
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("layers.0.experts: its experts are vLLM's own, since ")
    assert re.search(reason, line)
