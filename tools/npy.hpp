// Reads and writes NumPy's .npy files (format versions 1 to 3, little endian). A file is
// never trusted: every error names the file, what was expected and what it holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/tensor.hpp"

namespace tilewise::tools {

/// An array that owns its elements, row-major. A default-constructed one means "not given".
class Array {
 public:
  Array() = default;
  /// Zero-filled. Throws Error where the shape does not fit into memory or into a TensorView;
  /// `name` stands at the beginning of its message.
  Array(DType dtype, const std::vector<std::int64_t>& shape, std::string_view name);
  Array(Array&&) noexcept = default;  // a copy's view would point into the original
  Array& operator=(Array&&) noexcept = default;

  /// Valid while the array lives; undefined for an array that was not given.
  [[nodiscard]] const TensorView& view() const noexcept { return view_; }
  [[nodiscard]] bool defined() const noexcept { return view_.defined(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_.size(); }

 private:
  friend Array parse_npy(std::vector<std::byte> file, std::string_view name);

  std::vector<std::byte> bytes_;  // allocated with the alignment of every element type
  TensorView view_;
};

/// The array in the bytes of a .npy file. dtypes: f32, f16, f64, i32, i64, u8, bool, and bf16
/// kept as uint16. Fortran order is turned into row-major order. Throws Error whose message
/// begins with `name`.
[[nodiscard]] Array parse_npy(std::vector<std::byte> file, std::string_view name);

/// parse_npy() of a file. Throws Error naming the file, also where it can't be read.
[[nodiscard]] Array read_npy(const std::filesystem::path& path);

/// Writes a row-major contiguous view as .npy version 1.0; bf16 becomes uint16. Throws Error
/// (runtime) where the file can't be written.
void write_npy(const std::filesystem::path& path, const TensorView& view);

}  // namespace tilewise::tools
