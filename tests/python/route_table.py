# Routers of transformers 5.24 that route() serves, and those that keep a rule of their own: what their code does by
# default.
"""A table of routers."""

from __future__ import annotations

from typing import NamedTuple, Optional

# folder, class, score, order, selected by, n_group/topk_group, group value, value outside of groups, normalised,
# epsilon (">=": at least so much), factor of the weights, experts, top_k; "?" where a checkpoint sets it.
_SERVED = """
afmoe AfmoeTokenChoiceRouter sigmoid sigmoid_then_topk score+bias - - - yes 1e-20 1 64 6
aria AriaTextTopKRouter softmax topk_then_softmax logits - - - no 0 1 8 2
axk1 AXK1TopkRouter sigmoid sigmoid_then_topk score+bias 8/4 sum -inf yes 1e-20 2.5 192 8
axk2 AXK2TopkRouter sigmoid sigmoid_then_topk score+bias - - - yes 1e-20 2.5 128 8
bailing_hybrid BailingHybridTopkRouter sigmoid sigmoid_then_topk score+bias 8/4 sum -inf yes 1e-20 2.5 512 8
beam BeamTopKRouter sigmoid sigmoid_then_topk score+bias 8/4 sum -inf yes 1e-20 2.5 256 8
cohere2_moe Cohere2MoeTopKRouter softmax topk_then_score logits - - - yes 0 1 8 2
dbrx DbrxRouter softmax softmax_then_topk score - - - yes 0 1 4 1
deepseek_ocr2 DeepseekOcr2TextTopkRouter softmax softmax_then_topk score - - - no 0 1 64 ?
deepseek_v2 DeepseekV2TopkRouter softmax softmax_then_topk score - - - no 0 1 64 ?
deepseek_v3 DeepseekV3TopkRouter sigmoid sigmoid_then_topk score+bias 8/4 sum -inf yes 1e-20 2.5 256 8
deepseek_v32 DeepseekV32TopkRouter sigmoid sigmoid_then_topk score+bias 8/4 sum -inf yes 1e-20 2.5 256 8
deepseek_v4 DeepseekV4TopKRouter sqrtsoftplus score_then_topk score+bias - - - yes 1e-20 1.5 256 6
diffusion_gemma DiffusionGemmaTextRouter softmax softmax_then_topk score - - - yes 0 1 ? ?
dots1 Dots1TopkRouter sigmoid sigmoid_then_topk score+bias - - - yes 1e-20 ? ? ?
dots3_note Dots3NoteTextTopkRouter sigmoid sigmoid_then_topk score+bias 1/1 sum -inf yes 1e-20 1 256 8
dots3_note Dots3NoteVisionTopKRouter sigmoid sigmoid_then_topk score+bias - - - yes 1e-20 1 ? 2
ernie4_5_moe Ernie4_5_MoeTopKRouter softmax softmax_then_topk score+bias - - - yes >=1e-12 1 64 6
ernie4_5_vl_moe Ernie4_5_VLMoeMoeTopKRouter softmax softmax_then_topk score+bias - - - yes >=1e-12 1 64 6
exaone_moe ExaoneMoeTopkRouter sigmoid sigmoid_then_topk score+bias 1/1 sum -inf yes 1e-20 2.5 64 8
flex_olmo FlexOlmoTopKRouter softmax softmax_then_topk score - - - no 0 1 7 5
flint FlintTopKRouter sigmoid sigmoid_then_topk score - - - yes 0 1 256 6
gemma4 Gemma4TextRouter softmax softmax_then_topk score - - - yes 0 1 ? ?
glm4_moe Glm4MoeTopkRouter sigmoid sigmoid_then_topk score+bias 1/1 sum -inf yes 1e-20 1 128 8
glm4_moe_lite Glm4MoeLiteTopkRouter sigmoid sigmoid_then_topk score+bias 1/1 sum -inf yes 1e-20 1.8 64 4
glm4v_moe Glm4vMoeTextTopkRouter sigmoid sigmoid_then_topk score+bias 1/1 sum -inf yes 1e-20 1 128 8
glm5_next Glm5NextTextTopkRouter sigmoid sigmoid_then_topk score+bias 1/1 sum -inf yes 1e-20 2.5 288 8
glm_moe_dsa GlmMoeDsaTopkRouter sigmoid sigmoid_then_topk score+bias 1/1 sum -inf yes 1e-20 2.5 256 8
gpt_oss GptOssTopKRouter softmax topk_then_softmax logits - - - no 0 1 128 4
granitemoe GraniteMoeTopKRouter softmax topk_then_softmax logits - - - no 0 1 8 2
granitemoe_swa GraniteMoeSWATopKRouter softmax topk_then_softmax logits - - - no 0 1 8 2
granitemoehybrid GraniteMoeHybridTopKRouter softmax topk_then_softmax logits - - - no 0 1 8 2
granitemoeshared GraniteMoeSharedTopKRouter softmax topk_then_softmax logits - - - no 0 1 8 2
hunyuan_v1_moe HunYuanMoEV1Gate softmax softmax_then_topk score - - - yes 0 1 1 1
hy_v3 HYV3TopKRouter sigmoid sigmoid_then_topk score+bias - - - yes 1e-20 2.826 192 8
hy_v4 HYV4TopkRouter sigmoid sigmoid_then_topk score+bias 1/1 sum -inf yes 1e-20 2.827 256 8
hy_v4_vl HYV4VLTopkRouter sigmoid sigmoid_then_topk score+bias 1/1 sum -inf yes 1e-20 2.827 256 8
inkling2 Inkling2TopKRouter sigmoid score_then_topk score+bias - - - yes 1e-20 8 384 8
inkling2_loop Inkling2LoopTopKRouter sigmoid score_then_topk score+bias - - - yes 1e-20 8 128 8
jamba JambaTopKRouter softmax softmax_then_topk score - - - no 0 1 16 2
jetmoe JetMoeTopKGating softmax topk_then_softmax logits - - - no 0 1 8 2
kimi_linear KimiLinearTopkRouter sigmoid sigmoid_then_topk score+bias 1/1 sum -inf yes 1e-20 2.446 256 8
kolibri1 Kolibri1TopKRouter sigmoid topk_of_logits_then_sigmoid logit+bias - - - no 0 1 384 6
laguna LagunaTopKRouter sigmoid sigmoid_then_topk score+bias - - - yes 0 1 256 8
lara_mini LaraMiniTopKRouter softmax softmax_then_topk score - - - yes 0 1 128 4
lfm2_moe Lfm2MoeTopKRouter sigmoid sigmoid_then_topk score+bias - - - yes 1e-06 1 32 4
llama4 Llama4Router sigmoid topk_then_sigmoid logits - - - no 0 1 16 1
longcat_flash LongcatFlashTopkRouter softmax softmax_then_topk score+bias - - - no 0 6 512 12
mellum MellumTopKRouter softmax softmax_then_topk score - - - yes 0 1 64 8
mimo_v2_flash MiMoV2FlashTopkRouter sigmoid sigmoid_then_topk score+bias 1/1 sum -inf yes 1e-20 1 256 8
minimax MiniMaxTopKRouter softmax softmax_then_topk score - - - yes 0 1 8 2
minimax_m2 MiniMaxM2TopKRouter sigmoid sigmoid_then_topk score+bias - - - yes 0 1 256 8
minimax_m3_vl MiniMaxM3VLTopKRouter sigmoid sigmoid_then_topk score+bias - - - yes 0 2 128 4
mistral4 Mistral4TopkRouter softmax softmax_then_topk score 1/1 sum 0 yes 1e-20 1 128 4
mistral_large4 MistralLarge4TextTopkRouter softmax softmax_then_topk score 1/1 sum 0 yes 1e-20 1 128 4
mixtral MixtralTopKRouter softmax softmax_then_topk score - - - yes 0 1 8 2
muse_spark MuseSparkTopkRouter sigmoid sigmoid_then_topk score+bias - - - yes 1e-15 1 256 8
nemotron_h NemotronHTopkRouter sigmoid sigmoid_then_topk score+bias 1/1 sum -inf yes 1e-20 1 8 2
olmoe OlmoeTopKRouter softmax softmax_then_topk score - - - no 0 1 64 8
openai_privacy_filter OpenAIPrivacyFilterTopKRouter softmax topk_then_softmax logits - - - no 0 0.25 128 4
qwen2_moe Qwen2MoeTopKRouter softmax softmax_then_topk score - - - no 0 1 60 4
qwen3_5_moe Qwen3_5MoeTopKRouter softmax softmax_then_topk score - - - yes 0 1 256 8
qwen3_moe Qwen3MoeTopKRouter softmax softmax_then_topk score - - - no 0 1 128 8
qwen3_next Qwen3NextTopKRouter softmax softmax_then_topk score - - - yes 0 1 512 10
qwen3_omni_moe Qwen3OmniMoeTalkerTextTopKRouter softmax softmax_then_topk score - - - no 0 1 128 8
qwen3_omni_moe Qwen3OmniMoeTextTopKRouter softmax softmax_then_topk score - - - yes 0 1 128 8
qwen3_omni_moe Qwen3OmniMoeThinkerTextTopKRouter softmax softmax_then_topk score - - - no 0 1 128 8
qwen3_vl_moe Qwen3VLMoeTextTopKRouter softmax softmax_then_topk score - - - yes 0 1 60 4
qwen4_exp Qwen4ExpTextTopKRouter softmax softmax_then_topk score - - - yes 0 1 512 10
solar_open SolarOpenTopkRouter sigmoid sigmoid_then_topk score+bias 1/1 sum -inf yes 1e-20 1 128 8
step3p7 Step3p7TopKRouter sigmoid sigmoid_then_topk score+bias - - - yes 0 1 288 8
unlimited_ocr UnlimitedOcrTextTopkRouter softmax softmax_then_topk score 1/1 max 0 no 0 1 64 6
"""

