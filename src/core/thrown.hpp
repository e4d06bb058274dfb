// What came out of the library, for the module and the command, which in a wheel have a C++ runtime of their own.
// LLVM's knows a type by its address, and std::bad_alloc has one in each of them. tilewise::Error is the library's for
// all of them and is caught as usual.
#pragma once

#include <exception>
#include <string>

#include "core/visibility.hpp"

namespace tilewise::core {

struct Thrown {
  bool is_out_of_memory = false;
  std::string message;
};

/// Of an exception that the library threw. Never throws itself, unless memory is out.
[[nodiscard]] TILEWISE_INTERNAL Thrown describe_thrown(const std::exception_ptr& exception);

}  // namespace tilewise::core
