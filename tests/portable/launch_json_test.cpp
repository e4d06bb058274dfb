// launch.json says of each launch what the library passes: every field of every parameter block, and every tensor map,
// for random calls of each operation until all options that kernels honour have been seen.
#include "../../tools/launch_json.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/implementation.hpp"
#include "core/packed.hpp"
#include "core/plan.hpp"
#include "gpu/ahead_of_time.hpp"
#include "gpu/architectures.hpp"
#include "gpu/lowered_kernel.hpp"
#include "verify/verifier.hpp"

namespace tilewise::test {
namespace {

using Json = nlohmann::ordered_json;

/// Numbers that a call brings and its problem does not have, and how many rows a table has.
bool is_of_the_call_alone(std::string_view field) {
  constexpr std::string_view kFields[] = {"score.seed",    "score.offset",  "cache.cache_seqlen", "rotary.rows",
                                          "q_scale.value", "k_scale.value", "v_scale.value"};
  return std::ranges::any_of(kFields, [field](std::string_view name) { return field.ends_with(name); });
}

/// Makes each tensor a contiguous copy, always the same one.
class Copies {
 public:
  /// Of tensors whose last dimension but one is the contiguous one.
  std::set<const void*> turned;

  void operator()(TensorView& view) {
    TensorView& copy = copies_[{view.data, view.rank, view.shape}];
    if (!copy.defined()) copy = copied(view);
    view = copy;
  }

 private:
  TensorView copied(const TensorView& view) {
    TensorView copy = view;
    const auto last = static_cast<std::size_t>(view.rank - 1);
    const bool is_turned = turned.contains(view.data);
    std::int64_t stride = 1;
    for (std::size_t n = 0; n < static_cast<std::size_t>(view.rank); ++n) {
      const std::size_t axis = is_turned && n < 2 ? last - 1 + n : last - n;
      copy.strides[axis] = stride;
      stride *= std::max<std::int64_t>(view.shape[axis], 1);
      if (core::is_packed(view.dtype)) stride += stride % 2;
    }
    constexpr std::size_t kAlignment = 256;  // as allocators of GPUs align
    memory_.emplace_back(static_cast<std::size_t>(stride) * sizeof(double) + kAlignment);
    void* data = memory_.back().data();
    std::size_t room = memory_.back().size();
    copy.data = std::align(kAlignment, 1, data, room);
    if (core::is_packed(view.dtype)) return copy;
    const auto element = static_cast<std::int64_t>(size_of(view.dtype));
    verify::for_each_element(view, [&](std::span<const std::int64_t> position, std::int64_t offset) {
      std::memcpy(static_cast<std::byte*>(copy.data) + verify::offset_of(copy, position) * element,
                  static_cast<const std::byte*>(view.data) + offset * element, static_cast<std::size_t>(element));
    });
    return copy;
  }

  std::map<std::tuple<void*, int, std::array<std::int64_t, kMaxRank>>, TensorView> copies_;
  std::deque<std::vector<std::byte>> memory_;
};

/// Hands over what a run would launch kernels with.
class Capture final : public core::Kernel {
 public:
  explicit Capture(std::function<void(const void*)> take) : take_(std::move(take)) {}
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return 0; }
  [[nodiscard]] std::string schedule() const override { return {}; }
  void launch_on(const void* params, void*, void*) const override { take_(params); }

 private:
  std::function<void(const void*)> take_;
};

class BoundBlock {
 public:
  BoundBlock(const gpu::Launch& launch, const void* params, const Json& told, std::string name)
      : launch_(launch), told_(told), name_(std::move(name)) {
    gpu::fill_params(launch, params, kWorkspace, block_);
    for (const gpu::TensorMapParameter& map : launch.tensor_maps)
      maps_.push_back(gpu::bound_map(map, params, kWorkspace));
  }

  /// `tensors`: those of the call.
  void expect_as_told(const std::map<std::string, const void*>& tensors) const {
    for (const gpu::ParameterField& field : launch_.key.body->fields()) {
      if (field.is_pointer()) {
        const void* address = nullptr;
        std::memcpy(&address, block_ + field.offset, sizeof address);
        EXPECT_EQ(told_address(field.name, tensors), address) << name_ << "." << field.name;
      } else if (!is_encoded(field) && !is_of_the_call_alone(field.name)) {
        const Json& values = told_["values_of_contiguous_tensors"];
        ASSERT_TRUE(values.contains(field.name)) << name_ << "." << field.name;
        std::visit([&](const auto& value) { expect_value(field.name, values[field.name], value); },
                   field.value_in(block_));
      }
    }
    ASSERT_EQ(told_["tensor_maps"].size(), maps_.size());
    for (std::size_t i = 0; i < maps_.size(); ++i) expect_map(told_["tensor_maps"][i], maps_[i], tensors);
  }

