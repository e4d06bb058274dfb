// The library's version; the number stands in the top-level CMakeLists.txt alone.
#include "tilewise/plan.hpp"

namespace tilewise {

std::string_view version() noexcept { return TILEWISE_VERSION; }

}  // namespace tilewise
