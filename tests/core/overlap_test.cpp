// Tensors that share memory: the exact test against an enumeration of every byte, and the refusal of calls whose
// outputs overlap something.
#include "core/overlap.hpp"

#include <algorithm>
#include <random>
#include <set>

#include "support.hpp"

namespace tilewise {
namespace {

using core::check_apart;
using core::overlaps_itself;
using core::share_memory;
using test::expect_invalid;
using test::SmallCall;

/// Calls fn with the offset of every element's first byte.
template <typename Function>
void for_each_element(const TensorView& view, const Function& fn) {
  std::array<std::int64_t, kMaxRank> at{};
  for (std::int64_t n = 0; n < view.numel(); ++n) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < kMaxRank; ++i) offset += at[i] * view.strides[i];
    fn(reinterpret_cast<std::intptr_t>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype)));
    for (auto i = static_cast<std::size_t>(view.rank); i-- > 0;) {
      if (++at[i] < view.shape[i]) break;
      at[i] = 0;
    }
  }
}

/// The bytes of a tensor, and whether one of them belongs to two elements.
struct Bytes {
  explicit Bytes(const TensorView& view) {
    for_each_element(view, [&](std::intptr_t first) {
      for (std::size_t i = 0; i < size_of(view.dtype); ++i)
        twice |= !all.insert(first + static_cast<std::intptr_t>(i)).second;
    });
  }
  [[nodiscard]] bool meet(const Bytes& other) const {
    return std::ranges::any_of(all, [&](std::intptr_t byte) { return other.all.contains(byte); });
  }
  std::set<std::intptr_t> all;
  bool twice = false;
};

class RandomViews {
 public:
  explicit RandomViews(unsigned seed) : engine_(seed) {}
  std::int64_t below(std::int64_t limit) { return static_cast<std::int64_t>(engine_() % static_cast<unsigned>(limit)); }

  /// Of few elements, so that most places between them are free; related strides are the interesting ones.
  TensorView next() {
    constexpr DType kTypes[] = {DType::u8, DType::bf16, DType::f32};
    constexpr std::int64_t kSteps[] = {0, 1, 2, 3, 4, 5, 6, 8, 12, 15, 24, 36, 48, 60};
    TensorView view;
    view.dtype = kTypes[below(3)];
    view.data = reinterpret_cast<void*>(std::intptr_t{4096} + 4 * below(40));
    view.rank = static_cast<int>(below(5));
    for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) {
      view.shape[i] = below(12) == 0 ? 0 : 1 + below(4);
      view.strides[i] = kSteps[below(14)] * (below(5) == 0 ? -1 : 1);
    }
    return view;
  }

 private:
  std::mt19937 engine_;
};

TEST(Overlap, AgreesWithAnEnumerationOfEveryByte) {
  RandomViews views(1);
  int shared = 0, apart = 0, twice = 0, once = 0;
  for (int i = 0; i < 20000; ++i) {
    const TensorView a = views.next(), b = views.next();
    const Bytes bytes_a(a), bytes_b(b);
    const bool meet = bytes_a.meet(bytes_b);
    ASSERT_EQ(share_memory(a, b), meet) << "pair " << i;
    ASSERT_EQ(share_memory(b, a), meet) << "pair " << i;
    ASSERT_EQ(overlaps_itself(a), bytes_a.twice) << "view " << i;
    ++(meet ? shared : apart);
    ++(bytes_a.twice ? twice : once);
  }
  EXPECT_GT(std::min({shared, apart, twice, once}), 1000) << shared << ' ' << apart << ' ' << twice << ' ' << once;
}

/// dtype[batch, seqlen, 3, heads, dim] at `address`, and one of its three.
TensorView packed_part(std::intptr_t address, int part, std::int64_t heads = 32, std::int64_t dim = 128) {
  constexpr std::int64_t kBatch = 4, kSeqlen = 100'000;
  const std::int64_t row = 3 * heads * dim;
  return TensorView(reinterpret_cast<void*>(address + part * heads * dim * 2), DType::bf16,
                    {kBatch, kSeqlen, heads, dim}, {kSeqlen * row, row, dim, 1});
}

