// Reads and writes NumPy's .npy files (format versions 1 to 3, little endian). A file is
// never trusted: every error names the file, what was expected and what it holds.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string_view>

#include "array.hpp"

namespace tilewise::tools {

/// The array in the bytes of a .npy file. dtypes: f32, f16, f64, i32, i64, u8, bool, and bf16
/// kept as uint16. Fortran order is turned into row-major order. Throws Error whose message
/// begins with `name`.
[[nodiscard]] Array parse_npy(Bytes file, std::string_view name);

/// parse_npy() of a file. Throws Error naming the file, also where it can't be read.
[[nodiscard]] Array read_npy(const std::filesystem::path& path);
/// parse_npy() of all that a stream has.
[[nodiscard]] Array read_npy(std::istream& stream, std::string_view name);

/// Writes a row-major contiguous view as .npy version 1.0; bf16 becomes uint16. Throws Error
/// (runtime) where the file can't be written.
void write_npy(const std::filesystem::path& path, const TensorView& view);
/// The same to a stream, whose state tells whether it could be written.
void write_npy(std::ostream& stream, const TensorView& view);

}  // namespace tilewise::tools
