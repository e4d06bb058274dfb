// What a schema's tensors may be, in words.
#include "operations/derived/describe.hpp"

#include <algorithm>

namespace tilewise::operations::schema {

void check_dtype_among(DType dtype, const core::ArgumentName& name, std::span<const DType> allowed, DType own,
                       std::string_view anchor) {
  std::vector<std::string> names;
  bool among_others = false;
  for (const DType each : allowed) {
    if (each == dtype) return;
    among_others |= each != own;
    if (each == own || std::ranges::count(names, to_string(each)) > 0) continue;
    names.emplace_back(to_string(each));
  }
  if (own != DType::none) {
    names.emplace_back(among_others ? core::concat("that of ", anchor, ", ", to_string(own)) : to_string(own));
  }
  std::string words;
  for (std::size_t i = 0; i < names.size(); ++i)
    words += core::concat(i == 0 ? "" : i + 1 < names.size() ? ", " : " or ", names[i]);
  core::invalid_type(name, ": dtype must be ", words, " (got ", to_string(dtype), ")");
}

}  // namespace tilewise::operations::schema