TEST(Overlap, ViewsOfOneStorageThatShareNoElementPass) {
  const TensorView dq = packed_part(4096, 0), dk = packed_part(4096, 1), dv = packed_part(4096, 2);
  EXPECT_FALSE(share_memory(dq, dk));
  EXPECT_FALSE(share_memory(dq, dv));
  EXPECT_FALSE(share_memory(dk, dv));
  EXPECT_FALSE(overlaps_itself(dq));
  // One element further, the last of one head is the first of the next part.
  TensorView late = dq;
  late.data = static_cast<std::byte*>(late.data) + 2;
  EXPECT_TRUE(share_memory(late, dk));
  // Heads interleaved instead: even ones and odd ones; and the same storage seen with axes exchanged.
  const TensorView even(reinterpret_cast<void*>(4096), DType::f32, {1000, 16, 64}, {32 * 64, 128, 1});
  TensorView odd = even;
  odd.data = static_cast<std::byte*>(odd.data) + std::ptrdiff_t{64} * 4;
  EXPECT_FALSE(share_memory(even, odd));
  const TensorView turned(odd.data, DType::f32, {16, 1000, 64}, {128, 32 * 64, 1});
  EXPECT_FALSE(share_memory(even, turned));
  EXPECT_TRUE(share_memory(odd, turned));
}

TEST(Overlap, RowsThatOverlapAreFound) {
  const auto rows = [](std::int64_t stride) {
    return TensorView(reinterpret_cast<void*>(4096), DType::f32, {1000, 64}, {stride, 1});
  };
  EXPECT_TRUE(overlaps_itself(rows(0)));
  EXPECT_TRUE(overlaps_itself(rows(63)));
  EXPECT_TRUE(overlaps_itself(rows(-63)));
  EXPECT_FALSE(overlaps_itself(rows(64)));
  EXPECT_FALSE(overlaps_itself(rows(-65)));
}

TEST(Overlap, StridesThatAreHardToTellEndInTime) {
  std::int64_t primes[] = {99991, 99989, 99971, 99961};
  TensorView a(reinterpret_cast<void*>(4096), DType::u8, {90001, 90007, 90011, 90017},
               {primes[0], primes[1], primes[2], primes[3]});
  TensorView b = a;
  b.data = static_cast<std::byte*>(b.data) + 1;
  EXPECT_TRUE(share_memory(a, b));
}

using Forward = ForwardArguments;
using Backward = BackwardArguments;

/// The output takes over the memory of the other tensor.
template <typename Arguments>
void expect_refused(Arguments arguments, TensorView& output, const std::string& name, const TensorView& other,
                    const std::string& other_name) {
  const TensorView before = output;
  output.data = other.data;
  const std::string sentence = name + ": must not overlap " + other_name + " in memory (got " + describe(output) +
                               " that starts 0 bytes from " + describe(other) + ")";
  expect_invalid(sentence, [&] { (void)describe(arguments()); });
  expect_invalid(sentence, [&] {
    if constexpr (requires { arguments().dq; }) {
      attention_backward(arguments());
    } else {
      attention_forward(arguments());
    }
  });
  output = before;
}

TEST(Overlap, EveryOutputKeepsToItself) {
  SmallCall call;
  const auto roomy = [&](std::initializer_list<std::int64_t> shape) {  // at its address any other meets nothing else
    return TensorView(call.tensor({512}).data, DType::f32, shape);
  };
  call.forward.options.bias = call.backward.options.bias = roomy({2, 4, 3, 5});
  call.forward.options.sink = call.backward.options.sink = roomy({4});
  call.forward.options.alibi_slopes = call.backward.options.alibi_slopes = roomy({4});
  for (TensorView* view :
       {&call.forward.q, &call.forward.k, &call.forward.v, &call.forward.out, &call.forward.softmax_lse,
        &call.backward.q, &call.backward.k, &call.backward.v, &call.backward.out, &call.backward.softmax_lse,
        &call.backward.dout, &call.backward.dq, &call.backward.dk, &call.backward.dv}) {
    view->data = call.tensor({512}).data;
  }
  Forward& f = call.forward;
  const auto forward = [&] { return f; };
  using Others = std::vector<std::pair<std::string, const TensorView*>>;
  const Others forward_inputs{{"q", &f.q},
                              {"k", &f.k},
                              {"v", &f.v},
                              {"bias", &f.options.bias},
                              {"sink", &f.options.sink},
                              {"alibi_slopes", &f.options.alibi_slopes}};
  for (const auto& [name, other] : forward_inputs) {
    expect_refused(forward, f.out, "out", *other, name);
    expect_refused(forward, f.softmax_lse, "softmax_lse", *other, name);
  }
  const TensorView out = f.out;
  f.out.data = f.softmax_lse.data;
  expect_invalid(
      "out: must not overlap softmax_lse in memory (got f32[2, 3, 4, 6] that starts 0 bytes from f32[2, 4, 3])",
      [&] { (void)describe(f); });
  f.out = out;
  Backward& b = call.backward;
  b.dbias = roomy({2, 4, 3, 5});
  b.dsink = roomy({4});
  b.dlse = roomy({2, 4, 3});
  const auto backward = [&] { return b; };
  const Others backward_inputs{{"q", &b.q},
                               {"k", &b.k},
                               {"v", &b.v},
                               {"dout", &b.dout},
                               {"dlse", &b.dlse},
                               {"out", &b.out},
                               {"bias", &b.options.bias},
                               {"softmax_lse", &b.softmax_lse}};
  const std::vector<std::pair<std::string, TensorView*>> gradients{
      {"dq", &b.dq}, {"dk", &b.dk}, {"dv", &b.dv}, {"dbias", &b.dbias}, {"dsink", &b.dsink}};
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    for (const auto& [name, other] : backward_inputs)
      expect_refused(backward, *gradients[i].second, gradients[i].first, *other, name);
    for (std::size_t j = 0; j < i; ++j)  // the one described first names the other
      expect_refused(backward, *gradients[j].second, gradients[j].first, *gradients[i].second, gradients[i].first);
  }
}

