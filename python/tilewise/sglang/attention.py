"""The attention of SGLang's layers, over its pool of keys and values as it lies.

A pool is [tokens, num_heads_k, head_dim] a layer; a table has the place of each token of each request. Pages are those
of the pool, of one token where SGLang pages none, so a table's rows are the block table and nothing is copied but them.
Models with windows have a pool of fewer places for their windowed layers: its table is translated once a step.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.runtime_context import get_exec

import tilewise
from tilewise.sglang.graphs import GraphState
from tilewise.sglang.known import announce, refuse_meanings
from tilewise.sglang.refusals import refuse, refuse_batch, refuse_layer, refuse_phase, refuse_runner
from tilewise.sglang.steps import Step, added_tokens, longest_of

__all__ = ["TilewiseAttnBackend"]


class TilewiseAttnBackend(AttentionBackend):
    """One model runner's attention. Raises NotImplementedError by name for what it cannot do, before it computes."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        refuse_runner(model_runner)
        announce()
        self.forward_metadata: Step | None = None
        self.device = model_runner.device
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.use_mla = model_runner.use_mla_backend
        self.page_size = self.token_to_kv_pool.page_size
        self.attention_chunk_size = getattr(model_runner, "attention_chunk_size", None)
        self._options: dict[str, Any] = {}
        if get_exec().deterministic.enable_deterministic_inference:
            self._options["batch_invariant"] = True
        pool = self.token_to_kv_pool
        self._has_windows = type(pool) is SWAKVPool and pool.swa_layer_nums > 0
        self._graphs: GraphState | None = None

    # ---- once a step --------------------------------------------------------------------------

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Makes the Step of a batch. Raises NotImplementedError by name for one of an unknown kind."""
        refuse_batch(forward_batch)
        if forward_batch.forward_mode.is_idle():
            self.forward_metadata = None
            return
        lengths, seq_lens = self._query_lengths(forward_batch)
        starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        torch.cumsum(torch.tensor(lengths, dtype=torch.int32), 0, out=starts[1:])
        places, swa_places, swa_out = self._tables(
            forward_batch, longest_of(forward_batch, added_tokens(forward_batch))
        )
        prefix = forward_batch.extend_prefix_lens_cpu
        self.forward_metadata = Step(
            tokens=sum(lengths),
            max_seqlen_q=max(lengths),
            has_prefix=not forward_batch.forward_mode.is_extend() or prefix is None or any(prefix),
            cu_seqlens_q=starts.to(self.device, non_blocking=True),
            cache_seqlens=seq_lens.to(torch.int32),
            block_table=places,
            swa_block_table=swa_places,
            swa_out_cache_loc=swa_out,
        )

    def _tables(self, batch: Any, tokens: int) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Of a batch's requests, pages of their first tokens, the same of windowed layers, and where those write."""
        places = self.req_to_token_pool.req_to_token[:, : tokens : self.page_size][batch.req_pool_indices]
        if not self._has_windows:
            return self._pages_of(places), None, None
        translate = self.token_to_kv_pool.translate_loc_from_full_to_swa
        return self._pages_of(places), self._pages_of(translate(places)), translate(batch.out_cache_loc)

    # ---- CUDA graphs --------------------------------------------------------------------------

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Tensors for the largest batch that is to be captured."""
        pages = -(-self.req_to_token_pool.req_to_token.shape[1] // self.page_size)
        self._graphs = GraphState.of(max_bs, max_num_tokens, pages, self._has_windows, self.device)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """The length of requests that pad a batch."""
        return 1

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Before a capture and before each replay: fills the tensors that the captured launches read.

        Raises NotImplementedError by name for a batch of an unknown kind, and for prompts.
        """
        refuse_batch(forward_batch)
        if self._graphs is None:
            raise RuntimeError("CUDA graphs: init_cuda_graph_state() must come before a capture (got none)")
        self.forward_metadata = self._graphs.step_of(forward_batch, self._tables)

    def _query_lengths(self, batch: Any) -> tuple[list[int], torch.Tensor]:
        """How many new tokens each request has, and how many there are with them."""
        mode = batch.forward_mode
        if mode.is_decode():
            return [1] * batch.batch_size, batch.seq_lens
        if mode.is_target_verify():
            drafted = batch.spec_info.draft_token_num
            return [drafted] * batch.batch_size, batch.seq_lens + drafted
        lengths = batch.extend_seq_lens_cpu
        return list(batch.extend_seq_lens.tolist() if lengths is None else lengths), batch.seq_lens

    def _pages_of(self, places: torch.Tensor) -> torch.Tensor:
        """A table of pages from the places of their first tokens. What lies behind a length may be anything."""
        return (places if self.page_size == 1 else places // self.page_size).to(torch.int32)

    # ---- a layer ------------------------------------------------------------------------------

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
        **others: Any,
    ) -> torch.Tensor:
        """q: [tokens, num_heads_q * head_dim], any k and v are the step's own. Returns [tokens, heads * head_dim_v]."""
        refuse_meanings("a layer", others)
        refuse_phase(forward_batch)
        refuse_layer(layer, self.attention_chunk_size)
        step = self.forward_metadata
        if step is None:
            raise RuntimeError("forward_metadata: must be made by init_forward_metadata() before a layer (got None)")
        queries = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = self._output(queries, layer, forward_batch)
        rows, written = queries[: step.tokens], out[: step.tokens]
        options = {**self._options, **self._options_of(layer, sinks, rows)}
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        if self.use_mla and k is not None and layer.qk_head_dim != keys.shape[-1]:
            self._attend_prompts(rows, k, v, written, layer, step, save_kv_cache, options)
        else:
            if save_kv_cache and k is not None and v is not None:
                self._write(k, v, layer, forward_batch, step)
            self._attend_pool(rows, keys, written, layer, step, options)
        if step.tokens < len(out):
            out[step.tokens :].zero_()
        return out.flatten(1)

    # Prompts, chunks of them behind a prefix, and draft tokens to verify: their steps differ, not their layers.
    forward_extend = forward_decode

    def _output(self, queries: torch.Tensor, layer: Any, batch: Any) -> torch.Tensor:
        """Where to write, [tokens, num_heads_q, head_dim_v]: what a captured prompt gives, or a new tensor."""
        given = getattr(batch, "_attn_output", None)
        shape = (len(queries), layer.tp_q_head_num, layer.v_head_dim)
        return queries.new_empty(shape) if given is None else given.view(shape)

    def _options_of(self, layer: Any, sinks: torch.Tensor | None, rows: torch.Tensor) -> dict[str, Any]:
        options: dict[str, Any] = {"softmax_scale": float(layer.scaling)}
        if layer.attn_type == AttentionType.DECODER:
            options["mask"] = "causal"
        if layer.sliding_window_size is not None and layer.sliding_window_size > -1:
            options["window"] = (layer.sliding_window_size, 0)  # without the token itself
        if layer.logit_cap > 0:
            options["softcap"] = float(layer.logit_cap)
        if sinks is not None:
            options["sink"] = sinks if sinks.dtype in (rows.dtype, torch.float32) else sinks.float()
        return options

    def _write(self, k: torch.Tensor, v: torch.Tensor, layer: Any, batch: Any, step: Step) -> None:
        """The step's own keys and values into the pool, by its own function, which knows how it lies."""
        where = KVWriteLoc.for_batch(batch, swa_loc=step.swa_out_cache_loc)
        if layer.k_scale is None:
            self.token_to_kv_pool.set_kv_buffer(layer, where, k, v)
        elif self.use_mla:
            refuse("k_scale", "must be None for latent keys", float(layer.k_scale))
        else:  # it divides in place
            self.token_to_kv_pool.set_kv_buffer(layer, where, k.clone(), v.clone(), layer.k_scale, layer.v_scale)

    def _attend_pool(
        self, rows: torch.Tensor, keys: torch.Tensor, out: torch.Tensor, layer: Any, step: Step, options: dict[str, Any]
    ) -> None:
        """Over the pool, in which the step's own keys are by now."""
        pool = self.token_to_kv_pool
        windowed = step.swa_block_table is not None and pool.layers_mapping[layer.layer_id][1]
        if self.use_mla:
            options |= {"head_dim_v": layer.v_head_dim}
            values = None
        else:
            values = self._paged(pool.get_value_buffer(layer.layer_id))
        if keys.dtype == torch.float8_e4m3fn:
            scaled = layer.k_scale is not None
            options["k_scale"] = layer.k_scale_float if scaled else 1.0
            if not self.use_mla:
                options["v_scale"] = layer.v_scale_float if scaled else 1.0
        tilewise.kv_cache_attention(
            rows, self._paged(keys), values, cache_seqlens=step.cache_seqlens,
            block_table=step.swa_block_table if windowed else step.block_table, cu_seqlens_q=step.cu_seqlens_q,
            max_seqlen_q=step.max_seqlen_q, out=out, **options,
        )  # fmt: skip

    def _paged(self, buffer: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, dim] as [pages, page_size, heads, dim], without a copy."""
        pages = len(buffer) // self.page_size
        paged: torch.Tensor = buffer[: pages * self.page_size].unflatten(0, (pages, self.page_size))
        return paged

    def _attend_prompts(
        self,
        rows: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor | None,
        out: torch.Tensor,
        layer: Any,
        step: Step,
        save_kv_cache: bool,
        options: dict[str, Any],
    ) -> None:
        """Whole prompts of a model with latent keys: SGLang has written the latent ones, and hands over heads'."""
        if v is None or save_kv_cache or step.has_prefix or len(k) < step.tokens:
            refuse("k", f"must be the latent keys of the pool, or prompts without a prefix that SGLang has written, of "
                   f"{step.tokens} tokens", f"{list(k.shape)}, save_kv_cache {save_kv_cache}, prefixes "
                   f"{step.has_prefix}")  # fmt: skip
        keys = k[: step.tokens].view(-1, layer.tp_k_head_num, layer.qk_head_dim)
        values = v[: step.tokens].view(-1, layer.tp_v_head_num, layer.v_head_dim)
        tilewise.attention(
            rows, keys, values, layout="thd", cu_seqlens_q=step.cu_seqlens_q, cu_seqlens_k=step.cu_seqlens_q,
            max_seqlen_q=step.max_seqlen_q, max_seqlen_k=step.max_seqlen_q, out=out, **options,
        )  # fmt: skip
