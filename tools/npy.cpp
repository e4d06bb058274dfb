// The .npy format: magic, version, the length of a header that is a Python dict literal,
// then the elements. Specification: numpy.lib.format (NEP 1).
#include "npy.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <span>

#include "core/message.hpp"
#include "tilewise/error.hpp"

namespace tilewise::tools {
namespace {

static_assert(std::endian::native == std::endian::little, "the .npy reader copies little-endian elements as they are");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeaderSize = 65536;  // NumPy's own writer stays below 10000
constexpr std::size_t kDataAlignment = 64;     // NumPy pads the header so that elements start on this

struct DTypeName {
  std::string_view descr;
  DType dtype;
};
constexpr std::array<DTypeName, 8> kDTypeNames = {{{"<f4", DType::f32},
                                                   {"<f2", DType::f16},
                                                   {"<u2", DType::bf16},
                                                   {"<f8", DType::f64},
                                                   {"<i4", DType::i32},
                                                   {"<i8", DType::i64},
                                                   {"|u1", DType::u8},
                                                   {"|b1", DType::boolean}}};

[[noreturn]] void refuse(std::string_view name, std::string_view what, std::string_view expected,
                         const std::string& actual, ErrorCode code = ErrorCode::invalid_argument) {
  throw Error(code, std::string(name) + ": " + std::string(what) + " must be " + std::string(expected) + " (got " +
                        actual + ")");
}

DType dtype_of(std::string_view descr, std::string_view name) {
  std::string known;
  for (const DTypeName& row : kDTypeNames) {
    if (row.descr == descr) return row.dtype;
    known += (known.empty() ? "" : ", ") + std::string(row.descr);
  }
  refuse(name, "dtype", "one of " + known + " (bf16 is kept as <u2)", core::quoted(descr), ErrorCode::invalid_type);
}

std::string_view descr_of(DType dtype) {
  const auto row = std::ranges::find(kDTypeNames, dtype, &DTypeName::dtype);
  if (row == kDTypeNames.end()) {
    throw Error(ErrorCode::invalid_type, ".npy: no element type for " + std::string(to_string(dtype)));
  }
  return row->descr;
}

/// Bytes of an array of this shape; nothing where a stride or the product leaves 63 bits.
std::optional<std::size_t> bytes_of(std::span<const std::int64_t> shape, DType dtype) {
  std::uint64_t bytes = size_of(dtype);
  constexpr auto kLimit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  for (const std::int64_t extent : shape) {
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(extent, 1));  // strides count 0 as 1
    if (extent < 0 || bytes > kLimit / factor) return std::nullopt;
    bytes *= factor;
  }
  return std::ranges::find(shape, 0) != shape.end() ? 0 : bytes;
}

std::string print_shape(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (const std::int64_t extent : shape) text += std::to_string(extent) + ", ";
  if (shape.size() > 1) text.resize(text.size() - 2);
  if (shape.size() == 1) text.pop_back();
  return text + ")";
}

struct Header {
  DType dtype = DType::none;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

/// Reads the header's dict literal: the three keys of the specification, in any order.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  Header parse() {
    Header header;
    bool has_order = false, has_shape = false;
    expect('{');
    while (!take('}')) {
      const std::string_view key = string();
      expect(':');
      if (key == "descr" && header.dtype == DType::none) {
        header.dtype = dtype_of(descr(), name_);
      } else if (key == "fortran_order" && !has_order) {
        header.fortran_order = boolean();
        has_order = true;
      } else if (key == "shape" && !has_shape) {
        header.shape = shape();
        has_shape = true;
      } else {
        refuse(name_, "header", "a dict with the keys descr, fortran_order and shape, each once", core::quoted(key));
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (position_ != text_.size()) fail("nothing after its dict");
    if (header.dtype == DType::none || !has_order || !has_shape) fail("a dict with descr, fortran_order and shape");
    return header;
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    refuse(name_, "header", expected, core::quoted(text_.substr(position_)) + " at byte " + std::to_string(position_));
  }

  void skip_space() {
    while (position_ < text_.size() && std::string_view(" \t\r\n").find(text_[position_]) != std::string_view::npos)
      ++position_;
  }

  bool take(char c) {
    skip_space();
    if (position_ == text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  void expect(char c) {
    if (!take(c)) fail(std::string("a dict literal with '") + c + "' here");
  }

  std::string_view string() {
    skip_space();
    const char quote = position_ < text_.size() ? text_[position_] : '\0';
    if (quote != '\'' && quote != '"') fail("a dict literal with a string here");
    const std::size_t begin = position_ + 1, end = text_.find(quote, begin);
    if (end == std::string_view::npos) fail("a dict literal with closed strings");
    position_ = end + 1;
    return text_.substr(begin, end - begin);
  }

  std::string_view descr() {
    skip_space();
    if (position_ < text_.size() && text_[position_] == '[') {
      refuse(name_, "dtype", "a plain element type", "a structured one", ErrorCode::invalid_type);
    }
    return string();
  }

  bool boolean() {
    skip_space();
    for (const auto& [word, value] : {std::pair{std::string_view("True"), true}, {std::string_view("False"), false}}) {
      if (text_.substr(position_).starts_with(word)) {
        position_ += word.size();
        return value;
      }
    }
    fail("a dict whose fortran_order is True or False");
  }

  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> result;
    expect('(');
    while (!take(')')) {
      skip_space();
      std::int64_t extent = 0;
      const auto [stop, status] = std::from_chars(text_.data() + position_, text_.data() + text_.size(), extent);
      if (status != std::errc{} || extent < 0) fail("a dict whose shape is a tuple of integers from 0 up");
      position_ = static_cast<std::size_t>(stop - text_.data());
      result.push_back(extent);
      if (result.size() > static_cast<std::size_t>(kMaxRank)) {
        refuse(name_, "rank", "<= " + std::to_string(kMaxRank), "more in shape " + core::quoted(text_));
      }
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return result;
  }

  std::string_view text_, name_;
  std::size_t position_ = 0;
};

/// Where the header's text lies in the file.
struct Prologue {
  std::size_t header_begin, header_size;
};

Prologue read_prologue(std::string_view file, std::string_view name) {
  if (!file.starts_with(kMagic)) {
    refuse(name, "the beginning of a .npy file", core::quoted(kMagic), core::quoted(file.substr(0, kMagic.size())));
  }
  const auto byte = [file, name](std::size_t index) {
    if (index >= file.size()) {
      refuse(name, "a .npy file", "longer than its fixed-size beginning", std::to_string(file.size()) + " bytes");
    }
    return static_cast<std::size_t>(static_cast<unsigned char>(file[index]));
  };
  const std::size_t major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0) {
    refuse(name, "format version", "1.0, 2.0 or 3.0", std::to_string(major) + "." + std::to_string(minor));
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  std::size_t size = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) size |= byte(8 + i) << (8 * i);
  const std::size_t begin = 8 + length_bytes;
  if (size > kMaxHeaderSize) {
    refuse(name, "header length", "<= " + std::to_string(kMaxHeaderSize) + " bytes", std::to_string(size));
  }
  if (size > file.size() - begin) {
    refuse(name, "header", std::to_string(size) + " bytes long", std::to_string(file.size() - begin) + " bytes");
  }
  return {begin, size};
}

/// Column-major elements in row-major order.
std::vector<std::byte> to_row_major(const std::vector<std::byte>& source, std::span<const std::int64_t> shape,
                                    std::size_t element) {
  std::vector<std::byte> result(source.size());
  std::vector<std::int64_t> index(shape.size(), 0);
  for (std::size_t target = 0; target < result.size(); target += element) {
    std::int64_t from = 0;
    for (std::size_t d = shape.size(); d-- > 0;) from = from * shape[d] + index[d];
    std::memcpy(&result[target], &source[static_cast<std::size_t>(from) * element], element);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
  return result;
}

TensorView view_of(std::byte* data, DType dtype, std::span<const std::int64_t> shape) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    view.shape[d] = shape[d];
    view.strides[d] = stride;
    stride *= std::max<std::int64_t>(shape[d], 1);
  }
  return view;
}

}  // namespace

Array::Array(DType dtype, const std::vector<std::int64_t>& shape, std::string_view name) {
  const std::optional<std::size_t> bytes = bytes_of(shape, dtype);
  if (shape.size() > static_cast<std::size_t>(kMaxRank) || !bytes) {
    refuse(name, "shape", "small enough for memory", print_shape(shape));
  }
  bytes_.resize(*bytes);
  view_ = view_of(bytes_.data(), dtype, shape);
}

Array parse_npy(std::vector<std::byte> file, std::string_view name) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const Prologue prologue = read_prologue(text, name);
  const Header header = HeaderParser(text.substr(prologue.header_begin, prologue.header_size), name).parse();
  const std::size_t begin = prologue.header_begin + prologue.header_size, present = file.size() - begin;
  const std::optional<std::size_t> expected = bytes_of(header.shape, header.dtype);
  if (!expected) refuse(name, "shape", "small enough for memory", print_shape(header.shape));
  if (*expected != present) {
    refuse(name, "data of shape " + print_shape(header.shape), std::to_string(*expected) + " bytes",
           std::to_string(present));
  }
  file.erase(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(begin));  // so that elements are aligned

