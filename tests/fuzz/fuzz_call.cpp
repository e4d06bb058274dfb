// Fuzzes describe(): tensors of any rank, shape, stride and dtype with any options give an
// Error or a valid Problem that prints and parses back. Nothing is computed.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "expect.hpp"
#include "tilewise/attention.hpp"

using namespace tilewise;

namespace {

constexpr std::int64_t kLengths = 16;  // elements of the memory behind length tensors, the only ones describe() reads

/// Turns fuzz bytes into values; zeros when they run out.
class Source {
 public:
  Source(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  template <typename Value>
  Value take() {
    Value value{};
    const std::size_t count = sizeof value < size_ ? sizeof value : size_;
    if (count > 0) std::memcpy(&value, data_, count);
    data_ += count;
    size_ -= count;
    return value;
  }
  int below(int limit) { return take<std::uint8_t>() % limit; }
  bool flag() { return below(2) != 0; }
  /// Mostly small, at times anything.
  std::int64_t extent() {
    const int kind = below(16);
    return kind == 15 ? take<std::int64_t>() : kind == 14 ? take<std::int32_t>() : kind % 8;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

alignas(64) std::array<std::byte, 1024> memory;

TensorView any_tensor(Source& source) {
  TensorView view;
  view.data = source.below(16) ? memory.data() + source.below(8) / 7 : nullptr;
  view.dtype = static_cast<DType>(source.below(static_cast<int>(DType::i64) + 1));
  if (source.below(16) == 0) view.device.type = DeviceType::cuda;
  view.rank = source.below(16) ? source.below(5) : source.take<std::int8_t>();
  for (std::size_t d = 0; d < static_cast<std::size_t>(kMaxRank); ++d) view.shape[d] = source.extent();
  const bool contiguous = source.below(4) != 0;
  std::int64_t stride = 1;
  for (std::size_t d = 4; d-- > 0;) {
    if (static_cast<int>(d) >= view.rank) continue;
    view.strides[d] = contiguous ? stride : source.extent();
    if (__builtin_mul_overflow(stride, view.shape[d], &stride)) stride = 0;
  }
  return view;
}

/// A [batch, seq, heads, dim] tensor, so that the checks after those of the shape are reached.
TensorView good_tensor(Source& source, DType dtype, std::int64_t heads, std::int64_t dim) {
  const std::int64_t seq = source.below(8);
  return TensorView(memory.data(), dtype, {2, seq, heads, dim});
}

TensorView lengths(Source& source, std::array<std::int32_t, kLengths>& storage) {
  for (std::int32_t& value : storage) value = source.below(8) ? source.below(8) : source.take<std::int32_t>();
  TensorView view(storage.data(), DType::i32, {source.below(kLengths + 1)});
  if (source.below(16) == 0) view.dtype = DType::u8;  // narrower, so that reading stays inside
  if (source.below(16) == 0) view.rank = 0;
  return view;
}

struct LengthStorage {
  std::array<std::array<std::int32_t, kLengths>, 5> arrays;
};

AttentionOptions any_options(Source& source, LengthStorage& storage) {
  AttentionOptions o;
  o.layout = static_cast<Layout>(source.below(4));
  o.mask = static_cast<Mask>(source.below(2));
  o.alignment = static_cast<Alignment>(source.below(2));
  o.window_left = source.flag() ? -1 : source.extent();
  o.window_right = source.flag() ? -1 : source.extent();
  if (source.flag()) o.softmax_scale = source.flag() ? source.take<double>() : 0.5;
  if (source.flag()) o.softcap = source.flag() ? source.take<double>() : 30.0;
  if (source.flag()) o.dropout_p = source.flag() ? source.take<double>() : 0.25;
  if (source.flag()) o.seed = source.take<std::uint64_t>();
  if (source.below(8) == 0) o.seed_and_offset = TensorView(memory.data(), DType::i64, {2});
  if (source.flag()) o.bias = any_tensor(source);
  if (source.below(4) == 0) o.alibi_slopes = any_tensor(source);
  if (source.below(4) == 0) o.sink = any_tensor(source);
  const std::array<TensorView*, 5> tensors = {&o.cu_seqlens_q, &o.cu_seqlens_k, &o.seqused_q, &o.seqused_k,
                                              &o.leftpad_k};
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (source.flag()) *tensors[i] = lengths(source, storage.arrays[i]);
  if (source.below(4) == 0) o.max_seqlen_q = source.extent();
  if (source.below(4) == 0) o.max_seqlen_k = source.extent();
  o.deterministic = source.flag();
  o.batch_invariant = source.flag();
  for (TensorView* scale : {&o.q_scale, &o.k_scale, &o.v_scale})
    if (source.below(4) == 0) *scale = any_tensor(source);
  for (std::optional<double>* scale : {&o.q_scale_value, &o.k_scale_value, &o.v_scale_value})
    if (source.below(8) == 0) *scale = source.take<double>();
  return o;
}

void check(const Problem& problem) {
  try {
    validate(problem);
  } catch (const Error& error) {
    expect_sentence(error);
    return;
  }
  expect(parse_problem(to_string(problem)) == problem, "the printed problem parses back to the same value");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Source source(data, size);
  LengthStorage storage{};
  BackwardArguments b;
  b.options = any_options(source, storage);
  constexpr std::array kDTypes{DType::f32, DType::bf16, DType::f16, DType::fp8_e4m3};
  const DType dtype = kDTypes[static_cast<std::size_t>(source.below(4))];
  const std::array<TensorView*, 12> tensors = {&b.q,    &b.k,  &b.v,  &b.out, &b.softmax_lse, &b.dout,
                                               &b.dlse, &b.dq, &b.dk, &b.dv,  &b.dbias,       &b.dsink};
  std::uintptr_t far = 0;
  for (TensorView* tensor : tensors) {
    *tensor = source.below(4) ? good_tensor(source, dtype, 2, 4) : any_tensor(source);
    far += std::uintptr_t{1} << 40;  // mostly apart, as tensors are, at addresses that nobody reads
    if (tensor->data != nullptr && source.below(8) > 0) tensor->data = reinterpret_cast<void*>(far);
  }
  ForwardArguments f{b.q, b.k, b.v, b.out, b.softmax_lse, b.options};
  if (source.flag()) f.softmax_lse = TensorView(memory.data(), DType::f32, {2, 2, source.below(8)});
  try {
    check(describe(f));
  } catch (const Error& error) {
    expect_sentence(error);
  }
  try {
    check(describe(b));
  } catch (const Error& error) {
    expect_sentence(error);
  }
  return 0;
}
