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

#include "core/message.hpp"

namespace tilewise::tools {
namespace {

using core::concat;
using core::invalid_argument;
using core::quoted;

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

DType dtype_of(std::string_view descr, std::string_view name) {
  std::string known;
  for (const DTypeName& row : kDTypeNames) {
    if (row.descr == descr) return row.dtype;
    known += concat(row.descr, ", ");
  }
  core::invalid_type(name, ": dtype must be one of ", known, "where <u2 holds bf16 (got ", quoted(descr), ")");
}

std::string_view descr_of(DType dtype) {
  const auto row = std::ranges::find(kDTypeNames, dtype, &DTypeName::dtype);
  if (row == kDTypeNames.end()) core::invalid_type(".npy: has no element type for ", to_string(dtype));
  return row->descr;
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
        invalid_argument(name_, ": header must have the keys descr, fortran_order and shape, each once (got ",
                         quoted(key), ")");
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
    invalid_argument(name_, ": header must be ", expected, " (got ", quoted(text_.substr(position_)), " at its byte ",
                     position_, ")");
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
    if (!take(c)) fail(concat("a dict literal with '", c, "' here"));
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
      core::invalid_type(name_, ": dtype must be a plain element type (got a structured one)");
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
        invalid_argument(name_, ": rank must be <= ", kMaxRank, " (got more in ", quoted(text_), ")");
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
    invalid_argument(name, ": must begin with ", quoted(kMagic), " as .npy files do (got ",
                     quoted(file.substr(0, kMagic.size())), ")");
  }
  const auto byte = [file, name](std::size_t index) {
    if (index >= file.size()) {
      invalid_argument(name, ": must be longer than the beginning of a .npy file (got ", file.size(), " bytes)");
    }
    return static_cast<std::size_t>(static_cast<unsigned char>(file[index]));
  };
  const std::size_t major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0) {
    invalid_argument(name, ": format version must be 1.0, 2.0 or 3.0 (got ", major, ".", minor, ")");
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  std::size_t size = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) size |= byte(8 + i) << (8 * i);
  const std::size_t begin = 8 + length_bytes;
  if (size > kMaxHeaderSize) {
    invalid_argument(name, ": header length must be <= ", kMaxHeaderSize, " bytes (got ", size, ")");
  }
  if (size > file.size() - begin) {
    invalid_argument(name, ": header must be ", size, " bytes long (got ", file.size() - begin, ")");
  }
  return {begin, size};
}

/// Column-major elements in row-major order.
Bytes to_row_major(const Bytes& source, std::span<const std::int64_t> shape, std::size_t element) {
  Bytes result(source.size());
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

[[noreturn]] void refuse_unreadable(std::string_view name) {
  invalid_argument(name, ": must be readable (got '", std::strerror(errno), "')");
}

/// Up to its end, with room made once where `expected` says how much there is.
Bytes read_all(std::istream& stream, std::string_view name, std::uintmax_t expected) {
  Bytes file;
  constexpr std::size_t kChunk = std::size_t{1} << 20;
  file.reserve(expected + kChunk);
  errno = 0;
  while (stream) {
    const std::size_t before = file.size();
    file.resize(before + kChunk);
    stream.read(reinterpret_cast<char*>(file.data() + before), kChunk);
    file.resize(before + static_cast<std::size_t>(stream.gcount()));
  }
  if (stream.bad()) refuse_unreadable(name);
  return file;
}

}  // namespace

Array parse_npy(Bytes file, std::string_view name) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const Prologue prologue = read_prologue(text, name);
  const std::size_t begin = prologue.header_begin + prologue.header_size;
  const Header header = HeaderParser(text.substr(prologue.header_begin, prologue.header_size), name).parse();
  file.erase(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(begin));
  Array array(header.dtype, header.shape, std::move(file), name);
  if (!header.fortran_order) return array;
  const auto* data = static_cast<const std::byte*>(array.view().data);
  Bytes rows = to_row_major({data, data + array.size_bytes()}, header.shape, size_of(header.dtype));
  return Array(header.dtype, header.shape, std::move(rows), name);
}

Array read_npy(std::istream& stream, std::string_view name) { return parse_npy(read_all(stream, name, 0), name); }

Array read_npy(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::error_code status;
  const std::filesystem::file_status kind = std::filesystem::status(path, status);
  if (exists(kind) && !is_regular_file(kind) && !is_fifo(kind)) {
    invalid_argument(name, ": must be a regular file or a pipe (got a ", is_directory(kind) ? "directory" : "device",
                     ")");
  }
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream.is_open()) refuse_unreadable(name);
  const std::uintmax_t size = std::filesystem::file_size(path, status);
  return parse_npy(read_all(stream, name, status ? 0 : size), name);
}

void write_npy(std::ostream& stream, const TensorView& view) {
  std::string header = concat("{'descr': '", descr_of(view.dtype),
                              "', 'fortran_order': False, 'shape': ", print_shape(shape_of(view)), ", }");
  constexpr std::size_t kPrologue = 10;
  while ((kPrologue + header.size() + 1) % kDataAlignment != 0) header += ' ';
  header += '\n';
  stream << kMagic << '\x01' << '\0' << static_cast<char>(header.size() & 0xFF) << static_cast<char>(header.size() >> 8)
         << header;
  stream.write(static_cast<const char*>(view.data),
               static_cast<std::streamsize>(static_cast<std::size_t>(view.numel()) * size_of(view.dtype)));
  stream.flush();
}

void write_npy(const std::filesystem::path& path, const TensorView& view) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  write_npy(stream, view);
  if (!stream) {
    throw Error(ErrorCode::runtime, concat(path.string(), ": could not be written (", std::strerror(errno), ")"));
  }
}

}  // namespace tilewise::tools
