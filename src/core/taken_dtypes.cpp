// Reads them from what implementations declare.
#include "core/taken_dtypes.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/message.hpp"
#include "core/names.hpp"

namespace tilewise::core {
namespace {

/// What any row for the operation on the device supports.
FeatureBits supported_somewhere(const OperationInterface& operation, DeviceType device,
                                std::span<const Implementation* const> table) {
  FeatureBits features = 0;
  for (const Implementation* row : table) {
    if (&row->operation() == &operation && row->device() == device) features |= row->supported_features();
  }
  return features;
}

/// The bit of the feature that bears the dtype's name; none where there is no such feature.
FeatureBits bit_of(const OperationInterface& operation, DType dtype) {
  const std::span<const std::string_view> names = operation.feature_names();
  const auto found = std::ranges::find(names, name_of(dtype));
  return found == names.end() ? 0 : FeatureBits{1} << (found - names.begin());
}

}  // namespace

std::string taken_dtypes(const OperationInterface& operation, DeviceType device, std::initializer_list<DType> dtypes) {
  const FeatureBits supported = supported_somewhere(operation, device, implementation_table());
  std::vector<std::string_view> taken;
  for (const DType dtype : dtypes) {
    if ((bit_of(operation, dtype) & supported) != 0) taken.push_back(name_of(dtype));
  }
  std::string text;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    text += concat(i == 0 ? "" : i + 1 < taken.size() ? ", " : " or ", taken[i]);
  }
  return device == DeviceType::cpu ? text : concat(text, " on ", name_of(device));
}

std::string unsupported_text(const OperationInterface& operation, DeviceType device, FeatureBits required,
                             std::span<const Implementation* const> table) {
  const FeatureBits supported = supported_somewhere(operation, device, table), missing = required & ~supported;
  if (missing == 0) return {};
  std::string dtypes;
  bool one_is_missing = false;
  for (std::size_t i = 0; i < kNamesOf<DType>.size(); ++i) {
    const FeatureBits bit = bit_of(operation, static_cast<DType>(i));
    one_is_missing |= (bit & missing) != 0;
    if ((bit & supported) != 0) dtypes += concat(dtypes.empty() ? "" : ", ", kNamesOf<DType>[i]);
  }
  const std::string text =
      concat("; none on ", name_of(device), " supports ", features_text(missing, operation.feature_names()));
  return one_is_missing && !dtypes.empty() ? concat(text, " (dtypes that some do: ", dtypes, ")") : text;
}

}  // namespace tilewise::core
