// The KV cache step as a schema: what its problem says, which tensors its two calls have, and where C has both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "operations/block_mask.hpp"
#include "operations/block_mask_word.hpp"
#include "operations/derived/call.hpp"
#include "operations/kv_cache/rules.hpp"
#include "operations/schema.hpp"
#include "operations/score_functions.hpp"
#include "operations/score_names.hpp"
#include "operations/selected_keys.hpp"
#include "tilewise/c/kv_cache.h"
#include "tilewise/kv_cache.hpp"

namespace tilewise::core {

template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<KvCacheCall>{"kv_cache_attention", "append_kv"};
template <>
inline constexpr std::array<std::string_view, 5> kNamesOf<CacheScales>{"none", "tensor", "head", "batch_head", "token"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<SlotKind>{"none", "i32", "i64"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<RotaryKind>{"none", "f32", "query"};

}  // namespace tilewise::core

namespace tilewise::operations::kv_cache {

using P = KvCacheProblem;
using Attend = KvCacheArguments;
using Append = AppendKvArguments;
using O = KvCacheOptions;
using C = tilewise_kv_cache_options;
using CTensors = tilewise_kv_cache_tensors;
using Dimension = schema::Dimension<P>;
using core::Access, core::kRequired, schema::argument, schema::field;

[[nodiscard]] constexpr bool attends(const P& p) { return !appends_alone(p); }
[[nodiscard]] constexpr bool has_table(const P& p) { return is_paged(p) && p.slots == SlotKind::none; }
[[nodiscard]] constexpr bool is_contiguous(const P& p) { return !is_paged(p); }
inline constexpr std::string_view kContiguousWords = "contiguous caches, no page_size";
[[nodiscard]] constexpr bool rotates(const P& p) { return p.rotary_dim > 0; }
[[nodiscard]] constexpr bool has_scales(const P& p) { return p.scales != CacheScales::none; }
[[nodiscard]] constexpr bool scales_each_token(const P& p) { return p.scales == CacheScales::token; }

[[nodiscard]] constexpr std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() : product;
}

inline constexpr Dimension kBatch{.name = "batch_size", .size = &P::batch_size, .unpacked_only = true};
inline constexpr Dimension kSequences{.name = "batch_size", .size = &P::batch_size};
inline constexpr Dimension kEnds{.name = "batch_size + 1", .size = &P::batch_size, .beyond = 1};
inline constexpr Dimension kQueries{
    .name = "seqlen_q", .size = &P::seqlen_q, .packed_name = "total_q", .packed_size = &P::total_q, .index = "row"};
inline constexpr Dimension kNewKeys{.name = "seqlen_k_new",
                                    .size = &P::seqlen_k_new,
                                    .packed_name = "total_k_new",
                                    .packed_size = &P::total_k_new,
                                    .index = "row"};
inline constexpr Dimension kHeadsQ{.name = "num_heads_q", .size = &P::num_heads_q, .least = 1, .index = "head"};
inline constexpr Dimension kHeadsK{.name = "num_heads_k", .size = &P::num_heads_k, .least = 1, .index = "head"};
inline constexpr Dimension kDim{.name = "head_dim", .size = &P::head_dim, .index = "dim"};
inline constexpr Dimension kDimV{.name = "head_dim_v", .size = &P::head_dim_v, .index = "dim"};

// Of a cache: its sequences or pages, and the places of one.
inline constexpr Dimension kCacheRows{
    .name = "batch_size", .size = &P::batch_size_cache, .index = "page", .exists = is_contiguous};
inline constexpr Dimension kPages{.name = "num_pages", .size = &P::num_pages, .index = "page", .exists = is_paged};
inline constexpr Dimension kCapacity{
    .name = "capacity", .size = &P::capacity, .index = "place", .exists = is_contiguous};
inline constexpr Dimension kPageSize{
    .name = "page_size", .size = &P::page_size, .least = 1, .index = "place", .exists = is_paged};
inline constexpr Dimension kTablePages{.name = "max_pages_per_seq", .size = &P::max_pages_per_seq};

// Of scales, whose dimensions their kind says.
template <const Dimension& dimension>
inline constexpr Dimension kOfTokens{
    .name = dimension.name, .size = dimension.size, .index = dimension.index, .exists = [](const P& p) {
      return scales_each_token(p) && dimension.is_in(p);
    }};
inline constexpr Dimension kScaledSequences{.name = "batch_size", .size = &P::batch_size, .exists = [](const P& p) {
                                              return p.scales == CacheScales::batch_head;
                                            }};
inline constexpr Dimension kScaledHeads{
    .name = "num_heads_k", .size = &P::num_heads_k, .index = "head", .exists = [](const P& p) {
      return p.scales != CacheScales::tensor;
    }};

inline constexpr Dimension kSlopedSequences{.name = "batch_size", .size = &P::batch_size, .exists = [](const P& p) {
                                              return p.alibi_slopes == AlibiKind::per_batch_head;
                                            }};
/// As many as there are places, where a call does not say otherwise.
inline constexpr Dimension kPositions{
    .name = "rows",
    .follows = [](const P& p) { return p.slots == SlotKind::none ? capacity_of(p) : p.num_pages * p.page_size; },
    .any = true};
inline constexpr Dimension kRotaryPairs{.name = "rotary_dim / 2",
                                        .follows = [](const P& p) { return p.rotary_dim / 2; }};

template <const Dimension&... dimensions>
inline constexpr schema::Dimensions<P> kOf{schema::Dimensions<P>::Order::written, {&dimensions...}};
template <const Dimension& rows, const Dimension& heads, const Dimension& dim>
inline constexpr schema::Dimensions<P> kRows{schema::Dimensions<P>::Order::layout, {&kBatch, &rows, &heads, &dim}};
inline constexpr schema::Dimensions<P> kLse{schema::Dimensions<P>::Order::written, {&kBatch, &kHeadsQ, &kQueries}};
template <const Dimension& dim>
inline constexpr auto kCache = kOf<kCacheRows, kPages, kCapacity, kPageSize, kHeadsK, dim>;
inline constexpr auto kScales = kOf<kScaledSequences, kOfTokens<kCacheRows>, kOfTokens<kPages>, kOfTokens<kCapacity>,
                                    kOfTokens<kPageSize>, kScaledHeads>;

template <DType dtype>
inline constexpr schema::Type<P> kFixed = schema::kFixed<P, dtype>;
inline constexpr schema::Type<P> kOwn = schema::kOwn<P>;
inline constexpr std::array<schema::Type<P>, schema::kMostTypes> kElements{kFixed<DType::f32>, kFixed<DType::bf16>,
                                                                           kFixed<DType::f16>};

/// An option that is a tensor, or a list of them: of both calls, and where C has it.
template <typename Views, typename... InC>
[[nodiscard]] constexpr auto option(const schema::Tensor<P>& tensor, Views O::* member, InC C::*... in_c) {
  return argument<P>(tensor, schema::in(&Attend::options, member), schema::in(&Append::options, member), in_c...);
}
/// The same, or a number in its stead.
template <typename Number, typename NumberInC>
[[nodiscard]] constexpr auto option(const schema::Tensor<P>& tensor, TensorView O::* member, const DLTensor* C::* in_c,
                                    Number O::* number, NumberInC C::* number_in_c) {
  return option(tensor, member, in_c)
      .or_number(schema::in(&Attend::options, number), schema::in(&Append::options, number), number_in_c);
}
/// Of tensors whose rows are contiguous, but not moved 16 bytes at a time.
[[nodiscard]] constexpr bool never(const P&) { return false; }
[[nodiscard]] constexpr bool moves_tables(const P& p) { return rotates_in_chunks(p.rotary_dim, p.rotary_offset); }

/// What functions look up: of any element types and shapes.
inline constexpr schema::List<P> kTables{.shapes = &P::tables, .entry_name = table_name};

/// A block mask's tensors. Rows and keys of its blocks are noted before.
inline constexpr schema::List<P> kBlockMask{
    .entries = [](const P& p) { return block_mask_tensors(p.block_mask); },
    .shape = [](const P& p, std::size_t entry) { return block_mask_shape(blocked_scores(p), entry); },
    .take =
        [](P& p, std::span<const TensorView> tensors, Device device) {
          p.block_mask = described_block_mask(tensors, p.block_mask.rows, p.block_mask.keys, blocked_scores(p), device);
        },
    .entry_name = block_mask_name};

/// int32 of each sequence.
[[nodiscard]] constexpr schema::Tensor<P> lengths(std::string_view name, bool P::* given, std::string_view summary) {
  return {.name = name,
          .optional = true,
          .rows = true,
          .moved = never,
          .dimensions = kOf<kSequences>,
          .types = {kFixed<DType::i32>},
          .given = given,
          .summary = summary};
}
/// int32, one for the start of each sequence and for the end of the last one.
[[nodiscard]] constexpr schema::Tensor<P> starts(std::string_view name, bool optional, bool (*needed)(const P& problem),
                                                 std::string_view summary = {}) {
  return {.name = name,
          .optional = optional,
          .rows = true,
          .moved = never,
          .dimensions = kOf<kEnds>,
          .types = {kFixed<DType::i32>},
          .needed = needed,
          .needed_by = "layout",
          .summary = summary};
}
/// `needed` with caches in fp8. Those of each token are written with the keys.
[[nodiscard]] constexpr schema::Tensor<P> scale(std::string_view name, bool (*needed)(const P& problem),
                                                std::string_view summary) {
  return {.name = name,
          .access = Access::mutate,
          .changed_with = "k",
          .changes = [](const TensorView& view) { return view.rank == 3; },
          .dimensions = kScales,
          .types = {kFixed<DType::f32>},
          .needed = needed,
          .needed_by = "scales",
          .summary = summary};
}
/// What calls state beside their tensors.
template <typename Field, typename Value, typename... InC>
[[nodiscard]] constexpr auto stated(const Field& of, Value O::* member, InC C::*... in_c) {
  return of.from(schema::in(&Attend::options, member), schema::in(&Append::options, member), in_c...);
}

inline constexpr auto kSchema = schema::operation<&P::call, Attend, Append>(
    "kv_cache",
    schema::Pack{
        field("device", &P::device),
        field("dtype", &P::dtype),
        field("cache_dtype", &P::cache_dtype, [](const P& p) { return p.dtype; }),
        field("layout", &P::layout),
        field("batch_size", &P::batch_size),
        stated(
            field("seqlen_q", &P::seqlen_q, kRequired).packed_as("max_seqlen_q").where(attends).stated_where(is_packed),
            &O::max_seqlen_q, &C::max_seqlen_q),
        field("total_q", &P::total_q, [](const P& p) { return saturating_product(p.batch_size, p.seqlen_q); })
            .where([](const P& p) { return attends(p) && is_packed(p); }),
        field("append", &P::append).where(attends),
        stated(field("seqlen_k_new", &P::seqlen_k_new,
                     [](const P& p) { return appends_alone(p) ? std::int64_t{1} : p.seqlen_q; })
                   .packed_as("max_seqlen_k_new")
                   .where(appends, "append=1")
                   .stated_where(is_packed),
               &O::max_seqlen_k_new, &C::max_seqlen_k_new),
        field("total_k_new", &P::total_k_new,
              [](const P& p) { return saturating_product(p.batch_size, p.seqlen_k_new); })
            .where([](const P& p) { return appends(p) && is_packed(p); }, "append=1"),
        field("num_heads_q", &P::num_heads_q).where(attends),
        field("num_heads_k", &P::num_heads_k,
              [](const P& p) { return appends_alone(p) ? std::int64_t{1} : p.num_heads_q; }),
        field("head_dim", &P::head_dim, kRequired),
        stated(field("head_dim_v", &P::head_dim_v, [](const P& p) { return p.head_dim; }).stated_where([](const P& p) {
          return p.mla;
        }),
               &O::head_dim_v, &C::head_dim_v),
        field("mla", &P::mla),
        field("slots", &P::slots).where(appends_alone),
        field("page_size", &P::page_size, [](const P& p) { return std::int64_t{p.slots == SlotKind::none ? 0 : 1}; }),
        field("num_pages", &P::num_pages, kRequired).where(is_paged, "page_size"),
        field("max_pages_per_seq", &P::max_pages_per_seq, kRequired).where(has_table, "page_size and no slots"),
        field("cache_batch_idx", &P::cache_batch_idx).where(is_contiguous, kContiguousWords),
        field("cache_leftpad", &P::cache_leftpad).where(is_contiguous, kContiguousWords),
        field("batch_size_cache", &P::batch_size_cache, [](const P& p) { return p.batch_size; })
            .where(is_contiguous, kContiguousWords),
        field("capacity", &P::capacity, kRequired).where(is_contiguous, kContiguousWords),
        field("scales", &P::scales, [](const P& p) { return is_fp8(p) ? CacheScales::tensor : CacheScales::none; }),
        field("cache_seqlens", &P::cache_seqlens),
        field("rotary_dim", &P::rotary_dim),
        field("rotary", &P::rotary, [](const P& p) { return rotates(p) ? RotaryKind::f32 : RotaryKind::none; }),
        stated(field("rotary_offset", &P::rotary_offset), &O::rotary_offset, &C::rotary_offset),
        stated(field("rotary_interleaved", &P::rotary_interleaved), &O::rotary_interleaved, &C::rotary_interleaved),
        field("rotary_seqlens", &P::rotary_seqlens),
        stated(field("mask", &P::mask).where(attends), &O::mask, &C::mask),
        stated(field("window_left", &P::window_left).where(attends), &O::window_left, &C::window_left),
        stated(field("window_right", &P::window_right).where(attends), &O::window_right, &C::window_right),
        stated(field("softmax_scale", &P::softmax_scale, [](const P& p) { return default_softmax_scale(p.head_dim); })
                   .where(attends),
               &O::softmax_scale),
        stated(field("softcap", &P::softcap).where(attends), &O::softcap, &C::softcap),
        field("alibi_slopes", &P::alibi_slopes).where(attends),
        field("sink", &P::sink).where(attends),
        stated(field("num_splits", &P::num_splits).where(attends), &O::num_splits, &C::num_splits),
        field("softmax_lse", &P::softmax_lse).where(attends),
        stated(field("batch_invariant", &P::batch_invariant).where(attends), &O::batch_invariant, &C::batch_invariant),
        field("unaligned", &P::unaligned),
        stated(field("score_mod", &P::score_mod).where(attends), &O::score_mod, &C::score_mod),
        stated(field("mask_mod", &P::mask_mod).where(attends), &O::mask_mod, &C::mask_mod),
        field("tables", &P::tables).where(attends),
        field("top_k", &P::top_k).where(attends),
        field("key_indices_per_head", &P::key_indices_per_head).where(attends),
        field("block_mask", &P::block_mask).where(attends),
    },
    schema::Pack{
        argument<P>({.name = "q",
                     .rows = true,
                     .dimensions = kRows<kQueries, kHeadsQ, kDim>,
                     .types = kElements,
                     .dtype = &P::dtype},
                    &Attend::q, &CTensors::q),
        argument<P>({.name = "k_cache",
                     .access = Access::mutate,
                     .changed_with = "k",
                     .rows = true,
                     .dimensions = kCache<kDim>,
                     .types = {kOwn, kFixed<DType::fp8_e4m3>},
                     .dtype = &P::cache_dtype},
                    &Attend::k_cache, &Append::k_cache, &CTensors::k_cache),
        argument<P>({.name = "v_cache",
                     .access = Access::mutate,
                     .changed_with = "k",
                     .rows = true,
                     .dimensions = kCache<kDimV>,
                     .types = {schema::Type<P>{[](const P& p) { return p.cache_dtype; }}},
                     .needed = [](const P& p) { return !p.mla; },
                     .needed_by = "mla"},
                    &Attend::v_cache, &Append::v_cache, &CTensors::v_cache),
        argument<P>({.name = "k",
                     .optional = true,
                     .rows = true,
                     .dimensions = kRows<kNewKeys, kHeadsK, kDim>,
                     .types = kElements,
                     .dtype = &P::dtype,
                     .given = &P::append},
                    &Attend::k, &Append::k, &CTensors::k),
        argument<P>({.name = "v",
                     .rows = true,
                     .dimensions = kRows<kNewKeys, kHeadsK, kDimV>,
                     .types = {kOwn},
                     .needed = [](const P& p) { return p.append && !p.mla; },
                     .needed_by = "append"},
                    &Attend::v, &Append::v, &CTensors::v),
        argument<P>({.name = "out",
                     .access = Access::write,
                     .rows = true,
                     .dimensions = kRows<kQueries, kHeadsQ, kDimV>,
                     .types = {kOwn}},
                    &Attend::out, &CTensors::out),
        argument<P>({.name = "softmax_lse",
                     .access = Access::write,
                     .optional = true,
                     .dimensions = kLse,
                     .types = {kFixed<DType::f32>},
                     .given = &P::softmax_lse,
                     .flag = "lse"},
                    &Attend::softmax_lse, &CTensors::softmax_lse),
        option(starts("cu_seqlens_q", false, [](const P& p) { return attends(p) && is_packed(p); }), &O::cu_seqlens_q,
               &C::cu_seqlens_q),
        option(starts(
                   "cu_seqlens_k_new", true, [](const P& p) { return appends(p) && is_packed(p); },
                   "int32 [batch_size + 1]: where packed new keys start"),
               &O::cu_seqlens_k_new, &C::cu_seqlens_k_new),
        option(scale("k_scale", has_scales, "f32, of caches in fp8: of one element, each head, sequence or token"),
               &O::k_scale, &C::k_scale, &O::k_scale_value, &C::k_scale_value),
        option(scale(
                   "v_scale", [](const P& p) { return has_scales(p) && !p.mla; }, "likewise"),
               &O::v_scale, &C::v_scale, &O::v_scale_value, &C::v_scale_value),
        option({.name = "rotary_cos",
                .optional = true,
                .rows = true,
                .moved = moves_tables,
                .dimensions = kOf<kPositions, kRotaryPairs>,
                .types = {kFixed<DType::f32>, kOwn},
                .kind = schema::kind<&P::rotary, RotaryKind::f32, RotaryKind::query>(),
                .summary = "f32 or the dtype of q, [rows, rotary_dim / 2]"},
               &O::rotary_cos, &C::rotary_cos),
        option({.name = "rotary_sin",
                .rows = true,
                .moved = moves_tables,
                .dimensions = kOf<kPositions, kRotaryPairs>,
                .types = {schema::Type<P>{rotary_dtype}},
                .needed = rotates,
                .needed_by = "rotary_dim",
                .summary = "likewise"},
               &O::rotary_sin, &C::rotary_sin),
        option(lengths("rotary_seqlens", &P::rotary_seqlens, "int32 [batch_size]: positions of the first new keys"),
               &O::rotary_seqlens, &C::rotary_seqlens),
        option(lengths("cache_seqlens", &P::cache_seqlens, "int32 [batch_size]: places in use before the new keys"),
               &O::cache_seqlens, &C::cache_seqlens, &O::cache_seqlen, &C::cache_seqlen),
        option(lengths("cache_batch_idx", &P::cache_batch_idx, "int32 [batch_size]: which sequence of the cache"),
               &O::cache_batch_idx, &C::cache_batch_idx),
        option(lengths("cache_leftpad", &P::cache_leftpad, "int32 [batch_size]: places to skip at the start"),
               &O::cache_leftpad, &C::cache_leftpad),
        option({.name = "block_table",
                .rows = true,
                .moved = never,
                .dimensions = kOf<kSequences, kTablePages>,
                .types = {kFixed<DType::i32>},
                .needed = has_table,
                .needed_by = "page_size",
                .summary = "int32 [batch_size, max_pages_per_seq]: the caches are paged"},
               &O::block_table, &C::block_table),
        option({.name = "slots",
                .optional = true,
                .dimensions = kOf<kBatch, kNewKeys>,
                .types = {kFixed<DType::i32>, kFixed<DType::i64>},
                .kind = schema::kind<&P::slots, SlotKind::i32, SlotKind::i64>(),
                .summary = "int32 or int64, without --q: where each new token goes; -1: nowhere"},
               &O::slots, &C::slots),
        option({.name = "alibi_slopes",
                .optional = true,
                .dimensions = kOf<kSlopedSequences, kHeadsQ>,
                .types = {kFixed<DType::f32>},
                .needed = [](const P& p) { return p.alibi_slopes != AlibiKind::none; }},
               &O::alibi_slopes, &C::alibi_slopes),
        option({.name = "sink",
                .optional = true,
                .dimensions = kOf<kHeadsQ>,
                .types = {kFixed<DType::f32>, kOwn},
                .kind = schema::kind<&P::sink, SinkKind::f32, SinkKind::query>()},
               &O::sink, &C::sink),
        option(key_indices<kBatch, kQueries, P>(), &O::key_indices, &C::key_indices),
        option({.name = "tables", .optional = true, .list = kTables}, &O::tables),
        option({.name = "block_mask", .optional = true, .list = kBlockMask}, &O::block_mask),
    });

/// A call, and all its options beside the tensors.
struct Call : schema::CallOf<kSchema> {
  explicit Call(const Attend& arguments) : CallOf(arguments), options(arguments.options) {}
  explicit Call(const Append& arguments) : CallOf(arguments), options(arguments.options) {}

  [[nodiscard]] bool appends_alone() const { return index() == static_cast<std::size_t>(KvCacheCall::append_kv); }
  [[nodiscard]] bool appends() const { return one("k").defined() || appends_alone(); }
  /// Whether q and the new keys are packed.
  [[nodiscard]] bool packed() const {
    return one("cu_seqlens_q").defined() || one("cu_seqlens_k_new").defined() ||
           (appends_alone() && one("k").rank == 3);
  }

  const KvCacheOptions& options;
};

}  // namespace tilewise::operations::kv_cache
