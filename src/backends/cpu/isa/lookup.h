// Look-ups in captured tensors. Keys are adjacent, and so are most of what they look up: vectors are loaded where
// indices go up or down by one or stay, and gathered elsewhere.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <utility>

#include "backends/cpu/isa/lane_types.h"

namespace tilewise::backends::cpu {

template <class V>
class Lookup {
  using Types = LaneTypes<V>;
  using I = typename Types::I;
  using R = typename Types::R;
  using Word = typename LaneVector<V, Lane::word>::Scalar;
  using Unsigned = typename WordOf<typename V::Real>::Unsigned;
  using UI = typename LaneVector<V, Lane::word>::Wrapping;
  template <Lane kLane>
  using VectorOf = typename LaneVector<V, kLane>::Type;
  static constexpr int kLanes = V::kLanes;
  static constexpr bool kSingle = Types::kSingle;

 public:
  static void run(const Instruction& n, const CapturedTable& table, char* memory, int64_t vectors) {
    switch (table.element) {
      case TableElement::f32:
        return look_up<float, Lane::real>(n, table, memory, vectors);
      case TableElement::f64:
        return look_up<double, Lane::real>(n, table, memory, vectors);
      case TableElement::i32:
        return look_up<int32_t, Lane::word>(n, table, memory, vectors);
      case TableElement::u8:
        return look_up<uint8_t, Lane::word>(n, table, memory, vectors);
      case TableElement::boolean:
        return look_up<bool, Lane::truth>(n, table, memory, vectors);
      case TableElement::i64:
        return look_up<int64_t, kSingle ? Lane::wide : Lane::word>(n, table, memory, vectors);
      default:
        break;
    }
    if constexpr (kSingle) {
      if (table.element == TableElement::bf16) return look_up<Bf16, Lane::real>(n, table, memory, vectors);
      if (table.element == TableElement::f16) return look_up<F16, Lane::real>(n, table, memory, vectors);
      if (table.element == TableElement::e4m3) return look_up<E4m3, Lane::real>(n, table, memory, vectors);
    }
    look_up<Loaded, Lane::real>(n, table, memory, vectors);
  }

 private:
  /// An element that is loaded by the table's own function.
  struct Loaded {};

  template <class Element, Lane kTo>
  [[gnu::noinline]] static void look_up(const Instruction& n, const CapturedTable& table, char* memory,
                                        int64_t vectors) {
    const Lanes<V, kTo> to(memory, n.to);
    const bool words = n.operands[0].lane == Lane::word && table.in_words;
    for (int64_t i = 0; i < vectors; ++i)
      to.set(i, words ? at_words<Element, kTo>(n, table, memory, i) : at_any<Element, kTo>(n, table, memory, i));
  }

  template <class Element, Lane kTo>
  TILEWISE_INLINE static VectorOf<kTo> at_words(const Instruction& n, const CapturedTable& table, char* memory,
                                                int64_t vector) {
    I offset{}, inside = ~I{};
    for (int d = 0; d < n.operand_count; ++d) {
      const I index = Lanes<V, Lane::word>(memory, n.operands[d])[vector];
      inside &= (I)((UI)index < UI{} + static_cast<Unsigned>(table.shape[d]));
      offset += index * static_cast<Word>(table.strides[d]);
    }
    const Word first = offset[0];
    const I steps = offset - first;
    if (!Types::any(~inside)) {
      if constexpr (!__is_same(Element, Loaded)) {
        const auto* from = static_cast<const Element*>(table.data) + first;
        if (!Types::any(steps != Types::iota())) return load<kTo>(from);
        if (!Types::any(steps != -Types::iota()))
          return reversed(load<kTo>(from - (kLanes - 1)), std::make_integer_sequence<int, kLanes>());
      }
      // Less nothing, not nothing and it: -0 stays what it is.
      if (!Types::any(steps != I{})) return one<Element, kTo>(table, first) - VectorOf<kTo>{};
    }
    int64_t offsets[kLanes];
    const I within = inside & offset;
    for (int j = 0; j < kLanes; ++j) offsets[j] = within[j];
    return gathered<Element, kTo>(table, offsets, inside);
  }

