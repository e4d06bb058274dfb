// What the module and the command are told of the standard's exceptions.
#include "core/thrown.hpp"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace tilewise::core {
namespace {

TEST(DescribeThrown, TellsWhatWasThrown) {
  const Thrown memory = describe_thrown(std::make_exception_ptr(std::bad_alloc()));
  EXPECT_TRUE(memory.is_out_of_memory);
  EXPECT_EQ(memory.message, "not enough memory");
  const Thrown range = describe_thrown(std::make_exception_ptr(std::out_of_range("no such place")));
  EXPECT_FALSE(range.is_out_of_memory);
  EXPECT_EQ(range.message, "no such place");
  EXPECT_EQ(describe_thrown(std::make_exception_ptr(7)).message, "unknown exception");
}

}  // namespace
}  // namespace tilewise::core
