// What follows from a schema, of an operation made up for the purpose: without layouts and lists, with an element type
// of its second tensor, a dimension and tensors that are there or not, and sizes that follow from others.
#include "operations/schema.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "../support/expect_error.hpp"
#include "core/ceil_div.hpp"
#include "operations/derived/describe.hpp"
#include "operations/derived/description.hpp"
#include "operations/derived/fields.hpp"
#include "operations/derived/outputs.hpp"

namespace tilewise {
namespace {

enum class ProjectKind : std::uint8_t { project };
enum class Offsets : std::uint8_t { none, i32, i64 };

}  // namespace

namespace core {
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<Offsets>{"none", "i32", "i64"};
}  // namespace core

namespace {

using test::expect_error, test::expect_invalid;

}  // namespace

template <>
constexpr std::array<std::string_view, 1> core::kNamesOf<ProjectKind>{"project"};

namespace {

struct ProjectProblem {
  ProjectKind kind = ProjectKind::project;
  DType dtype = DType::f32, w_dtype = DType::f32;
  DeviceType device = DeviceType::cpu;
  std::int64_t tokens = 0, k = 0, n = 0, experts = 1, block = 0;
  Offsets offsets = Offsets::none;
  bool bias = false, causal = false, w_transposed = false, unaligned = false;
  bool batched = false;
  std::int64_t batch = 1;
  friend bool operator==(const ProjectProblem&, const ProjectProblem&) = default;
};

struct ProjectArguments {
  TensorView x{}, w{}, bias{}, scales{}, offsets{}, out{};
  bool causal = false;
  std::int64_t block = 0;
};

using P = ProjectProblem;
using A = ProjectArguments;
namespace s = operations::schema;

constexpr s::Dimension<P> kBatch{.name = "batch", .size = &P::batch, .present = &P::batched};
constexpr s::Dimension<P> kTokens{.name = "tokens", .size = &P::tokens};
constexpr s::Dimension<P> kK{.name = "k", .size = &P::k, .least = 1, .most = 64};
constexpr s::Dimension<P> kN{.name = "n", .size = &P::n};
constexpr s::Dimension<P> kExperts{
    .name = "experts", .size = &P::experts, .exists = [](const P& p) { return p.offsets != Offsets::none; }};
constexpr s::Dimension<P> kEnds{.name = "experts + 1", .follows = [](const P& p) { return p.experts + 1; }};
constexpr s::Dimension<P> kBlocks{.name = "blocks of k",
                                  .follows = [](const P& p) { return core::ceil_div(p.k, p.block); }};
template <const s::Dimension<P>&... dimensions>
constexpr s::Dimensions<P> kOf{s::Dimensions<P>::Order::written, {&dimensions...}};
template <DType dtype>
constexpr s::Type<P> kFixed = s::kFixed<P, dtype>;

constexpr auto kProject = s::operation<&P::kind, A>(
    "project",
    s::Pack{s::field("dtype", &P::dtype), s::field("w_dtype", &P::w_dtype, [](const P& p) { return p.dtype; }),
            s::size(kTokens, core::kRequired), s::size(kK, core::kRequired), s::size(kN, core::kRequired),
            s::size(kExperts), s::field("block", &P::block).from(&A::block), s::field("offsets", &P::offsets),
            s::field("bias", &P::bias), s::field("causal", &P::causal).from(&A::causal),
            s::field("w_transposed", &P::w_transposed), s::field("unaligned", &P::unaligned)},
    s::Pack{
        s::argument<P>({.name = "x",
                        .rows = true,
                        .dimensions = kOf<kBatch, kTokens, kK>,
                        .types = {kFixed<DType::f32>, kFixed<DType::bf16>},
                        .dtype = &P::dtype},
                       &A::x),
        s::argument<P>({.name = "w",
                        .transposed = &P::w_transposed,
                        .dimensions = kOf<kExperts, kN, kK>,
                        .types = {s::kOwn<P>, kFixed<DType::fp8_e4m3>},
                        .dtype = &P::w_dtype},
                       &A::w),
        s::argument<P>(
            {.name = "bias", .optional = true, .dimensions = kOf<kN>, .types = {kFixed<DType::f32>}, .given = &P::bias},
            &A::bias),
        s::argument<P>({.name = "scales",
                        .dimensions = kOf<kTokens, kBlocks>,
                        .types = {kFixed<DType::f32>},
                        .needed = [](const P& p) { return p.block > 0; },
                        .needed_by = "block"},
                       &A::scales),
        s::argument<P>({.name = "offsets",
                        .optional = true,
                        .dimensions = kOf<kEnds>,
                        .types = {kFixed<DType::i32>, kFixed<DType::i64>},
                        .kind = s::kind<&P::offsets, Offsets::i32, Offsets::i64>()},
                       &A::offsets),
        s::argument<P>({.name = "out",
                        .access = core::Access::write,
                        .rows = true,
                        .dimensions = kOf<kBatch, kTokens, kN>,
                        .types = {s::kOwn<P>}},
                       &A::out)});
using Call = s::CallOf<kProject>;

/// An operation whose output has a size and an element type that no input says.
struct PickProblem {
  ProjectKind kind = ProjectKind::project;
  DType dtype = DType::f32, ids_dtype = DType::i32;
  DeviceType device = DeviceType::cpu;
  std::int64_t tokens = 0, experts = 0, top_k = 0;
};
struct PickArguments {
  TensorView x, ids;
};
using Q = PickProblem;
constexpr s::Dimension<Q> kRows{.name = "tokens", .size = &Q::tokens};
constexpr s::Dimension<Q> kAllExperts{.name = "experts", .size = &Q::experts};
constexpr s::Dimension<Q> kTopK{.name = "top_k", .size = &Q::top_k};
constexpr auto kPick = s::operation<&Q::kind, PickArguments>(
    "pick",
    s::Pack{s::field("ids_dtype", &Q::ids_dtype,
                     [](const Q& q) { return q.dtype == DType::f64 ? DType::i64 : DType::i32; })},
    s::Pack{s::argument<Q>({.name = "x",
                            .dimensions = {s::Dimensions<Q>::Order::written, {&kRows, &kAllExperts}},
                            .types = {s::kFixed<Q, DType::f32>, s::kFixed<Q, DType::f64>},
                            .dtype = &Q::dtype},
                           &PickArguments::x),
            s::argument<Q>({.name = "ids",
                            .access = core::Access::write,
                            .dimensions = {s::Dimensions<Q>::Order::written, {&kRows, &kTopK}},
                            .types = {s::kFixed<Q, DType::i32>, s::kFixed<Q, DType::i64>},
                            .dtype = &Q::ids_dtype},
                           &PickArguments::ids)});

class Schema : public testing::Test {
 protected:
  TensorView tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
    return {memory_.data() + 64 * next_++, dtype, shape};
  }
  static P described(const A& arguments) { return s::Describer(Call(arguments)).describe(); }