  Array array;
  array.bytes_ = header.fortran_order ? to_row_major(file, header.shape, size_of(header.dtype)) : std::move(file);
  array.view_ = view_of(array.bytes_.data(), header.dtype, header.shape);
  return array;
}

Array read_npy(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::error_code status;
  const std::filesystem::file_status kind = std::filesystem::status(path, status);
  if (std::filesystem::exists(kind) && !is_regular_file(kind) && !is_fifo(kind)) {
    refuse(name, "the file", "a regular one or a pipe", is_directory(kind) ? "a directory" : "a device");
  }
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream.is_open()) refuse(name, "the file", "readable", std::strerror(errno));

  std::vector<std::byte> file;
  constexpr std::size_t kChunk = std::size_t{1} << 20;
  if (const std::uintmax_t size = std::filesystem::file_size(path, status); !status) file.reserve(size + kChunk);
  while (stream) {
    const std::size_t before = file.size();
    file.resize(before + kChunk);
    stream.read(reinterpret_cast<char*>(file.data() + before), kChunk);
    file.resize(before + static_cast<std::size_t>(stream.gcount()));
  }
  if (stream.bad()) refuse(name, "the file", "readable", std::strerror(errno));
  return parse_npy(std::move(file), name);
}

void write_npy(const std::filesystem::path& path, const TensorView& view) {
  const std::span<const std::int64_t> shape(view.shape.data(), static_cast<std::size_t>(view.rank));
  std::string header = "{'descr': '" + std::string(descr_of(view.dtype)) +
                       "', 'fortran_order': False, 'shape': " + print_shape(shape) + ", }";
  constexpr std::size_t kPrologue = 10;
  while ((kPrologue + header.size() + 1) % kDataAlignment != 0) header += ' ';
  header += '\n';

  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream << kMagic << '\x01' << '\0' << static_cast<char>(header.size() & 0xFF) << static_cast<char>(header.size() >> 8)
         << header;
  stream.write(static_cast<const char*>(view.data),
               static_cast<std::streamsize>(static_cast<std::size_t>(view.numel()) * size_of(view.dtype)));
  stream.flush();
  if (!stream) {
    throw Error(ErrorCode::runtime, path.string() + ": could not be written (" + std::strerror(errno) + ")");
  }
}

}  // namespace tilewise::tools
