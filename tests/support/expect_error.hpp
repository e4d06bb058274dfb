// Expecting an error's code and exact sentence.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tilewise/error.hpp"

namespace tilewise::test {

/// Runs fn, which must throw an Error with this code and exactly this sentence.
template <typename Function>
void expect_error(ErrorCode code, const std::string& sentence, const Function& fn) {
  try {
    fn();
    ADD_FAILURE() << "no error; expected: " << sentence;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), sentence);
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << sentence;
  }
}

template <typename Function>
void expect_invalid(const std::string& sentence, const Function& fn) {
  expect_error(ErrorCode::invalid_argument, sentence, fn);
}

}  // namespace tilewise::test
