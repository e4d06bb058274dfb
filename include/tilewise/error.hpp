// The one exception type of Tilewise: a code that maps to a Python exception and a
// sentence that names the argument, the expectation and the actual value.
#pragma once

#include <stdexcept>
#include <string>

#include "tilewise/cxx20.hpp"
#include "tilewise/export.h"

namespace tilewise {

/// What kind of mistake an Error reports. The values are those of tilewise_status in tilewise.h.
enum class ErrorCode : int {
  invalid_argument = 1,  ///< a value is out of range or inconsistent; Python: ValueError
  invalid_type = 2,      ///< wrong dtype or device; Python: TypeError
  unsupported = 3,       ///< no implementation accepts the problem; Python: NotImplementedError
  runtime = 4,           ///< the system failed (memory, driver); Python: RuntimeError
};

class TILEWISE_EXPORT Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace tilewise