 private:
  template <typename Value>
  void expect_value(const std::string& field, const Json& told, const Value& value) const {
    if constexpr (std::is_same_v<Value, std::monostate>) {
      ADD_FAILURE() << field << " has no value";
    } else {
      EXPECT_EQ(told.get<Value>(), value) << name_ << "." << field;
    }
  }
  [[nodiscard]] bool is_encoded(const gpu::ParameterField& field) const {
    return std::ranges::any_of(launch_.tensor_maps, [&field](const gpu::TensorMapParameter& map) {
      return field.offset >= map.param_offset && field.offset < map.param_offset + gpu::kTensorMapBytes;
    });
  }
  [[nodiscard]] const void* told_address(const std::string& field,
                                         const std::map<std::string, const void*>& tensors) const {
    const Json &pointers = told_["pointers"]["tensors"], &places = told_["pointers"]["workspace"];
    if (places.contains(field)) return kWorkspace + places[field].get<std::size_t>();
    if (!pointers.contains(field)) return nullptr;
    const auto name = pointers[field].get<std::string>();
    if (const auto found = tensors.find(name); found != tensors.end()) return found->second;
    // The call may have left out what its problem tells no less of: a scale is a number, and new keys are packed as
    // queries are, or are all of one sequence.
    if (name.ends_with("_scale")) return nullptr;
    EXPECT_EQ(name, "cu_seqlens_k_new") << name_ << "." << field << " is told to be what the call has not";
    const auto queries = tensors.find("cu_seqlens_q");
    return queries == tensors.end() ? nullptr : queries->second;
  }
  void expect_map(const Json& told, const gpu::TensorMap& map,
                  const std::map<std::string, const void*>& tensors) const {
    const auto rank = static_cast<std::size_t>(map.rank);
    const std::byte* address = nullptr;
    if (!told["workspace"].is_null()) address = kWorkspace + told["workspace"].get<std::size_t>();
    if (!told["tensor"].is_null())
      address = static_cast<const std::byte*>(tensors.at(told["tensor"].get<std::string>())) +
                told["byte_offset"].get<std::size_t>();
    EXPECT_EQ(address, map.address) << name_ << ", map at " << told["offset"];
    ASSERT_EQ(told["dims"].size(), rank);
    for (std::size_t i = 0; i < rank; ++i) {
      EXPECT_EQ(told["dims"][i].get<std::uint64_t>(), map.dims[i]) << name_ << ", map at " << told["offset"];
      EXPECT_EQ(told["box"][i].get<std::uint32_t>(), map.box[i]) << name_ << ", map at " << told["offset"];
      if (i > 0) {
        EXPECT_EQ(told["stride_bytes"][i - 1].get<std::uint64_t>(), map.strides[i - 1])
            << name_ << ", map at " << told["offset"];
      }
    }
  }

  static inline std::byte* const kWorkspace = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 61);
  const gpu::Launch& launch_;
  const Json& told_;
  std::string name_;
  std::vector<gpu::TensorMap> maps_;
  alignas(64) std::byte block_[gpu::kMostParameterBytes];
};

/// Rows of an operation on one of each machine.
struct Row {
  const core::Implementation* implementation;
  const gpu::AheadOfTime* kernels;
  core::DeviceDescription device;
};
std::vector<Row> rows_of(const core::OperationInterface& operation) {
  std::vector<Row> rows;
  for (const std::string_view name : {"sm_80", "sm_90a", "gfx90a", "gfx942", "gfx1100", "gfx1201", "gfx1250"}) {
    const core::DeviceDescription device = gpu::describe(gpu::named_architecture(name));
    for (const core::Implementation* row : core::implementation_table()) {
      const auto* kernels = dynamic_cast<const gpu::AheadOfTime*>(row);
      if (kernels == nullptr || &row->operation() != &operation || row->device() != device.device.type) continue;
      if (gpu::has_family(device, kernels->family())) rows.push_back({row, kernels, device});
    }
  }
  return rows;
}