# And why.
OWN_RULES = {
    "DeepseekV4HashRouter": "a table of token ids says the experts",
    "DogeCDMoE": "product keys",
    "InklingTopkRouter": "weights are normalised over the shared experts too, in logarithms",
    "NllbMoeTop2Router": "capacity, and a second expert that may be drawn",
    "PhimoeTopKRouter": "each weight is a softmax over the logits near the greatest that is left",
    "SwitchTransformersTop1Router": "capacity",
    "VitPoseBackboneMoeMLP": "the caller says the expert",
    "ZayaRouter": "an expert that is skipped",
}


class Router(NamedTuple):
    """One line of the table."""

    folder: str
    name: str
    score: str
    order: str
    selected_by: str
    groups: tuple[int, int]
    group_score: str
    outside: str
    normalised: bool
    epsilon: float
    at_least: bool
    scale: float
    experts: int
    top_k: int


def _number(word: str, otherwise: float) -> float:
    return otherwise if word == "?" else float(word)


def _router(line: str) -> Router:
    folder, name, score, order, by, groups, value, outside, normalised, epsilon, scale, experts, top_k = line.split()
    some, few = (1, 1) if groups == "-" else (int(number) for number in groups.split("/"))
    return Router(
        folder,
        name,
        score,
        order,
        by,
        (some, few),
        value,
        outside,
        normalised == "yes",
        float(epsilon.removeprefix(">=")),
        epsilon.startswith(">="),
        _number(scale, 1.5),
        int(_number(experts, 48)),
        int(_number(top_k, 6)),
    )


SERVED = [_router(line) for line in _SERVED.strip().splitlines()]


def options(router: Router) -> dict[str, object]:
    """What route() is told of a router."""
    first_choose = router.order.startswith("topk")
    of_logits = "logit" in router.selected_by
    weigh: Optional[str] = None
    if first_choose:
        weigh = f"{router.score}_of_chosen"
    normalise = "no" if not router.normalised else "at_least_epsilon" if router.at_least else "sum_plus_epsilon"
    return {
        "score": "sqrt_softplus" if router.score == "sqrtsoftplus" else router.score,
        "chosen_by": "logits" if of_logits else "score",
        "n_group": router.groups[0],
        "topk_group": router.groups[1],
        "group_value": "sum_of_two" if router.group_score == "sum" else "max",
        "outside_groups": "zero" if router.outside == "0" else "minus_infinity",
        "weigh": weigh or "score",
        "normalise": normalise,
        "epsilon": router.epsilon,
        "routed_scaling_factor": router.scale,
    }
