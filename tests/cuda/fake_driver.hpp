// The driver that only records, as the tests see it, and what their calls throw.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "fake_cuda.hpp"
#include "tilewise/error.hpp"

namespace tilewise::test {

/// The fake's functions, out of the very library that the backend opens.
template <typename Function>
Function* fake(const char* name) {
  void* library = dlopen(TILEWISE_FAKE_DRIVER, RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

inline fake::State& state() {
  static fake::State* const known = fake<fake::State*()>("fake_cuda_state")();
  return *known;
}

template <typename Call>
std::string error_of(ErrorCode code, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  return "no error";
}

inline void* stream(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

}  // namespace tilewise::test
