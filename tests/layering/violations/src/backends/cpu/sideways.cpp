// Breaks two rules on purpose: tests/layering checks that check_includes.py sees it.
#include "backends/reference/reference_backend.hpp"
const auto features = FeatureSet::all();
