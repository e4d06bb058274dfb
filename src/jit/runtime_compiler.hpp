// NVRTC and hipRTC: the same functions under two names, and the messages by which the compiler process
// (helper/main.cpp) is told what to do with them. The library itself never opens either.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "jit/byte_stream.hpp"
#include "jit/dynamic_library.hpp"

namespace tilewise::jit {

namespace rtc {
using Result = int;
using Program = struct ProgramState*;
inline constexpr Result kSuccess = 0;
}  // namespace rtc

// X(member, symbol names, required, signature): `name` is looked up as PREFIXname.
#define TILEWISE_RUNTIME_COMPILER_FUNCTIONS(X, prefix, binary)                                           \
  X(version, prefix "Version", true, rtc::Result(int* major, int* minor))                                \
  X(error_text, prefix "GetErrorString", true, const char*(rtc::Result result))                          \
  X(create_program, prefix "CreateProgram", true,                                                        \
    rtc::Result(rtc::Program* program, const char* source, const char* name, int header_count,           \
                const char* const* headers, const char* const* header_names))                            \
  X(compile_program, prefix "CompileProgram", true,                                                      \
    rtc::Result(rtc::Program program, int option_count, const char* const* options))                     \
  X(log_size, prefix "GetProgramLogSize", true, rtc::Result(rtc::Program program, std::size_t* bytes))   \
  X(log, prefix "GetProgramLog", true, rtc::Result(rtc::Program program, char* text))                    \
  X(image_size, prefix "Get" binary "Size", true, rtc::Result(rtc::Program program, std::size_t* bytes)) \
  X(image, prefix "Get" binary, true, rtc::Result(rtc::Program program, char* image))                    \
  X(destroy_program, prefix "DestroyProgram", true, rtc::Result(rtc::Program* program))

struct RuntimeCompiler {
  TILEWISE_RUNTIME_COMPILER_FUNCTIONS(TILEWISE_FUNCTION_MEMBER, "", "")
};

/// What the compiler process reads on standard input.
struct CompilerRequest {
  static constexpr std::uint32_t kMagic = 0x31435754;  // "TWC1": raised with any change of these two messages

  std::string interface;  ///< "nvrtc" or "hiprtc"
  std::string library;    ///< path
  std::string name, source;
  std::vector<std::pair<std::string, std::string>> headers;  ///< name, text
  std::vector<std::string> options;

  [[nodiscard]] std::vector<std::byte> encode() const {
    ByteWriter writer;
    writer.number(kMagic);
    for (const std::string* text : {&interface, &library, &name, &source}) writer.text(*text);
    writer.number<std::uint64_t>(headers.size());
    for (const auto& [path, text] : headers) writer.text(path), writer.text(text);
    writer.number<std::uint64_t>(options.size());
    for (const std::string& option : options) writer.text(option);
    return writer.result();
  }
  /// False for a message of another version or a broken one.
  [[nodiscard]] bool decode(std::span<const std::byte> bytes) {
    ByteReader reader(bytes);
    if (reader.number<std::uint32_t>() != kMagic) return false;
    for (std::string* text : {&interface, &library, &name, &source}) *text = reader.text();
    for (auto count = reader.number<std::uint64_t>(); count > 0 && reader.ok(); --count) {
      std::string path = reader.text();
      headers.emplace_back(std::move(path), reader.text());
    }
    for (auto count = reader.number<std::uint64_t>(); count > 0 && reader.ok(); --count)
      options.push_back(reader.text());
    return reader.complete();
  }
};

/// What it writes on standard output. An empty source in the request asks for the version alone.
struct CompilerReply {
  static constexpr std::uint32_t kMagic = 0x31525754;  // "TWR1"

  std::string error;    ///< empty: done
  std::string version;  ///< "13.0"
  std::string log;
  std::vector<std::byte> image;

  [[nodiscard]] std::vector<std::byte> encode() const {
    ByteWriter writer;
    writer.number(kMagic);
    for (const std::string* text : {&error, &version, &log}) writer.text(*text);
    writer.bytes(image);
    return writer.result();
  }
  [[nodiscard]] bool decode(std::span<const std::byte> bytes) {
    ByteReader reader(bytes);
    if (reader.number<std::uint32_t>() != kMagic) return false;
    for (std::string* text : {&error, &version, &log}) *text = reader.text();
    const auto code = reader.bytes();
    image.assign(code.begin(), code.end());
    return reader.complete();
  }
};

}  // namespace tilewise::jit