  /// At wide ints, or in a table whose offsets are.
  template <class Element, Lane kTo>
  static VectorOf<kTo> at_any(const Instruction& n, const CapturedTable& table, char* memory, int64_t vector) {
    int64_t offsets[kLanes] = {};
    I inside = ~I{};
    for (int d = 0; d < n.operand_count; ++d) {
      const Register& index = n.operands[d];
      const bool wide = index.lane == Lane::wide;
      for (int j = 0; j < kLanes; ++j) {
        const int64_t at = wide ? Lanes<V, Lane::wide>(memory, index)[vector][j]
                                : int64_t{Lanes<V, Lane::word>(memory, index)[vector][j]};
        if (at < 0 || at >= table.shape[d]) inside[j] = 0;
        if (inside[j] != 0) offsets[j] += at * table.strides[d];
      }
    }
    for (int j = 0; j < kLanes; ++j) offsets[j] = inside[j] != 0 ? offsets[j] : 0;
    return gathered<Element, kTo>(table, offsets, inside);
  }

  /// 0 where not inside.
  template <class Element, Lane kTo>
  TILEWISE_INLINE static VectorOf<kTo> gathered(const CapturedTable& table, const int64_t (&offsets)[kLanes],
                                                I inside) {
    if (!Types::any(inside)) return VectorOf<kTo>{};  // of a table without elements too
    if constexpr (__is_same(Element, Loaded)) {
      VectorOf<kTo> values{};
      for (int j = 0; j < kLanes; ++j) values[j] = one<Element, kTo>(table, offsets[j]);
      return Types::template select<kTo>(inside, values, VectorOf<kTo>{});
    } else {
      Element elements[kLanes];
      for (int j = 0; j < kLanes; ++j) elements[j] = static_cast<const Element*>(table.data)[offsets[j]];
      return Types::template select<kTo>(inside, load<kTo>(elements), VectorOf<kTo>{});
    }
  }

  template <class Element, Lane kTo>
  TILEWISE_INLINE static auto one(const CapturedTable& table, int64_t offset) {
    if constexpr (__is_same(Element, Loaded)) {
      return static_cast<typename V::Real>(table.load(table.data, offset));
    } else {
      Element elements[kLanes];
      for (Element& element : elements) element = static_cast<const Element*>(table.data)[offset];
      return load<kTo>(elements)[0];
    }
  }

  /// kLanes adjacent elements.
  template <Lane kTo, class Element>
  TILEWISE_INLINE static VectorOf<kTo> load(const Element* from) {
    if constexpr (kTo == Lane::real && !(kSingle && __is_same(Element, double))) {
      return V::load(from);
    } else {
      using To = VectorOf<kTo>;
      const auto elements = LoadedElements<sizeof(Element), Element>::at(from);
      if constexpr (__is_same(Element, bool)) {
        return (To)(__builtin_convertvector(elements, To) != To{});
      } else {
        return __builtin_convertvector(elements, To);
      }
    }
  }
  template <size_t kBytes, class Element>
  struct LoadedElements {
    typedef Element Type __attribute__((vector_size(kBytes * kLanes)));
    TILEWISE_INLINE static Type at(const void* from) {
      Type elements;
      __builtin_memcpy(&elements, from, sizeof elements);
      return elements;
    }
  };
  /// A bool is a byte.
  template <size_t kBytes>
  struct LoadedElements<kBytes, bool> : LoadedElements<kBytes, uint8_t> {};

  template <class X, int... kLane>
  TILEWISE_INLINE static X reversed(X x, std::integer_sequence<int, kLane...>) {
    return __builtin_shufflevector(x, x, (kLanes - 1 - kLane)...);
  }
};

}  // namespace tilewise::backends::cpu
