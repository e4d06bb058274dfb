// Quantising as a schema: what its problem says, and which tensors the two kinds of call have.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "operations/block_formats.hpp"
#include "operations/derived/call.hpp"
#include "operations/quantize/rules.hpp"
#include "operations/schema.hpp"
#include "tilewise/quantize.hpp"

namespace tilewise::core {

template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<QuantizePass>{"quantize", "dequantize"};

}  // namespace tilewise::core

namespace tilewise::operations::quantize {

using P = QuantizeProblem;
using To = QuantizeArguments;
using From = DequantizeArguments;
using Dimension = schema::Dimension<P>;
using core::Access, core::kRequired, schema::argument, schema::field, schema::size;

inline constexpr Dimension kExperts{
    .name = "num_experts", .size = &P::num_experts, .index = "expert", .present = &P::stacked};
inline constexpr Dimension kRows{.name = "rows", .size = &P::rows, .index = "row"};
inline constexpr Dimension kColumns{.name = "columns", .size = &P::columns, .index = "column"};
inline constexpr Dimension kRowBlocks{.name = "blocks of rows",
                                      .follows = [](const P& p) { return blocks_of(p.rows, p.format.block_rows); }};
inline constexpr Dimension kColumnBlocks{
    .name = "blocks of columns", .follows = [](const P& p) { return blocks_of(p.columns, p.format.block_columns); }};

template <const Dimension&... dimensions>
inline constexpr schema::Dimensions<P> kOf{schema::Dimensions<P>::Order::written, {&dimensions...}};

inline constexpr std::array<schema::Type<P>, schema::kMostTypes> kNumbers{
    schema::kFixed<P, DType::f32>, schema::kFixed<P, DType::bf16>, schema::kFixed<P, DType::f16>};

inline constexpr auto kSchema = schema::operation<&P::pass, To, From>(
    "quantize",
    schema::Pack{
        field("device", &P::device),
        field("format", &P::format, kRequired).from(&To::format, &From::format),
        field("dtype", &P::dtype).from(&From::dtype),
        field("power_of_two", &P::power_of_two).from(&To::power_of_two),
        field("stacked", &P::stacked),
        size(kExperts),
        size(kRows, kRequired),
        size(kColumns, kRequired),
        field("unaligned", &P::unaligned),
    },
    schema::Pack{
        argument<P>({.name = "x",
                     .rows = true,
                     .dimensions = kOf<kExperts, kRows, kColumns>,
                     .types = kNumbers,
                     .dtype = &P::dtype},
                    &To::x),
        argument<P>({.name = "elements",
                     .access = Access::write,
                     .read_later = true,
                     .rows = true,
                     .dimensions = kOf<kExperts, kRows, kColumns>,
                     .types = {schema::Type<P>{[](const P& p) { return p.format.element; }}},
                     .summary = "quantise --x to these, or without it dequantise them"},
                    &To::elements, &From::elements),
        argument<P>({.name = "scales",
                     .access = Access::write,
                     .read_later = true,
                     .dimensions = kOf<kExperts, kRowBlocks, kColumnBlocks>,
                     .types = {schema::Type<P>{[](const P& p) { return p.format.scale; }}},
                     .summary = "scales of --elements"},
                    &To::scales, &From::scales),
        argument<P>({.name = "global_scale",
                     .access = Access::write,
                     .read_later = true,
                     .dimensions = kOf<kExperts>,
                     .types = {schema::kFixed<P, DType::f32>},
                     .needed = [](const P& p) { return p.format.global; },
                     .needed_by = "format",
                     .summary = "what nvfp4 has beside --scales"},
                    &To::global_scale, &From::global_scale),
        argument<P>({.name = "out",
                     .access = Access::write,
                     .rows = true,
                     .dimensions = kOf<kExperts, kRows, kColumns>,
                     .types = kNumbers,
                     .dtype = &P::dtype},
                    &From::out),
    });

using Call = schema::CallOf<kSchema>;

}  // namespace tilewise::operations::quantize
