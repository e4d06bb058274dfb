// What is driven by an operation's one list of fields must know all of it: hash and comparison see every field, and
// random problems reach beyond each default.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "operations/list.hpp"
#include "verify/verifier.hpp"

namespace tilewise {
namespace {

/// Calls visit.operator()<Traits>() with each operation's, under its name.
template <typename Visit>
void for_each_operation(Visit&& visit) {
  operations::All::for_each([&]<typename Traits> {
    const testing::ScopedTrace trace(__FILE__, __LINE__, std::string(Traits::kName));
    visit.template operator()<Traits>();
  });
}

template <typename Traits>
const core::OperationInterface& interface_of() {
  constexpr const typename Traits::Problem* kTag = nullptr;
  return operation_of(kTag);
}

/// Keys of all problems drawn with these seeds, but those whose words leave them at their default.
template <typename Traits>
std::set<std::string> drawn_keys(std::uint64_t seeds) {
  std::set<std::string> keys;
  const verify::Verifier& verifier = verify::verifier_of(interface_of<Traits>());
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const AnyProblem drawn = verifier.random_problem(seed, {.max_flops = 1e6});
    auto problem = drawn.get<typename Traits::Problem>();
    Traits::for_each_field(problem, [&](std::string_view key, const auto& field, const auto& by_default) {
      if (field != by_default) keys.emplace(key);
    });
  }
  return keys;
}

TEST(Fields, RandomProblemsReachThemAll) {
  for_each_operation([]<typename Traits> {
    const std::set<std::string> drawn = drawn_keys<Traits>(600);
    for (const bool packed : {false, true}) {
      typename Traits::Problem problem;
      if constexpr (requires { problem.layout; }) problem.layout = packed ? Layout::thd : Layout::bshd;
      Traits::for_each_field(problem, [&](std::string_view key, const auto&, const auto&) {
        if (key == "device" || key == "unaligned" || key == "bias_unaligned")
          return;  // the host's tensors are drawn, which know neither
        EXPECT_TRUE(drawn.contains(std::string(key))) << key;
      });
    }
  });
}

TEST(Fields, DrawnProblemsAreValidPrintAndParse) {
  for_each_operation([]<typename Traits> {
    const verify::Verifier& verifier = verify::verifier_of(interface_of<Traits>());
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      const AnyProblem problem = verifier.random_problem(seed, {.max_flops = 1e6});
      EXPECT_NO_THROW(validate(problem)) << to_string(problem);
      const AnyProblem again = parse_problem(to_string(problem));
      EXPECT_EQ(again, problem) << to_string(problem);
      EXPECT_EQ(hash_value(again), hash_value(problem));
      EXPECT_EQ(verifier.random_problem(seed, {.max_flops = 1e6}), problem) << "a pure function of the seed";
    }
  });
}

TEST(Fields, LimitsKeepFeaturesAway) {
  for_each_operation([]<typename Traits> {
    const verify::Verifier& verifier = verify::verifier_of(interface_of<Traits>());
    const auto names = interface_of<Traits>().feature_names();
    for (std::size_t bit = 0; bit < names.size(); ++bit) {
      const core::FeatureBits unwanted = core::FeatureBits{1} << bit;
      for (std::uint64_t seed = 0; seed < 30; ++seed) {
        const AnyProblem problem = verifier.random_problem(seed, {.features = ~unwanted, .max_flops = 1e6});
        EXPECT_EQ(problem.operation().required_features(problem.value()) & unwanted, 0u)
            << names[bit] << ": " << to_string(problem);
      }
    }
  });
}

/// A field that hash or comparison forgot would give the plan of another problem.
TEST(Fields, EachMakesAnotherProblem) {
  for_each_operation([]<typename Traits> {
    const verify::Verifier& verifier = verify::verifier_of(interface_of<Traits>());
    std::set<std::string> texts;
    std::set<std::size_t> hashes;
    for (std::uint64_t seed = 0; seed < 600; ++seed) {
      const AnyProblem problem = verifier.random_problem(seed, {.max_flops = 1e6});
      if (texts.insert(to_string(problem)).second) {
        EXPECT_TRUE(hashes.insert(hash_value(problem)).second) << to_string(problem);
      }
    }
  });
}

}  // namespace
}  // namespace tilewise
