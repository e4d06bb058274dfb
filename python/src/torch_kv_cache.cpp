// Schemas and kernels of the KV cache step's torch operators. Both caches and the scales are declared as mutated:
// scales per token are, where keys are appended.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "operations/kv_cache/kv_cache.hpp"
#include "outputs.hpp"
#include "torch_kernel.hpp"
#include "torch_shim.hpp"
#include "torch_stack.hpp"

namespace tilewise::python {
namespace {

namespace shim = torch_shim;

constexpr const char* kCaches = "Tensor(a!) k_cache, Tensor(b!)? v_cache, Tensor(c!)? k_scale, Tensor(d!)? v_scale";
constexpr const char* kPlaces =
    "Tensor? rotary_cos, Tensor? rotary_sin, Tensor? rotary_seqlens, Tensor? cache_seqlens, Tensor? cache_batch_idx, "
    "Tensor? cache_leftpad, Tensor? block_table, Tensor? slots, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k_new, "
    "Tensor? alibi_slopes, Tensor? sink";
// Without defaults: torch leaves trailing ones out where it calls kernels in Python.
constexpr const char* kAttendNumbers =
    "bool rotary_interleaved, int rotary_offset, SymInt? cache_seqlen, SymInt? max_seqlen_q, "
    "SymInt? max_seqlen_k_new, int? head_dim_v, float? k_scale_value, float? v_scale_value, "
    "bool causal, int window_left, int window_right, float? softmax_scale, float softcap, "
    "int num_splits, bool batch_invariant, str? implementation";
constexpr const char* kPlainStepSchema =
    "Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? k, Tensor? v, Tensor? cache_seqlens, "
    "Tensor? block_table, Tensor? rotary_cos, Tensor? rotary_sin, bool causal, float? softmax_scale) -> Tensor";
constexpr const char* kAppendNumbers =
    "bool rotary_interleaved, int rotary_offset, SymInt? cache_seqlen, SymInt? max_seqlen_k_new, "
    "float? k_scale_value, float? v_scale_value, str? implementation";

/// In the order of kCaches and kPlaces, owned until the kernel returns.
struct Caches {
  shim::Tensor k_cache, v_cache, k_scale, v_scale;
  [[nodiscard]] static Caches read(shim::StackReader& stack) {
    return {stack.tensor(), stack.optional_tensor(), stack.optional_tensor(), stack.optional_tensor()};
  }
};

struct Places {
  shim::Tensor rotary_cos, rotary_sin, rotary_seqlens, cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
      slots, cu_seqlens_q, cu_seqlens_k_new, alibi_slopes, sink;