/// The call on contiguous tensors, and what launch.json says of its problem on each device.
class ComparedCall {
 public:
  explicit ComparedCall(const verify::DrawnCall& call) : call_(call), outputs_(call.make_outputs(1)) {
    const std::string text = to_string(call_.any_problem());
    const auto keep = [](TensorView&) {};
    call_.for_each_tensor(outputs_, keep, [&](const std::string& name, const TensorView& view) {
      if (text.find(name + "_transposed=1") != std::string::npos) copies_.turned.insert(view.data);
    });
    call_.for_each_tensor(outputs_, change(),
                          [this](const std::string& name, const TensorView& view) { tensors_[name] = view.data; });
  }

  /// Returns the features of those problems that a row took.
  core::FeatureBits compare(const std::vector<Row>& rows) {
    core::FeatureBits seen = 0;
    const AnyProblem problem = call_.plan("reference", outputs_, change()).problem();
    auto capture = std::make_unique<const Capture>([&](const void* params) {
      for (const Row& row : rows) seen |= compare_on(row, problem, params);
    });
    alignas(64) std::byte workspace[64];
    const Plan plan(std::make_shared<const Plan::State>(
        Plan::State{problem, rows.front().implementation, std::move(capture), 0, 0.0}));
    call_.launch(plan, outputs_, workspace, change());
    return seen;
  }

 private:
  [[nodiscard]] verify::Change change() {
    return [this](TensorView& view) { copies_(view); };
  }
  core::FeatureBits compare_on(const Row& row, const AnyProblem& of_cpu, const void* params) const {
    const std::string text = core::concat(to_string(of_cpu), " device=", to_string(row.device.device.type));
    const AnyProblem problem = parse_problem(text);
    const core::FeatureBits features = problem.operation().required_features(problem.value());
    if ((features & ~row.implementation->supported_features()) != 0) return 0;
    const core::Verdict verdict = row.implementation->judge_problem(problem, row.device);
    if (!verdict.accepted()) return 0;
    const gpu::DescribedCall told = row.kernels->contiguous_call(problem);
    for (const gpu::Launch* launch : dynamic_cast<const gpu::LoweredKernel&>(*verdict.kernel).lowering().launches()) {
      const Json json = tools::bound_json(*launch, told);
      BoundBlock(*launch, params, json,
                 core::concat(text, " on ", row.device.architecture, ": ", launch->key.body->name))
          .expect_as_told(tensors_);
    }
    return features;
  }

  const verify::DrawnCall& call_;
  std::vector<verify::Output> outputs_;
  Copies copies_;
  std::map<std::string, const void*> tensors_;
};

class LaunchJsonOf : public testing::TestWithParam<const verify::Verifier*> {};

/// What few random problems are that any kernel takes.
constexpr const char* kRarelyDrawn[] = {
    "moe dtype=bf16 tokens=20 hidden=64 intermediate=64 num_experts=4 top_k=2 save_gate_up=1",
    "moe_backward dtype=bf16 tokens=20 hidden=64 intermediate=64 num_experts=4 top_k=2 save_gate_up=1"};

TEST_P(LaunchJsonOf, IsWhatTheLibraryBinds) {
  const verify::Verifier& verifier = *GetParam();
  const std::vector<Row> rows = rows_of(verifier.operation());
  ASSERT_FALSE(rows.empty());
  verify::Limits limits;
  limits.features = 0;
  limits.max_flops = 1e5;
  for (const Row& row : rows) limits.features |= row.implementation->supported_features();
  constexpr std::uint64_t kFewest = 60, kMost = 1000;
  core::FeatureBits seen = 0;
  const auto compare = [&](const AnyProblem& problem, std::uint64_t seed) {
    const std::unique_ptr<const verify::DrawnCall> call = verifier.draw(problem, seed, verify::Values::ordinary);
    seen |= ComparedCall(*call).compare(rows);
  };
  for (const char* text : kRarelyDrawn) {
    const AnyProblem problem = parse_problem(text);
    if (problem.operation().name() == verifier.operation().name()) compare(problem, 0);
  }
  for (std::uint64_t seed = 0; seed < kMost && (seed < kFewest || seen != limits.features); ++seed) {
    compare(verifier.random_problem(seed, limits), seed);
    if (HasFailure()) return;
  }
  EXPECT_EQ(core::features_text(limits.features & ~seen, verifier.operation().feature_names()), "");
}

std::vector<const verify::Verifier*> all_verifiers() {
  return {verify::verifiers().begin(), verify::verifiers().end()};
}
INSTANTIATE_TEST_SUITE_P(Operations, LaunchJsonOf, testing::ValuesIn(all_verifiers()),
                         [](const auto& info) { return std::string(info.param->operation().name()); });

}  // namespace
}  // namespace tilewise::test
