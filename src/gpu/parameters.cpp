// Values of a parameter block by its fields.
#include "gpu/parameters.hpp"

namespace tilewise::gpu {
namespace {

template <typename Number>
Number number_at(const void* block, std::size_t offset) {
  Number number;
  std::memcpy(&number, static_cast<const std::byte*>(block) + offset, sizeof number);
  return number;
}

}  // namespace

ParameterField::Value ParameterField::value_in(const void* block) const {
  if (type == "float") return number_at<float>(block, offset);
  if (type == "int32_t") return std::int64_t{number_at<std::int32_t>(block, offset)};
  if (type == "int64_t") return number_at<std::int64_t>(block, offset);
  if (type == "uint32_t") return std::uint64_t{number_at<std::uint32_t>(block, offset)};
  if (type == "uint64_t") return number_at<std::uint64_t>(block, offset);
  return {};
}

}  // namespace tilewise::gpu