  std::vector<double> memory_ = std::vector<double>(2048);
  std::size_t next_ = 0;
  A call_{.x = tensor(DType::f32, {5, 8}),
          .w = tensor(DType::f32, {3, 8}),
          .out = tensor(DType::f32, {5, 3}),
          .causal = true};
};

TEST_F(Schema, DescribesWhatTensorsSay) {
  P expected{.tokens = 5, .k = 8, .n = 3, .causal = true};
  EXPECT_EQ(described(call_), expected);
  call_.bias = tensor(DType::f32, {3});
  call_.w = tensor(DType::fp8_e4m3, {3, 8});
  expected.bias = true;
  expected.w_dtype = DType::fp8_e4m3;
  EXPECT_EQ(described(call_), expected);
}

TEST_F(Schema, HasADimensionWhereALaterTensorIsGiven) {
  call_.w = tensor(DType::f32, {4, 3, 8});
  expect_invalid("w: rank must be 2, [n, k] (got 3, shape [4, 3, 8])", [this] { (void)described(call_); });
  call_.offsets = tensor(DType::i64, {5});
  EXPECT_EQ(described(call_), (P{.tokens = 5, .k = 8, .n = 3, .experts = 4, .offsets = Offsets::i64, .causal = true}));
  call_.offsets = tensor(DType::i32, {4});
  expect_invalid("offsets: shape must be [experts + 1] = [5] (got [4])", [this] { (void)described(call_); });
}

TEST_F(Schema, HasADimensionWhereTheRankOfTheAnchorSaysSo) {
  call_.x = tensor(DType::f32, {2, 5, 8});
  expect_invalid("out: shape must be [batch, tokens, n] = [2, 5, 3] (got [5, 3])", [this] { (void)described(call_); });
  call_.out = tensor(DType::f32, {2, 5, 3});
  EXPECT_EQ(described(call_), (P{.tokens = 5, .k = 8, .n = 3, .causal = true, .batched = true, .batch = 2}));
  call_.x = tensor(DType::f32, {1, 2, 5, 8});
  expect_invalid("x: rank must be 3, [batch, tokens, k] (got 4, shape [1, 2, 5, 8])",
                 [this] { (void)described(call_); });
}

TEST_F(Schema, WantsATensorWhereAFieldSaysSo) {
  call_.block = 3;
  expect_invalid("scales: must be given with block=3 (got none)", [this] { (void)described(call_); });
  call_.scales = tensor(DType::f32, {5, 2});
  expect_invalid("scales: shape must be [tokens, blocks of k] = [5, 3] (got [5, 2])",
                 [this] { (void)described(call_); });
  call_.scales = tensor(DType::f32, {5, 3});
  EXPECT_EQ(described(call_).block, 3);
  call_.block = 0;
  expect_invalid("scales: excludes block=0 (got both)", [this] { (void)described(call_); });
}

TEST_F(Schema, TakesMatricesEitherWay) {
  const auto strided = [this](std::int64_t rows, std::int64_t columns) {
    call_.w.strides[0] = rows, call_.w.strides[1] = columns;
    return described(call_).w_transposed;
  };
  EXPECT_FALSE(strided(20, 1));
  EXPECT_TRUE(strided(1, 4));
  EXPECT_FALSE(strided(1, 1));
  expect_invalid(
      "w: one of the last two dimensions must be contiguous, stride 1 (got strides 3 and 3); "
      "w.contiguous() in torch or numpy.ascontiguousarray(w) makes it so",
      [&] { strided(3, 3); });
}

TEST_F(Schema, NamesTheTensorThatDoesNotFit) {
  const auto refused = [this](const std::string& sentence, TensorView A::* tensor, const TensorView& view) {
    A changed = call_;
    changed.*tensor = view;
    expect_invalid(sentence, [&] { (void)described(changed); });
  };
  refused("w: must be given", &A::w, {});
  refused("w: shape must be [n, k] = [3, 8] (got [3, 7])", &A::w, tensor(DType::f32, {3, 7}));
  refused("x: rank must be 2, [tokens, k] (got 1, shape [8])", &A::x, tensor(DType::f32, {8}));
  refused("x: k must be 1 to 64 (got 65)", &A::x, {nullptr, DType::f32, {0, 65}});
  refused("out: shape must be [tokens, n] = [5, 3] (got [3, 5])", &A::out, tensor(DType::f32, {3, 5}));
  refused("bias: shape must be [n] = [3] (got [8])", &A::bias, tensor(DType::f32, {8}));
}

TEST_F(Schema, NamesTheDtypesThatATensorMayHave) {
  const auto refused = [this](const std::string& sentence, TensorView A::* tensor, DType dtype) {
    A changed = call_;
    (changed.*tensor).dtype = dtype;
    expect_error(ErrorCode::invalid_type, sentence, [&] { (void)described(changed); });
  };
  refused("x: dtype must be f32 or bf16 (got f64)", &A::x, DType::f64);
  refused("w: dtype must be fp8_e4m3 or that of x, f32 (got bf16)", &A::w, DType::bf16);
  refused("out: dtype must be f32 (got bf16)", &A::out, DType::bf16);
}

TEST_F(Schema, RemembersWhatACallSays) {
  s::LastCallOf<kProject> last;
  EXPECT_FALSE(last.is_like(Call(call_)));
  last.remember(Call(call_));
  EXPECT_TRUE(last.is_like(Call(call_)));
  A other = call_;
  other.causal = false;
  EXPECT_FALSE(last.is_like(Call(other)));
  other = call_;
  other.bias = tensor(DType::f32, {3});
  EXPECT_FALSE(last.is_like(Call(other)));
  other = call_;
  other.w.strides[0] = 16;
  EXPECT_FALSE(last.is_like(Call(other)));
}

TEST_F(Schema, ListsFieldsAndTensors) {
  EXPECT_EQ(s::keys_of<kProject>(P{}),
            (std::vector<std::string_view>{"dtype", "w_dtype", "tokens", "k", "n", "experts", "block", "offsets",
                                           "bias", "causal", "w_transposed", "unaligned"}));
  std::string text;
  s::for_each_tensor(Call(call_), [&text](const core::ArgumentName& name, const TensorView& view, core::Access access) {
    text += core::concat(name, access == core::Access::write ? "!" : "", view.defined() ? " " : "- ");
  });
  EXPECT_EQ(text, "out! x w bias- scales- offsets- ");
  expect_invalid("problem: unknown key; did you mean tokens? (got 'token')",
                 [] { s::refuse_key<kProject>("token", P{}); });
}

TEST_F(Schema, PlansOutputsFromInputs) {
  call_.out = {};
  const Call call(call_);
  const s::OutputPlanner<kProject> planner(call);
  constexpr std::size_t kOut = s::Role<kProject>::place_of("out");
  EXPECT_EQ(planner.count(kOut), 1u);
  const s::PlannedOutput planned = planner.plan(kOut, 0);
  EXPECT_EQ(planned.dtype, DType::f32);
  EXPECT_EQ(s::sizes_of(planned.shape), (std::vector<std::int64_t>{5, 3}));
  // tokens is axis 0 of x, n axis 0 of w.
  EXPECT_EQ(planned.sources[0].place, s::Role<kProject>::place_of("x"));
  EXPECT_EQ(planned.sources[0].axis, 0);
  EXPECT_EQ(planned.sources[1].place, s::Role<kProject>::place_of("w"));
  EXPECT_EQ(planned.sources[1].axis, 0);
}

TEST_F(Schema, PlansNothingFromAnInputOfAnotherRank) {
  call_.w = tensor(DType::f32, {8});
  const Call call(call_);
  expect_invalid("w: rank must be 2, [n, k] (got 1, shape [8])", [&] { (void)s::OutputPlanner<kProject>(call); });
}

TEST_F(Schema, LeavesToChooseWhatNoInputSays) {
  constexpr auto kChoices = s::output_choices<kPick, PickArguments>();
  ASSERT_EQ(s::count_of(kChoices), 2u);
  EXPECT_EQ(kChoices[0].name, "top_k");
  EXPECT_EQ(kChoices[1].name, "ids_dtype");
  EXPECT_EQ(s::count_of(s::output_choices<kProject, A>()), 0u);

  const PickArguments arguments{tensor(DType::f64, {5, 8}), {}};
  const s::CallOf<kPick> call(arguments);
  const auto planned = [&](const s::ChosenOutputs& chosen) {
    return s::OutputPlanner<kPick>(call, std::span(kChoices).first(2), chosen).plan(1, 0);
  };
  s::ChosenOutputs chosen;
  expect_invalid("top_k: must be given and >= 0 (got -1)", [&] { (void)planned(chosen); });
  chosen.sizes[0] = 2;
  EXPECT_EQ(s::sizes_of(planned(chosen).shape), (std::vector<std::int64_t>{5, 2}));
  EXPECT_EQ(planned(chosen).dtype, DType::i64);  // by default beside f64
  EXPECT_EQ(planned(chosen).sources[1].axis, -1);
  chosen.dtypes[1] = DType::i32;
  EXPECT_EQ(planned(chosen).dtype, DType::i32);
}

TEST_F(Schema, IsPrinted) {
  const s::CallDescription words = s::Describing<kProject>::call<A>();
  EXPECT_EQ(words.operation, "project");
  EXPECT_EQ(words.name, "project");
  EXPECT_EQ(words.anchor, "x");
  std::string text;
  for (const s::TensorDescription& tensor : words.tensors)
    text += core::concat(tensor.name, tensor.written ? "!" : "", tensor.optional ? "?" : "", ' ', tensor.shape, ' ',
                         tensor.dtypes, '\n');
  EXPECT_EQ(text,
            "x [tokens, k] f32 or bf16\n"
            "w [n, k] that of x or fp8_e4m3\n"
            "bias? [n] f32\n"
            "scales? [tokens, blocks of k] f32\n"
            "offsets? [experts + 1] i32 or i64\n"
            "out! [tokens, n] that of x\n");
  ASSERT_EQ(words.fields.size(), 2u);
  EXPECT_EQ(words.fields[1].name, "causal");
  EXPECT_EQ(words.fields[1].type, "bool");
  EXPECT_EQ(words.fields[1].by_default, "0");
  EXPECT_FALSE(words.fields[1].required);
}

TEST(SchemaWords, OfTypesThatDependOnTheAnchors) {
  constexpr std::array kAnchors{DType::f32, DType::bf16, DType::f64};
  EXPECT_EQ(s::dtype_words(kAnchors, kAnchors, "x"), "that of x");
  EXPECT_EQ(s::dtype_words(std::array{DType::f32, DType::f32, DType::f32}, kAnchors, "x"), "f32");
  EXPECT_EQ(s::dtype_words(std::array{DType::f32, DType::f32, DType::f64}, kAnchors, "x"), "f32 (f64 where x is f64)");
  EXPECT_EQ(s::alternatives({"f32", "bf16", "f32", "that of x"}), "f32, bf16 or that of x");
}

}  // namespace
}  // namespace tilewise