  [[nodiscard]] static Places read(shim::StackReader& stack) {
    return {stack.optional_tensor(), stack.optional_tensor(), stack.optional_tensor(), stack.optional_tensor(),
            stack.optional_tensor(), stack.optional_tensor(), stack.optional_tensor(), stack.optional_tensor(),
            stack.optional_tensor(), stack.optional_tensor(), stack.optional_tensor(), stack.optional_tensor()};
  }
  void view(const Caches& caches, KvCacheOptions& options) const {
    options.rotary_cos = rotary_cos.view("rotary_cos");
    options.rotary_sin = rotary_sin.view("rotary_sin");
    options.rotary_seqlens = rotary_seqlens.view("rotary_seqlens");
    options.cache_seqlens = cache_seqlens.view("cache_seqlens");
    options.cache_batch_idx = cache_batch_idx.view("cache_batch_idx");
    options.cache_leftpad = cache_leftpad.view("cache_leftpad");
    options.block_table = block_table.view("block_table");
    options.slots = slots.view("slots");
    options.cu_seqlens_q = cu_seqlens_q.view("cu_seqlens_q");
    options.cu_seqlens_k_new = cu_seqlens_k_new.view("cu_seqlens_k_new");
    options.alibi_slopes = alibi_slopes.view("alibi_slopes");
    options.sink = sink.view("sink");
    options.k_scale = caches.k_scale.view("k_scale");
    options.v_scale = caches.v_scale.view("v_scale");
  }
};

/// kAttendNumbers but for the implementation, which comes last.
void read_attend_numbers(shim::StackReader& stack, KvCacheOptions& options) {
  options.rotary_interleaved = stack.boolean();
  options.rotary_offset = stack.integer();
  options.cache_seqlen = stack.optional_integer();
  options.max_seqlen_q = stack.optional_integer();
  options.max_seqlen_k_new = stack.optional_integer();
  options.head_dim_v = stack.optional_integer();
  options.k_scale_value = stack.optional_number();
  options.v_scale_value = stack.optional_number();
  options.mask = stack.boolean() ? Mask::causal : Mask::none;
  options.window_left = stack.integer();
  options.window_right = stack.integer();
  options.softmax_scale = stack.optional_number();
  options.softcap = stack.number();
  options.num_splits = stack.integer();
  options.batch_invariant = stack.boolean();
}

void read_append_numbers(shim::StackReader& stack, KvCacheOptions& options) {
  options.rotary_interleaved = stack.boolean();
  options.rotary_offset = stack.integer();
  options.cache_seqlen = stack.optional_integer();
  options.max_seqlen_k_new = stack.optional_integer();
  options.k_scale_value = stack.optional_number();
  options.v_scale_value = stack.optional_number();
}

/// What out has of v_cache: a row of head_dim_v, whatever else describe() will say.
TensorView values_of(const KvCacheArguments& a) {
  if (a.v_cache.defined()) return a.v_cache;
  TensorView values = a.q;
  if (values.rank > 0 && a.options.head_dim_v)
    values.shape[static_cast<std::size_t>(values.rank - 1)] = std::max<std::int64_t>(*a.options.head_dim_v, 0);
  return values;
}

/// `given_out`: undefined where the kernel allocates it. `lse`: null where it is not wanted.
void attend(KvCacheArguments& a, const SelectOptions& select, bool given_out, shim::Tensor& out, shim::Tensor* lse) {
  if (!given_out) a.out = planned_out(a.q, values_of(a));
  if (lse != nullptr) a.softmax_lse = planned_lse(a.q, a.q.rank == 3 ? Layout::thd : Layout::bshd);
  if (is_huge(a.out) || is_huge(a.softmax_lse))
    static_cast<void>(operations::KvCache::describe(operations::KvCache::Call(a)));
  if (!given_out) out = shim::Tensor::empty(&a.out);
  if (lse != nullptr) *lse = shim::Tensor::empty(&a.softmax_lse);
  void* stream = shim::current_stream(a.q.device);
  const TensorView& cu_seqlens = a.options.cu_seqlens_q;
  if (!given_out) clear_before(a.out, cu_seqlens, stream);
  clear_lse_before(a.softmax_lse, cu_seqlens, stream);
  run_on_stream<operations::KvCache>(operations::KvCache::Call(a), a.q.device, select, stream);
  if (!given_out) clear_rest(a.out, cu_seqlens);
  clear_rest_of_lse(a.softmax_lse, cu_seqlens);
}

/// kv_cache_attention, which allocates out, and kv_cache_attention_out, to which it is given after v.
template <bool given_out>
void attend_kernel(shim::StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  shim::StackReader reader(stack);
  const shim::Tensor q = reader.tensor();
  const Caches caches = Caches::read(reader);
  const shim::Tensor k = reader.optional_tensor(), v = reader.optional_tensor();
  const shim::Tensor old_out = given_out ? reader.tensor() : shim::Tensor();
  const Places places = Places::read(reader);
  KvCacheArguments a;
  read_attend_numbers(reader, a.options);
  const shim::String implementation = reader.optional_string();
  shim::Tensor out, lse;
  run_kernel([&] {
    a.q = q.view("q");
    a.k_cache = caches.k_cache.view("k_cache");
    a.v_cache = caches.v_cache.view("v_cache");
    a.k = k.view("k");
    a.v = v.view("v");
    if (given_out) a.out = old_out.view("out");
    places.view(caches, a.options);
    attend(a, {std::string(implementation.view())}, given_out, out, &lse);
  });
  if (!given_out) *stack++ = reinterpret_cast<std::uintptr_t>(out.release());
  *stack = reinterpret_cast<std::uintptr_t>(lse.release());
}

/// kv_cache_attention.plain: what a serving engine passes, and out alone.
void plain_attend_kernel(shim::StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  shim::StackReader reader(stack);
  const shim::Tensor q = reader.tensor(), k_cache = reader.tensor(), v_cache = reader.tensor();
  const shim::Tensor k = reader.optional_tensor(), v = reader.optional_tensor();
  const shim::Tensor cache_seqlens = reader.optional_tensor(), block_table = reader.optional_tensor();
  const shim::Tensor rotary_cos = reader.optional_tensor(), rotary_sin = reader.optional_tensor();
  KvCacheArguments a;
  a.options.mask = reader.boolean() ? Mask::causal : Mask::none;
  a.options.softmax_scale = reader.optional_number();
  shim::Tensor out;
  run_kernel([&] {
    a.q = q.view("q");
    a.k_cache = k_cache.view("k_cache");
    a.v_cache = v_cache.view("v_cache");
    a.k = k.view("k");
    a.v = v.view("v");
    a.options.cache_seqlens = cache_seqlens.view("cache_seqlens");
    a.options.block_table = block_table.view("block_table");
    a.options.rotary_cos = rotary_cos.view("rotary_cos");
    a.options.rotary_sin = rotary_sin.view("rotary_sin");
    attend(a, {}, false, out, nullptr);
  });
  *stack = reinterpret_cast<std::uintptr_t>(out.release());
}

void append_kernel(shim::StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  shim::StackReader reader(stack);
  const Caches caches = Caches::read(reader);
  const shim::Tensor k = reader.tensor(), v = reader.optional_tensor();
  const Places places = Places::read(reader);
  AppendKvArguments a;
  read_append_numbers(reader, a.options);
  const shim::String implementation = reader.optional_string();
  run_kernel([&] {
    a.k_cache = caches.k_cache.view("k_cache");
    a.v_cache = caches.v_cache.view("v_cache");
    a.k = k.view("k");
    a.v = v.view("v");
    places.view(caches, a.options);
    run_on_stream<operations::KvCache>(operations::KvCache::Call(a), a.k.device, {std::string(implementation.view())},
                                       shim::current_stream(a.k.device));
  });
}

}  // namespace

/// Each operator, and an overload of it, `detached`, for callers that have looked for gradients themselves; so has who
/// calls `plain`: torch spends 60 ns and more on every argument, given or not.
std::vector<TorchOperator> kv_cache_operators() {
  const auto schema = [](const std::string& name, const std::string& tensors, const char* numbers,
                         const char* returns) {
    return name + "(" + tensors + ", " + kPlaces + ", " + numbers + ") -> " + returns;
  };
  const std::string attends = std::string("Tensor q, ") + kCaches + ", Tensor? k, Tensor? v";
  const std::string appends = std::string(kCaches) + ", Tensor k, Tensor? v";
  std::vector<TorchOperator> operators;
  // First: torch 2.13 takes operators of Python back in this order when a program ends, and aborts over a third
  // overload that comes last.
  operators.push_back(
      {"kv_cache_attention.plain", std::string("kv_cache_attention.plain(") + kPlainStepSchema, plain_attend_kernel});
  for (const std::string overload : {"", ".detached"}) {
    const auto add = [&](const std::string& name, const std::string& tensors, const char* numbers, const char* returns,
                         shim::BoxedKernel kernel) {
      operators.push_back({name + overload, schema(name + overload, tensors, numbers, returns), kernel});
    };
    add("kv_cache_attention", attends, kAttendNumbers, "(Tensor, Tensor)", attend_kernel<false>);
    add("kv_cache_attention_out", attends + ", Tensor(e!) out", kAttendNumbers, "Tensor", attend_kernel<true>);
    add("append_kv", appends, kAppendNumbers, "()", append_kernel);
  }
  return operators;
}

}  // namespace tilewise::python
