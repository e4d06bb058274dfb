// Schemas and kernels of the KV cache step's torch operators. Both caches and the scales are declared as mutated:
// scales per token are, where keys are appended.
#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/message.hpp"
#include "operations/kv_cache/kv_cache.hpp"
#include "outputs.hpp"
#include "schema_options.hpp"
#include "torch_kernel.hpp"
#include "torch_options.hpp"
#include "torch_shim.hpp"
#include "torch_stack.hpp"

namespace tilewise::python {
namespace {

namespace shim = torch_shim;

constexpr const char* kCaches = "Tensor(a!) k_cache, Tensor(b!)? v_cache, Tensor(c!)? k_scale, Tensor(d!)? v_scale";
using BySchema = OptionsBySchema<operations::kv_cache::kSchema, KvCacheArguments>;

/// Tensors that stand among the caches, since they may be changed.
[[nodiscard]] constexpr bool is_scale(std::string_view name) { return name == "k_scale" || name == "v_scale"; }
/// Fields that no append has.
[[nodiscard]] constexpr bool is_attended(std::string_view key) {
  const auto is = [key]<typename Field>(const Field& field) {
    if constexpr (requires { field.exists; })
      return field.packed_key == key && field.exists == operations::kv_cache::attends;
    return false;
  };
  return operations::schema::apply([&is](const auto&... fields) { return (is(fields) || ...); },
                                   operations::kv_cache::kSchema.fields);
}

constexpr auto kPlaces = BySchema::of_kind<BySchema::Kind::tensor, is_scale>();
constexpr auto kNumbers = BySchema::of_kind<BySchema::Kind::number>();
constexpr auto kAttendOptions = std::tuple_cat(kPlaces, BySchema::of_kind<BySchema::Kind::value>(), kNumbers);
constexpr auto kAppendOptions =
    std::tuple_cat(kPlaces, BySchema::of_kind<BySchema::Kind::value, is_attended>(), kNumbers);

/// Without defaults: torch leaves trailing ones out where it calls kernels in Python.
template <const auto& kOptions>
std::string options_schema() {
  std::string text;
  std::apply([&text](const auto&... options) { ((text += option_text(options) + ", "), ...); }, kOptions);
  return text + "str? implementation";
}
constexpr const char* kPlainStepSchema =
    "Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? k, Tensor? v, Tensor? cache_seqlens, "
    "Tensor? block_table, Tensor? rotary_cos, Tensor? rotary_sin, bool causal, float? softmax_scale) -> Tensor";
/// In the order of kCaches, owned until the kernel returns.
struct Caches {
  shim::Tensor k_cache, v_cache, k_scale, v_scale;
  [[nodiscard]] static Caches read(shim::StackReader& stack) {
    return {stack.tensor(), stack.optional_tensor(), stack.optional_tensor(), stack.optional_tensor()};
  }
  template <typename Arguments>
  void view(Arguments& a) const {
    a.k_cache = k_cache.view("k_cache");
    a.v_cache = v_cache.view("v_cache");
    a.options.k_scale = k_scale.view("k_scale");
    a.options.v_scale = v_scale.view("v_scale");
  }
};

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
  const OptionsOnStack<kAttendOptions> options(reader);
  const shim::String implementation = reader.optional_string();
  shim::Tensor out, lse;
  run_kernel([&] {
    KvCacheArguments a;
    options.set(a.options);
    caches.view(a);
    a.q = q.view("q");
    a.k = k.view("k");
    a.v = v.view("v");
    if (given_out) a.out = old_out.view("out");
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
  const OptionsOnStack<kAppendOptions> options(reader);
  const shim::String implementation = reader.optional_string();
  run_kernel([&] {
    AppendKvArguments a;
    options.set(a.options);
    caches.view(a);
    a.k = k.view("k");
    a.v = v.view("v");
    run_on_stream<operations::KvCache>(operations::KvCache::Call(a), a.k.device, {std::string(implementation.view())},
                                       shim::current_stream(a.k.device));
  });
}

}  // namespace

/// Each operator, and an overload of it, `detached`, for callers that have looked for gradients themselves; so has who
/// calls `plain`: torch spends 60 ns and more on every argument, given or not.
std::vector<TorchOperator> kv_cache_operators() {
  const std::string attends = std::string("Tensor q, ") + kCaches + ", Tensor? k, Tensor? v";
  const std::string appends = std::string(kCaches) + ", Tensor k, Tensor? v";
  std::vector<TorchOperator> operators;
  // First: torch 2.13 takes operators of Python back in this order when a program ends, and aborts over a third
  // overload that comes last.
  operators.push_back(
      {"kv_cache_attention.plain", std::string("kv_cache_attention.plain(") + kPlainStepSchema, plain_attend_kernel});
  for (const std::string overload : {"", ".detached"}) {
    const auto add = [&](const char* of, const std::string& tensors, const std::string& options, const char* returns,
                         shim::BoxedKernel kernel) {
      const std::string name = of + overload;
      operators.push_back({name, core::concat(name, '(', tensors, ", ", options, ") -> ", returns), kernel});
    };
    const std::string options = options_schema<kAttendOptions>();
    add("kv_cache_attention", attends, options, "(Tensor, Tensor)", attend_kernel<false>);
    add("kv_cache_attention_out", attends + ", Tensor(e!) out", options, "Tensor", attend_kernel<true>);
    add("append_kv", appends, options_schema<kAppendOptions>(), "()", append_kernel);
  }
  return operators;
}

}  // namespace tilewise::python
