#include "core/thrown.hpp"

#include <new>

namespace tilewise::core {

Thrown describe_thrown(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    return {.is_out_of_memory = true, .message = "not enough memory"};
  } catch (const std::exception& error) {
    return {.message = error.what()};
  } catch (...) {
    return {.message = "unknown exception"};
  }
}

}  // namespace tilewise::core
