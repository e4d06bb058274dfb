// Fuzzes the .npy reader: any bytes give an array whose elements can all be read, or an Error.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "expect.hpp"
#include "npy.hpp"

using namespace tilewise;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tools::Bytes file(size);
  if (size) std::memcpy(file.data(), data, size);
  try {
    const tools::Array array = tools::parse_npy(std::move(file), "input.npy");
    const TensorView& view = array.view();
    const auto bytes = static_cast<std::size_t>(view.numel()) * size_of(view.dtype);
    expect(bytes == array.size_bytes(), "the shape and the data agree");
    expect(!describe(view).empty(), "the array prints");
    std::vector<std::byte> copy(bytes);  // reads every element, so that AddressSanitizer sees a short buffer
    if (bytes) std::memcpy(copy.data(), view.data, bytes);
  } catch (const Error& error) {
    expect_sentence(error);
    expect(std::strncmp(error.what(), "input.npy: ", 11) == 0, "the message names the file");
  }
  return 0;
}