TEST(Overlap, LengthsAndSeedsAreInputsToo) {
  SmallCall call = SmallCall::packed();
  ForwardArguments& f = call.forward;
  f.options.cu_seqlens_k = f.options.cu_seqlens_q;
  f.options.seqused_q = f.options.seqused_k = f.options.leftpad_k = call.lengths({1, 1});
  f.options.seed_and_offset = call.tensor({2}, DType::i64);
  f.k.shape[0] = f.v.shape[0] = 3;
  f.options.leftpad_k = call.lengths({0, 0});
  (void)describe(f);
  for (const TensorView* other :
       {&f.options.cu_seqlens_q, &f.options.seqused_q, &f.options.leftpad_k, &f.options.seed_and_offset}) {
    ForwardArguments bad = f;
    bad.softmax_lse.data = other->data;
    EXPECT_THROW((void)describe(bad), Error);
    EXPECT_THROW(attention_forward(bad), Error);
  }
}

TEST(Overlap, IsCheckedOnEveryRunOfAPlanToo) {
  SmallCall call;
  const Plan planned = plan(describe(call.forward));
  run(planned, call.forward);
  attention_forward(call.forward);
  ForwardArguments bad = call.forward;
  bad.out.data = static_cast<std::byte*>(bad.q.data) + 64;
  const std::string sentence =
      "out: must not overlap q in memory (got f32[2, 3, 4, 6] that starts 64 bytes from f32[2, 3, 4, 8])";
  expect_invalid(sentence, [&] { run(planned, bad); });
  expect_invalid(sentence, [&] { attention_forward(bad); });
  // The workspace is written too.
  call.forward.options.batch_invariant = true;
  const Plan splits = plan(describe(call.forward));
  if (splits.workspace_size() == 0) GTEST_SKIP() << splits.implementation() << " needs no workspace";
  std::vector<double> scratch(splits.workspace_size() / sizeof(double) + 16);
  void* aligned = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) / 64 * 64);
  run(splits, call.forward, aligned);
  call.forward.out.data = aligned;
  EXPECT_THROW(run(splits, call.forward, aligned), Error);
}

TEST(Overlap, WrittenTensorsMayInterleave) {
  SmallCall call;
  const TensorView storage = call.tensor({2, 3, 4, 20});
  BackwardArguments& b = call.backward;
  const auto part = [&](std::int64_t first, std::int64_t heads, std::int64_t dim) {
    return TensorView(static_cast<float*>(storage.data) + first, DType::f32, {2, 3, heads, dim}, {240, 80, 20, 1});
  };
  b.dq = part(0, 4, 8);
  (void)describe(b);
  attention_backward(b);
  b.dout = part(8, 4, 6);
  attention_backward(b);
  b.dout = part(7, 4, 6);
  expect_invalid("dq: must not overlap dout in memory (got f32[2, 3, 4, 8] that starts -28 bytes from f32[2, 3, 4, 6])",
                 [&] { attention_backward(b); });
}

TEST(Overlap, TensorsWithoutElementsShareNothing) {
  SmallCall call;
  ForwardArguments f = call.forward;
  f.q.shape[1] = f.out.shape[1] = f.softmax_lse.shape[2] = 0;
  f.out.data = f.q.data;
  f.softmax_lse.data = f.q.data;
  attention_forward(f);
}

}  // namespace
}  // namespace tilewise
